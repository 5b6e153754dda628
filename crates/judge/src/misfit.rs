//! Where the adapter reads something else than the server means, or the setup did nothing: then
//! most findings prove nothing.

use crate::history::{Meaning, Row};
use crate::view::{Misfit, View};
use std::collections::{BTreeMap, BTreeSet};

/// With its words.
pub(crate) fn find(view: &View<'_>) -> Option<(Misfit, String)> {
    setup(view).or_else(|| sales(view)).or_else(|| refusals(view)).or_else(|| rows(view))
}

fn setup(view: &View<'_>) -> Option<(Misfit, String)> {
    let stored = view.history.stored.as_ref()?;
    let refused = refused(view).len();
    let is_sold = !stored.orders.is_empty() || !view.acknowledged.is_empty();
    let stock = view.history.run.stock;
    let is_on_sale = stored.remaining == Some(stock as i64);
    let why = format!(
        "setup: not one of {stock} units was sold, and {refused} buyers were refused: did it put \
         them on sale?"
    );
    (!is_sold && !is_on_sale && stock > 0 && refused > 0).then_some((Misfit::Setup, why))
}

fn sales(view: &View<'_>) -> Option<(Misfit, String)> {
    let told = heard(view, Meaning::Sold);
    let (told_in_vain, refused) = (told.iter().all(|user| lacks_rows(view, user)), refused(view));
    let owners: BTreeSet<&str> = view.rows.keys().copied().collect();
    // One sale that is lost and one that is secret are two faults of the server.
    let are_many = told.len() > view.history.run.stock || owners.len() > 1;
    let are_swapped = told_in_vain && are_many && owners.is_subset(&refused);
    let why = format!(
        "order.answers: all {} buyers who heard sold have nothing stored, and all {} who have an \
         order were refused: are the meanings swapped?",
        told.len(),
        owners.len()
    );
    (are_swapped && !told.is_empty() && !owners.is_empty()).then_some((Misfit::Sales, why))
}

/// A correct server says *already ordered* to nobody who has nothing, and *sold out* to some.
fn refusals(view: &View<'_>) -> Option<(Misfit, String)> {
    let [ordered, sold_out] = [Meaning::AlreadyOrdered, Meaning::SoldOut].map(|m| heard(view, m));
    let is_wrong = ordered.iter().all(|user| view.has_nothing(user))
        && !sold_out.iter().any(|user| view.has_nothing(user));
    let why = format!(
        "order.answers: all {} buyers who heard already_ordered have no order, and nobody who \
         heard sold_out is without one: are the meanings swapped?",
        ordered.len()
    );
    let is_found = is_wrong && !ordered.is_empty() && view.left() == 0;
    is_found.then_some((Misfit::Refusals, why))
}

fn rows(view: &View<'_>) -> Option<(Misfit, String)> {
    let Row { order_id, user } = view.stored().first()?;
    if view.rows.keys().any(|user| view.requests.contains_key(user)) {
        return ids(view);
    }
    let rows: BTreeMap<&str, &Row> =
        view.stored().iter().map(|row| (&*row.order_id, row)).collect();
    let mut told = view.acknowledged.keys();
    Some(match told.find_map(|(asked, id)| Some((*asked, *rows.get((*id)?)?))) {
        Some((asked, Row { order_id, user })) => {
            let told = format!("{asked} was told {order_id}, stored under {user}");
            (Misfit::Users, format!("orders.user names nobody who asked: {told}"))
        }
        None => {
            let why = "orders.user and orders.order_id: no stored order is that of a buyer, or \
                       was acknowledged";
            (Misfit::Rows, format!("{why}; the first: {order_id} of {user}"))
        }
    })
}

/// A broken server may store a few orders under other ids; an adapter that reads another
/// number than the id finds hardly any.
fn ids(view: &View<'_>) -> Option<(Misfit, String)> {
    let mut told = BTreeMap::<&str, Vec<&str>>::new();
    for (user, id) in view.acknowledged.keys() {
        told.entry(user).or_default().extend(*id);
    }
    told.retain(|user, ids| !ids.is_empty() && !lacks_rows(view, user));
    let is_other = |(user, ids): &(&&str, &Vec<&str>)| {
        !view.rows_of(user).iter().any(|row| ids.contains(&&*row.order_id))
    };
    let (user, ids) = told.iter().find(is_other)?;
    let others = told.iter().filter(is_other).count();
    let (id, stored) = (ids.first()?, &view.rows_of(user).first()?.order_id);
    let others_in_words = format!("{others} of {} buyers have other ids than", told.len());
    let why = format!(
        "order.answers[…].order_id and orders.order_id: {others_in_words} their stored \
         orders; {user} was told {id}, stored as {stored}"
    );
    (others * 2 > told.len()).then_some((Misfit::Ids, why))
}

pub(crate) fn oddities(view: &View<'_>) -> Vec<String> {
    let [sold_out, come_again] =
        [Meaning::SoldOut, Meaning::ComeAgain].map(|means| heard(view, means));
    let without_id = view.acknowledged.keys().filter(|(_, id)| id.is_none()).count();
    let in_vain = come_again.iter().filter(|user| view.has_nothing(user)).count();
    let is_early = !sold_out.is_empty() && !sold_out.iter().any(|user| view.has_nothing(user));
    let notes = [
        (view.has_ids && without_id > 0).then(|| {
            format!("order.answers: {without_id} sales came without an id, and match any order")
        }),
        is_early.then(|| {
            let count = sold_out.len();
            format!("order.answers: all {count} buyers who heard sold_out have an order in the end")
        }),
        (view.left() == 0 && sold_out.is_empty() && in_vain > 0).then(|| {
            format!("order.answers: nobody heard sold_out, and {in_vain} only heard come_again")
        }),
    ];
    notes.into_iter().flatten().collect()
}

fn lacks_rows(view: &View<'_>, user: &str) -> bool {
    view.rows_of(user).is_empty()
}

fn heard<'a>(view: &View<'a>, means: Meaning) -> BTreeSet<&'a str> {
    let requests = view.requests.values().flatten();
    requests.filter(|request| request.means == means).map(|request| &*request.user).collect()
}

fn refused<'a>(view: &View<'a>) -> BTreeSet<&'a str> {
    let mut refused = heard(view, Meaning::SoldOut);
    refused.append(&mut heard(view, Meaning::AlreadyOrdered));
    refused
}
