//! The books (I13): the provider's transactions against the ledger, and the ledger against the
//! orders. What does not agree is named, charge by charge.

use super::{Ledger, LedgerError, Orders, PaymentState};
use crate::provider::{Charge, ChargeStatus, Movement};
use crate::simulated::SIMULATED;
use PaymentState::{Captured, Declined, Pending, Refunded, Refunding};
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::Duration;
use stores::sql::rows;
use tokio::time::{Instant, sleep};
use utoipa::ToSchema;

const SNAPSHOT: &str = "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// Money in minor units, of all currencies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Books {
    /// Whether nothing drifts.
    pub ok: bool,
    /// Whether nothing is under way: then captured − refunded = paid.
    pub quiescent: bool,
    /// What the ledger says was captured, and how much of it was returned.
    pub captured_cents: i64,
    pub refunded_cents: i64,
    /// The prices of the orders that are paid and not refunded.
    pub paid_cents: i64,
    /// Null where payment is simulated.
    #[schema(required)]
    pub provider: Option<ProviderSide>,
    /// Captured or refunded at the provider and not yet here, or to be refunded.
    pub under_way: usize,
    /// What does not agree, in words.
    pub drift: Vec<String>,
}

/// This shop's transactions, as the provider has them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ProviderSide {
    pub captured_cents: i64,
    pub refunded_cents: i64,
    pub transactions: usize,
}

/// A row of the ledger.
struct Payment {
    order_id: i64,
    amount_cents: i64,
    reference: String,
    charge_id: Option<String>,
    state: PaymentState,
    /// Returned to the buyer of a paid order, not because it came too late or twice.
    is_returned: bool,
    /// Why the provider does not refund it.
    refused: Option<String>,
}

type Row = (i64, i64, String, Option<String>, PaymentState, bool, Option<String>);

impl From<Row> for Payment {
    fn from(row: Row) -> Self {
        let (order_id, amount_cents, reference, charge_id, state, is_returned, refused) = row;
        Self { order_id, amount_cents, reference, charge_id, state, is_returned, refused }
    }
}

impl Payment {
    /// The provider's charge, if it moved money; `None` if it was simulated.
    fn real_charge(&self) -> Option<&str> {
        let id = self.charge_id.as_deref()?;
        let is_real = !matches!(self.state, Pending | Declined) && !id.starts_with(SIMULATED);
        is_real.then_some(id)
    }
}

/// A charge at the provider with what was refunded of it.
struct AtProvider {
    charge: Charge,
    refunded_cents: i64,
}

/// Both sides; the provider's was read last, so it has at least what the ledger has.
struct Sides {
    payments: Vec<Payment>,
    /// Paid orders and their prices.
    paid: HashMap<i64, i64>,
    provider: Option<HashMap<String, AtProvider>>,
    transactions: usize,
}

