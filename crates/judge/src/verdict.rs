//! The verdict: a function of what was asked, heard and stored. It accuses only where no correct
//! server could have answered so; docs/judge.md has the proof that each kind needs.

use crate::history::{History, Meaning, Phase, Request, Row, Stored};
use crate::misfit;
use crate::view::{Misfit, View};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashSet};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Oversold,
    SoldTwice,
    OrderIdTwice,
    AcknowledgedAndLost,
    StoredNotAcknowledged,
    KeyAnsweredDifferently,
    Undersold,
    FalseSoldOut,
    WrongRemaining,
}

/// Why nothing could be decided, for a page that says it in its own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// A run that could not go on.
    Run,
    /// It misreads the server.
    Adapter,
    /// It put nothing on sale.
    Setup,
    /// Those who asked last were put off.
    PutOff,
    /// The time limit was over before everybody had asked.
    NotAsked,
    /// What is stored is not known.
    NotRead,
    /// What is stored was still changing.
    NotAtRest,
}

/// Something a correct server does not do, with the requests and rows that prove it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub kind: Kind,
    /// How often: units, buyers, orders or answers, as `what` says.
    pub count: usize,
    pub what: String,
    /// The first of them, by their start.
    pub requests: Vec<Request>,
    /// The orders of their buyers.
    pub rows: Vec<Row>,
}

/// A report with more of them would not be read.
const MOST_SHOWN: usize = 20;

type Check<'a> = fn(&View<'a>) -> Proof<'a>;

/// Whether a finding of this kind can be proved all the same.
fn allows(misfit: Misfit, kind: Kind) -> bool {
    use Kind::*;
    match misfit {
        Misfit::Setup | Misfit::Sales => false,
        Misfit::Refusals => !matches!(kind, Undersold | FalseSoldOut),
        Misfit::Ids => kind != OrderIdTwice,
        Misfit::Users => matches!(kind, Oversold | KeyAnsweredDifferently | WrongRemaining),
        Misfit::Rows => matches!(kind, Oversold | KeyAnsweredDifferently),
    }
}

fn viewed(history: &History) -> View<'_> {
    let view = View::with(history, None);
    match misfit::find(&view) {
        None => view,
        misfit => View::with(history, misfit),
    }
}

/// Everything that is wrong.
pub fn findings<'a>(history: &'a History) -> Vec<Finding> {
    let view = viewed(history);
    let checks: [(Kind, Check<'a>); 9] = [
        (Kind::Oversold, oversold),
        (Kind::SoldTwice, sold_twice),
        (Kind::OrderIdTwice, order_id_twice),
        (Kind::AcknowledgedAndLost, acknowledged_and_lost),
        (Kind::StoredNotAcknowledged, stored_not_acknowledged),
        (Kind::KeyAnsweredDifferently, key_answered_differently),
        (Kind::Undersold, undersold),
        (Kind::FalseSoldOut, false_sold_out),
        (Kind::WrongRemaining, wrong_remaining),
    ];
    let finding = |(kind, check): &(Kind, Check<'a>)| {
        let proof = check(&view);
        (proof.count > 0).then(|| view.finding(*kind, proof))
    };
    let allows = |kind| view.misfit.as_ref().is_none_or(|(misfit, _)| allows(*misfit, kind));
    checks.iter().filter(|(kind, _)| allows(*kind)).filter_map(finding).collect()
}

/// Why the answers cannot be compared with each other and with what is stored.
pub fn misfit(history: &History) -> Option<(Code, String)> {
    let found = viewed(history).misfit;
    found.map(|(misfit, why)| match misfit {
        Misfit::Setup => (Code::Setup, why),
        _ => (Code::Adapter, why),
    })
}

/// What is odd about the meanings of the answers, though it may be right.
pub fn oddities(history: &History) -> Vec<String> {
    misfit::oddities(&viewed(history))
}

/// Units that nobody has, as far as is known: neither stored nor acknowledged.
pub fn left(history: &History) -> usize {
    viewed(history).left()
}

/// Buyers without an order, neither stored nor acknowledged, in the order of their requests.
pub fn unserved(history: &History) -> Vec<&str> {
    let view = viewed(history);
    let mut seen = HashSet::new();
    let users = history.requests.iter().map(|request| request.user.as_str());
    users.filter(|user| seen.insert(*user) && view.has_nothing(user)).collect()
}

/// How often something is wrong, and whose requests and orders show it: the best proof first.
#[derive(Default)]
struct Proof<'a> {
    count: usize,
    what: String,
    requests: Vec<&'a Request>,
    rows: Vec<&'a Row>,
}

