//! Each order that was promised is there, each was asked for, and no two share an id.

use super::*;

pub(super) fn accepted_is_one_row(case: &Case, found: &mut Found) {
    let mut lost = HashSet::new();
    for one in case.evidence.history.of_kind(Kind::Buy) {
        let names_an_order = one.answer.is_accepted() || one.answer == Answer::AlreadyOrdered;
        if !names_an_order {
            continue;
        }
        match case.rows.get(&one.order) {
            Some(row) if case.belongs_to(row, one) => {}
            Some(row) => found.add(format!("{one} names an order of others: {row:?}")),
            None if case.may_be_gone(one) => {
                lost.insert(one.order);
            }
            None => found.add(format!("{one} has no row")),
        }
    }
    // Even the documented loss has a measure: what was on its way, not what had settled.
    let history = &case.evidence.history;
    let accepted = history.count(|one| one.answer == Answer::Accepted);
    if lost.len() * 5 > accepted {
        let lost = lost.len();
        found.add(format!("{lost} of {accepted} accepted orders have no row"));
    }
}

pub(super) fn no_row_without_attempt(case: &Case, found: &mut Found) {
    // Of a user and sale: orders named to them, and attempts that may be orders unknown to them.
    #[derive(Default)]
    struct Attempts {
        named: HashSet<i64>,
        open: usize,
    }
    let mut attempts: HashMap<(u32, u8), Attempts> = HashMap::new();
    for one in case.evidence.history.of_kind(Kind::Buy) {
        let of_user = attempts.entry((one.user, one.sale)).or_default();
        if one.answer.is_accepted() {
            of_user.named.insert(one.order);
        } else if one.answer.leaves_open_whether() {
            of_user.open += 1;
        }
    }
    let mut unnamed: HashMap<(u32, u8), Vec<&Row>> = HashMap::new();
    for row in &case.evidence.rows {
        let (Some(user), Some(sale)) = (case.user_of(row), case.sales.get(&row.sale)) else {
            found.add(format!("somebody who never asked for anything has {row:?}"));
            continue;
        };
        let named = attempts.get(&(user, *sale));
        if !named.is_some_and(|of_user| of_user.named.contains(&row.id)) {
            unnamed.entry((user, *sale)).or_default().push(row);
        }
    }
    for ((user, sale), rows) in unnamed {
        let open = attempts.get(&(user, sale)).map_or(0, |of_user| of_user.open);
        if rows.len() > open {
            let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
            found.add(format!(
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
            found.add(format!("{earlier} and {one}"));
        }
    }
}