impl<O: Orders> Ledger<O> {
    /// Compares again until no payment is under way. The provider may be away meanwhile.
    pub async fn books_until(&self, deadline: Instant) -> Result<Books, LedgerError> {
        loop {
            match self.books().await {
                Ok(books) if books.quiescent || Instant::now() >= deadline => return Ok(books),
                Err(error) if Instant::now() >= deadline => return Err(error),
                _ => sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// Compares all sides. Reads every payment: seconds for a million.
    pub async fn books(&self) -> Result<Books, LedgerError> {
        let mut books = self.sides().await?.compare();
        if !books.drift.is_empty() {
            // What was just under way agrees, or drifts in another way, when it is read again.
            let again = self.sides().await?.compare();
            let before: HashSet<String> = books.drift.drain(..).collect();
            books = again;
            books.drift.retain(|drift| before.contains(drift));
        }
        books.drift.sort();
        books.ok = books.drift.is_empty();
        self.books_drift.set(u32::try_from(books.drift.len()).unwrap_or(u32::MAX));
        for drift in &books.drift {
            tracing::error!(drift, "the books do not agree");
        }
        Ok(books)
    }

    async fn sides(&self) -> Result<Sides, LedgerError> {
        let mut snapshot = self.postgres.begin(SNAPSHOT).await?;
        let shops = "SELECT name FROM payment_shop";
        let shops: Vec<(String,)> = rows(&mut *snapshot, shops, ()).await?;
        let payments = rows(
            &mut *snapshot,
            "SELECT order_id, amount_cents, reference, charge_id, state::text,
                 coalesce(reason IN ('operator', 'provider'), false)
                     AND state IN ('refunding', 'refunded') AS is_returned,
                 CASE state WHEN 'refunding' THEN refused END AS refused
             FROM payments",
            (),
        );
        let payments: Vec<Row> = payments.await?;
        let payments = payments.into_iter().map(Payment::from).collect();
        let paid = self.orders.paid(&mut snapshot).await?;
        snapshot.rollback().await?;
        let heads: Vec<String> = shops.iter().map(|(name,)| format!("{name}-")).collect();
        let is_ours = |reference: &str| heads.iter().any(|head| reference.starts_with(head));
        let (mut charges, mut transactions, mut after) = (HashMap::new(), 0, 0);
        let provider = loop {
            if self.provider.is_simulated() {
                break None; // it keeps no list
            }
            let page = self.provider.transactions(after).await?;
            let Some(last) = page.last() else { break Some(charges) };
            after = last.number;
            for transaction in page {
                transactions += usize::from(note(&mut charges, transaction.movement, is_ours));
            }
        };
        Ok(Sides { payments, paid: paid.into_iter().collect(), provider, transactions })
    }
}

/// Whether it is a movement of this shop's money.
fn note(
    charges: &mut HashMap<String, AtProvider>,
    movement: Movement,
    is_ours: impl Fn(&str) -> bool,
) -> bool {
    match movement {
        Movement::Charge(charge) => {
            let counts = charge.status == ChargeStatus::Succeeded && is_ours(&charge.reference);
            if counts {
                let id = charge.id.clone();
                charges.insert(id, AtProvider { charge, refunded_cents: 0 });
            }
            counts
        }
        Movement::Refund(refund) => {
            let charge = charges.get_mut(&refund.charge);
            charge.map(|charge| charge.refunded_cents += refund.amount_cents).is_some()
        }
    }
}

impl Sides {
    fn compare(self) -> Books {
        let sum = |states: &[PaymentState]| {
            let some = self.payments.iter().filter(|payment| states.contains(&payment.state));
            some.map(|payment| payment.amount_cents).sum()
        };
        let mut books = Books {
            captured_cents: sum(&[Captured, Refunding, Refunded]),
            refunded_cents: sum(&[Refunded]),
            ..Books::default()
        };
        for payment in self.payments.iter().filter(|payment| payment.state == Refunding) {
            match payment {
                Payment { refused: None, .. } => books.under_way += 1,
                Payment { refused: Some(why), charge_id, order_id: order, .. } => {
                    let charge = charge_id.as_deref().unwrap_or(&payment.reference);
                    books
                        .drift
                        .push(format!("{charge}: its refund for order {order} is refused: {why}"));
                }
            }
        }
        self.orders_against_ledger(&mut books);
        self.ledger_against_provider(&mut books);
        books.quiescent = books.under_way == 0;
        let kept = books.captured_cents - books.refunded_cents;
        if books.quiescent && books.drift.is_empty() && kept != books.paid_cents {
            let paid = books.paid_cents;
            books.drift.push(format!("{kept} captured and not refunded, {paid} paid by orders"));
        }
        books
    }

    fn orders_against_ledger(&self, books: &mut Books) {
        let mut kept = HashMap::new();
        for payment in self.payments.iter().filter(|payment| payment.state == Captured) {
            let Payment { order_id: order, amount_cents: amount, reference, .. } = payment;
            kept.insert(*order, *amount);
            if !self.paid.contains_key(order) {
                books.drift.push(format!(
                    "{reference}: {amount} captured for order {order}, which is not paid"
                ));
            }
        }
        let returned = self.payments.iter().filter(|payment| payment.is_returned);
        let returned: HashSet<i64> = returned.map(|payment| payment.order_id).collect();
        for (order, price) in &self.paid {
            match kept.get(order) {
                Some(amount) if amount == price => books.paid_cents += price,
                Some(amount) => {
                    books
                        .drift
                        .push(format!("order {order}: {amount} captured, its price is {price}"));
                }
                None if returned.contains(order) => {}
                None => {
                    books.drift.push(format!("order {order} is paid, and nothing was captured"))
                }
            }
        }
    }

    fn ledger_against_provider(&self, books: &mut Books) {
        let Some(charges) = &self.provider else {
            if self.payments.iter().any(|payment| payment.real_charge().is_some()) {
                // The same words at each reading, however many there are by then.
                let drift =
                    "payments were captured by a provider that is not configured (PAYMENT_URL)";
                books.drift.push(drift.to_owned());
            }
            return;
        };
        let mut side = ProviderSide { transactions: self.transactions, ..ProviderSide::default() };
        let known = self.payments.iter().filter_map(|one| Some((one.charge_id.as_ref()?, one)));
        let known: HashMap<_, _> = known.collect();
        let open = self.payments.iter().filter(|one| one.charge_id.is_none());
        let open: HashMap<_, _> = open.map(|one| (one.reference.as_str(), one)).collect();
        for (id, there) in charges {
            side.captured_cents += there.charge.amount_cents;
            side.refunded_cents += there.refunded_cents;
            let here = known.get(id).or_else(|| open.get(there.charge.reference.as_str()));
            books.under_way += there.against(here.copied(), &mut books.drift);
        }
        for here in &self.payments {
            if let Some(id) = here.real_charge()
                && !charges.contains_key(id)
            {
                let (amount, order) = (here.amount_cents, here.order_id);
                books.drift.push(format!(
                    "{id}: {amount} captured for order {order}, and unknown to the provider"
                ));
            }
        }
        books.provider = Some(side);
    }
}

impl AtProvider {
    /// Whether this charge (1) or nothing (0) is under way; names what differs.
    fn against(&self, here: Option<&Payment>, drift: &mut Vec<String>) -> usize {
        let Self { charge, refunded_cents: refunded } = self;
        let (id, amount) = (&charge.id, charge.amount_cents);
        let Some(here) = here else {
            let reference = &charge.reference;
            drift.push(format!("{id}: {amount} captured for {reference}, and not in the ledger"));
            return 0;
        };
        let (order, ours) = (here.order_id, here.amount_cents);
        if amount != ours {
            drift.push(format!("{id}: {amount} captured for order {order}, {ours} in the ledger"));
        }
        let expected = if here.state == Refunded { ours } else { 0 };
        match here.state {
            Pending => return 1,
            Declined => {
                drift.push(format!("{id}: {amount} captured for order {order}, failed here"));
            }
            // Its refund may be done there.
            Refunding => {}
            Captured | Refunded if *refunded != expected => drift.push(format!(
                "{id}: {refunded} refunded of order {order}, {expected} in the ledger"
            )),
            Captured | Refunded => {}
        }
        0
    }
}

impl fmt::Display for Books {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match (self.ok, self.quiescent) {
            (true, true) => "ok",
            (true, false) => "ok so far (payments are under way)",
            (false, _) => "BROKEN",
        };
        let Self { captured_cents, refunded_cents, paid_cents, drift, .. } = self;
        write!(
            f,
            "books: {verdict} (captured {captured_cents}, refunded {refunded_cents}, paid orders \
             {paid_cents})"
        )?;
        drift.iter().try_for_each(|drift| write!(f, "\n       - {drift}"))
    }
}