impl<'a> View<'a> {
    fn finding(&self, kind: Kind, proof: Proof<'a>) -> Finding {
        let Proof { count, what, requests, mut rows } = proof;
        let mut requests = first_of(requests);
        requests.sort_by_key(|request| request.start_us);
        let users: BTreeSet<&str> = requests.iter().map(|request| &*request.user).collect();
        // Rows of others who asked prove nothing here.
        let belongs = |user: &str| users.contains(user) || self.requests_of(user).is_empty();
        rows.retain(|row| requests.is_empty() || belongs(&row.user));
        rows.extend(users.iter().flat_map(|user| self.rows_of(user)));
        Finding { kind, count, what, requests, rows: first_of(rows) }
    }
}

/// As many as are shown, each once.
fn first_of<T: Clone>(mut items: Vec<&T>) -> Vec<T> {
    let mut seen = HashSet::new();
    items.retain(|item| seen.insert(std::ptr::from_ref::<T>(item)));
    items.into_iter().take(MOST_SHOWN).cloned().collect()
}

fn oversold<'a>(view: &View<'a>) -> Proof<'a> {
    let (stock, stored, told) =
        (view.history.run.stock, view.stored().len(), view.acknowledged.len());
    let count = view.sold().saturating_sub(stock);
    let what =
        format!("{count} beyond the stock of {stock}: {told} orders acknowledged, {stored} stored");
    if told > stock {
        let mut requests: Vec<&Request> = view.acknowledged.values().copied().collect();
        requests.sort_by_key(|request| (request.end_us, request.start_us));
        // The last that was right, and what came after it.
        requests.drain(..stock.saturating_sub(1));
        return Proof { count, what, requests, rows: Vec::new() };
    }
    // First those that nobody was told of.
    let mut rows: Vec<&Row> = view.stored().iter().collect();
    let is_told = |row: &&Row| {
        [Some(&*row.order_id), None]
            .iter()
            .any(|id| view.acknowledged.contains_key(&(&*row.user, *id)))
    };
    rows.sort_by_key(is_told);
    let requests = rows.iter().flat_map(|row| view.requests_of(&row.user)).copied().collect();
    Proof { count, what, requests, rows }
}

fn sold_twice<'a>(view: &View<'a>) -> Proof<'a> {
    let mut orders: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (user, id) in view.acknowledged.keys() {
        orders.entry(user).or_default().extend(*id);
    }
    for row in view.stored() {
        orders.entry(&row.user).or_default().insert(&row.order_id);
    }
    orders.retain(|_, ids| ids.len() > view.history.run.per_user);
    let (count, limit) = (orders.len(), view.history.run.per_user);
    let what = format!("{count} buyers with more than {limit} each");
    let requests = view.all_of(orders.keys().copied());
    let rows = orders.keys().flat_map(|user| view.rows_of(user)).copied().collect();
    Proof { count, what, requests, rows }
}

fn order_id_twice<'a>(view: &View<'a>) -> Proof<'a> {
    // Of each id, whose orders have it: a stored row is an order of its own.
    let mut owners: BTreeMap<&str, (usize, BTreeSet<&str>)> = BTreeMap::new();
    for row in view.stored() {
        let (stored, users) = owners.entry(&row.order_id).or_default();
        *stored += 1;
        users.insert(&row.user);
    }
    for (user, id) in view.acknowledged.keys() {
        if let Some(id) = id {
            owners.entry(id).or_default().1.insert(user);
        }
    }
    owners.retain(|_, (stored, users)| *stored > 1 || users.len() > 1);
    let has = |id: Option<&str>| id.is_some_and(|id| owners.contains_key(id));
    let acknowledged = view.acknowledged.values().copied();
    let mut requests: Vec<_> = acknowledged.filter(|request| has(view.id_of(request))).collect();
    // Those with one id together.
    requests.sort_by_key(|request| (&request.order_id, request.start_us));
    let rows = view.stored().iter().filter(|row| has(Some(&row.order_id))).collect();
    let count = owners.len();
    Proof { count, what: format!("{count} ids that more than one order has"), requests, rows }
}

fn acknowledged_and_lost<'a>(view: &View<'a>) -> Proof<'a> {
    let is_lost = |((user, id), _): &(&(&str, Option<&str>), &&Request)| {
        let is_it = |row: &&Row| id.is_none_or(|id| row.order_id == id);
        view.history.stored.is_some() && !view.rows_of(user).iter().any(is_it)
    };
    let lost = view.acknowledged.iter().filter(is_lost);
    let mut requests: Vec<&Request> = lost.map(|(_, request)| *request).collect();
    requests.sort_by_key(|request| request.start_us);
    let count = requests.len();
    let what = format!("{count} acknowledged orders that are not stored");
    Proof { count, what, requests, rows: Vec::new() }
}

