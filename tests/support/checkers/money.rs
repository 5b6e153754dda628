//! I13, charge by charge: the provider's own list against orders, ledger, and what was told.

use super::*;

#[derive(Debug, Clone, Default)]
pub struct Charge {
    pub order: i64,
    pub cents: i64,
    pub refunds: Vec<i64>,
}

#[derive(Debug, Clone)]
pub struct LedgerRow {
    pub order: i64,
    pub cents: i64,
    pub state: String,
    pub charge: Option<String>,
}

/// What the buyer of an order was told for certain, and what an operator asked for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Told {
    pub paid: bool,
    pub cancelled: bool,
    pub may_be_refunded: bool,
    /// With its unit.
    pub refunded: bool,
    pub user: u32,
    /// In the end: whether the shop shows the payment as captured.
    pub shows_captured: Option<bool>,
}

#[derive(Debug, Clone, Default)]
pub struct Money {
    /// By the provider's name for it.
    pub charges: BTreeMap<String, Charge>,
    pub ledger: Vec<LedgerRow>,
    /// Status and price.
    pub orders: BTreeMap<i64, (OrderStatus, i64)>,
    pub told: BTreeMap<i64, Told>,
    /// The program's own comparison, as each instance answers it.
    pub books: Vec<Value>,
}

impl Money {
    fn status(&self, order: i64) -> Option<OrderStatus> {
        self.orders.get(&order).map(|(status, _)| *status)
    }

    fn told(&self, order: i64) -> Told {
        self.told.get(&order).copied().unwrap_or_default()
    }

    /// Captured and not refunded, in cents.
    fn kept(&self) -> i64 {
        self.charges.values().map(|one| one.cents - one.refunds.iter().sum::<i64>()).sum()
    }
}

pub(super) fn has_an_order(case: &Case, found: &mut Found) {
    let money = &case.evidence.money;
    for (id, charge) in money.charges.iter().filter(|(_, charge)| charge.refunds.is_empty()) {
        let status = money.status(charge.order);
        if status != Some(OrderStatus::Paid) {
            found.push(format!("{id} is kept, its order is {status:?}: {charge:?}"));
        }
    }
}

pub(super) fn is_there(case: &Case, found: &mut Found) {
    let money = &case.evidence.money;
    let mut kept: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for charge in money.charges.values().filter(|charge| charge.refunds.is_empty()) {
        kept.entry(charge.order).or_default().push(charge.cents);
    }
    let paid = money.orders.iter().filter(|(_, (status, _))| *status == OrderStatus::Paid);
    for (order, (_, price)) in paid {
        let kept = kept.get(order).map_or(&[][..], |kept| kept);
        if kept != [*price] && !(kept.is_empty() && money.told(*order).may_be_refunded) {
            found.push(format!("order {order} is paid: its price is {price}, kept are {kept:?}"));
        }
    }
}

pub(super) fn goes_back_once(case: &Case, found: &mut Found) {
    for (id, charge) in &case.evidence.money.charges {
        if !charge.refunds.is_empty() && charge.refunds != [charge.cents] {
            found.push(format!("{id} was not refunded whole and once: {charge:?}"));
        }
    }
}

pub(super) fn was_told(case: &Case, found: &mut Found) {
    let money = &case.evidence.money;
    for (order, told) in &money.told {
        let status = money.status(*order);
        let is_kept = match told {
            Told { refunded: true, .. } | Told { cancelled: true, .. } => {
                status == Some(OrderStatus::Cancelled)
            }
            Told { may_be_refunded: true, .. } | Told { paid: false, .. } => true,
            Told { paid: true, .. } => status == Some(OrderStatus::Paid),
        };
        let mut kept = money.charges.values().filter(|charge| charge.refunds.is_empty());
        let shows = told.shows_captured;
        let is_shown = shows.is_none_or(|shows| shows == kept.any(|one| one.order == *order));
        if !is_kept || !is_shown || told.paid && told.cancelled {
            found.push(format!("order {order} is {status:?}: {told:?}"));
        }
    }
}

pub(super) fn is_booked(case: &Case, found: &mut Found) {
    let money = &case.evidence.money;
    let mut rows = HashMap::new();
    for row in &money.ledger {
        let is_money = ["captured", "refunding", "refunded"].contains(&&*row.state);
        let charge = row.charge.as_ref().filter(|id| money.charges.contains_key(*id));
        if is_money && charge.is_none() {
            found.push(format!("the provider knows nothing of {row:?}"));
        }
        rows.extend(charge.map(|id| (id, row)));
    }
    for (id, charge) in &money.charges {
        let state = if charge.refunds.is_empty() { "captured" } else { "refunded" };
        let is_right = |row: &&LedgerRow| {
            (row.order, row.cents, &*row.state) == (charge.order, charge.cents, state)
        };
        if !rows.get(id).is_some_and(is_right) {
            found.push(format!("{id} is {state}: {charge:?}, but here {:?}", rows.get(id)));
        }
    }
    for books in &money.books {
        let side = &books["provider"];
        let kept = side["captured_cents"].as_i64().zip(side["refunded_cents"].as_i64());
        let kept = kept.map(|(captured, refunded)| captured - refunded);
        let agrees = [kept, books["paid_cents"].as_i64()] == [Some(money.kept()); 2];
        if books["ok"] != true || books["quiescent"] != true || !agrees {
            found.push(format!("{} cents were kept, and the books say {books}", money.kept()));
        }
    }
}
