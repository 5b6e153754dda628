//! Each order that was promised is there, each was asked for, and no two share an id.

use super::*;

pub(super) fn accepted_is_one_row(case: &Case, found: &mut Found) {
    let mut lost = HashSet::new();
    for one in case.evidence.history.of_kind(Kind::Buy) {
        if !one.answer.is_accepted() && one.answer != Answer::AlreadyOrdered {
            continue;
        }
        match case.rows.get(&one.order) {
            Some(row) if case.belongs_to(row, one) => {}
            Some(row) => found.push(format!("{one} names an order of others: {row:?}")),
            None if case.may_be_gone(one) => {
                lost.insert(one.order);
            }
            None => found.push(format!("{one} has no row")),
        }
    }
    // Even the documented loss has a measure: what was on its way, not what had settled.
    let history = &case.evidence.history;
    let accepted = history.count(|one| one.answer == Answer::Accepted);
    if lost.len() * 5 > accepted {
        found.push(format!("{} of {accepted} accepted orders have no row", lost.len()));
    }
}

pub(super) fn no_row_without_attempt(case: &Case, found: &mut Found) {
    // Orders named to a user of a sale, and attempts that may be orders unknown to them.
    let mut named: HashSet<(u32, u8, i64)> = HashSet::new();
    let mut open: HashMap<(u32, u8), usize> = HashMap::new();
    for one in case.evidence.history.of_kind(Kind::Buy) {
        if one.answer.is_accepted() {
            named.insert((one.user, one.sale, one.order));
        } else if one.answer.leaves_open_whether() {
            *open.entry((one.user, one.sale)).or_default() += 1;
        }
    }
    let mut unnamed: HashMap<(u32, u8), Vec<i64>> = HashMap::new();
    for row in &case.evidence.rows {
        let Some((user, sale)) = case.user_of(row).zip(case.sales.get(&row.sale).copied()) else {
            found.push(format!("somebody who never asked for anything has {row:?}"));
            continue;
        };
        if !named.contains(&(user, sale, row.id)) {
            unnamed.entry((user, sale)).or_default().push(row.id);
        }
    }
    for ((user, sale), ids) in unnamed {
        let open = open.get(&(user, sale)).copied().unwrap_or(0);
        if ids.len() > open {
            found.push(format!(
                "user {user} has orders {ids:?} of sale {sale} that nobody named to them, \
                 but only {open} attempts without a clear answer"
            ));
        }
    }
}

pub(super) fn unique_ids(case: &Case, found: &mut Found) {
    let mut first: HashMap<i64, &Operation> = HashMap::new();
    for one in case.evidence.history.of_kind(Kind::Buy) {
        // A replay and `already_ordered` name an order again, on purpose.
        if one.answer != Answer::Accepted || one.order == NO_ORDER {
            continue;
        }
        let purchase = |one: &Operation| (one.key, one.user, one.sale);
        if let Some(earlier) = first.insert(one.order, one)
            && (one.key == NO_KEY || purchase(one) != purchase(earlier))
        {
            found.push(format!("{earlier} and {one}"));
        }
    }
}