/// Only where every other request of the buyer was definitely refused: a lost answer may have been
/// a sale.
fn stored_not_acknowledged<'a>(view: &View<'a>) -> Proof<'a> {
    let is_secret = |row: &&Row| {
        let mut requests = view.requests_of(&row.user).iter();
        requests.all(|request| match request.means {
            Meaning::Sold => view.id_of(request).is_some_and(|id| id != row.order_id),
            Meaning::SoldOut | Meaning::AlreadyOrdered | Meaning::NotSent => true,
            Meaning::ComeAgain | Meaning::Lost | Meaning::Unexpected => false,
        })
    };
    let rows: Vec<&Row> = view.stored().iter().filter(is_secret).collect();
    let users: BTreeSet<&str> = rows.iter().map(|row| &*row.user).collect();
    let count = rows.len();
    let what = format!("{count} stored orders whose buyers were only refused, or never asked");
    Proof { count, what, requests: view.all_of(users.into_iter()), rows }
}

/// Two orders for one key, or a sale and, asked later, `sold_out`.
fn key_answered_differently<'a>(view: &View<'a>) -> Proof<'a> {
    let mut keys: BTreeMap<(&str, &str), Vec<&Request>> = BTreeMap::new();
    for request in view.requests.values().flatten().filter(|_| view.history.run.keyed) {
        keys.entry((&request.user, &request.key)).or_default().push(request);
    }
    let knows_sold_out = !matches!(view.misfit, Some((Misfit::Refusals, _)));
    keys.retain(|_, requests| {
        let sold = || requests.iter().filter(|request| request.means == Meaning::Sold);
        let ids: HashSet<&str> = sold().filter_map(|sold| view.id_of(sold)).collect();
        let heard = sold().map(|sold| sold.end_us).min().unwrap_or(u64::MAX);
        let is_taken_back =
            |request: &&Request| request.means == Meaning::SoldOut && heard < request.start_us;
        ids.len() > 1 || (knows_sold_out && requests.iter().any(is_taken_back))
    });
    let count = keys.len();
    let what = format!("{count} keys with two different answers");
    Proof { count, what, requests: keys.into_values().flatten().collect(), rows: Vec::new() }
}

/// The refusals of buyers who asked alone, at rest, while units were left and stayed left.
fn last_refusals<'a>(view: &View<'a>) -> Vec<&'a Request> {
    let is_last = |request: &&Request| {
        let is_refused = matches!(request.means, Meaning::SoldOut | Meaning::AlreadyOrdered);
        request.phase == Phase::LastCall && is_refused && view.has_nothing(&request.user)
    };
    match view.left() > 0 && view.history.stored.is_some() {
        true => view.requests.values().flatten().copied().filter(is_last).collect(),
        false => Vec::new(),
    }
}

fn undersold<'a>(view: &View<'a>) -> Proof<'a> {
    let refusals = last_refusals(view);
    let users: BTreeSet<&str> = refusals.iter().map(|request| &*request.user).collect();
    let what = format!(
        "{} units of {} were left, and {} buyers who asked last, alone, were refused",
        view.left(),
        view.history.run.stock,
        users.len()
    );
    let count = if users.is_empty() { 0 } else { view.left() };
    // The refusals are the proof: what their buyers heard before may be long.
    let requests = refusals.into_iter().chain(view.all_of(users.into_iter())).collect();
    Proof { count, what, requests, rows: Vec::new() }
}

fn false_sold_out<'a>(view: &View<'a>) -> Proof<'a> {
    let said = |request: &&Request| request.means == Meaning::SoldOut;
    let proofs: Vec<&Request> = last_refusals(view).into_iter().filter(said).collect();
    let all = || view.requests.values().flatten().copied().filter(said);
    let count = if proofs.is_empty() { 0 } else { all().count() };
    let what = format!("{count} answers said sold out; {} units were left for good", view.left());
    // The first of all, and those that prove it.
    let first = all().min_by_key(|request| request.start_us);
    Proof { count, what, requests: first.into_iter().chain(proofs).collect(), rows: Vec::new() }
}

fn wrong_remaining<'a>(view: &View<'a>) -> Proof<'a> {
    let Some(Stored { orders, remaining: Some(remaining) }) = &view.history.stored else {
        return Proof::default();
    };
    let (stock, sold) = (view.history.run.stock, orders.len());
    let right = stock as i64 - sold as i64;
    let what = format!("{remaining} remaining, but {stock} − {sold} stored = {right}");
    let (count, rows) = (remaining.abs_diff(right) as usize, orders.iter().collect());
    Proof { count, what, rows, ..Proof::default() }
}
