//! What was confirmed stays, the same question has the same answer, and orders are private.

use super::*;

/// queued → pending_payment → one of the ends.
fn rank(status: OrderStatus) -> u8 {
    match status {
        OrderStatus::Queued => 0,
        OrderStatus::PendingPayment => 1,
        _ => 2,
    }
}

/// What an operation showed its owner of the order: `None` if nothing.
fn shown(one: &Operation) -> Option<OrderStatus> {
    match (one.kind, one.answer) {
        (Kind::Buy, Answer::Accepted) => Some(OrderStatus::Queued),
        (Kind::Read | Kind::Pay | Kind::Cancel, Answer::Order(status)) => Some(status),
        _ => None,
    }
}

pub(super) fn nothing_reverts(case: &Case, found: &mut Found) {
    let mut of_order: HashMap<i64, Vec<&Operation>> = HashMap::new();
    for one in case.operations() {
        let about_own = matches!(one.kind, Kind::Buy | Kind::Read | Kind::Pay | Kind::Cancel);
        let tells = shown(one).is_some() || one.answer == Answer::OrderNotFound;
        if about_own && tells && one.order != NO_ORDER {
            of_order.entry(one.order).or_default().push(one);
        }
    }
    for (order, mut operations) in of_order {
        operations.sort_by_key(|one| one.completed);
        let end = case.rows.get(&order).map(|row| row.status);
        // The most advanced answer before each; by invocation, answers join as they were completed.
        let mut by_invocation = operations.clone();
        by_invocation.sort_by_key(|one| one.invoked);
        let mut completed = operations.iter().peekable();
        let mut furthest: Option<(&Operation, OrderStatus)> = None;
        for later in by_invocation {
            while let Some(earlier) = completed.next_if(|earlier| earlier.is_before(later)) {
                if let Some(status) = shown(earlier)
                    && furthest.is_none_or(|(_, known)| rank(status) > rank(known))
                {
                    furthest = Some((*earlier, status));
                }
            }
            let Some((earlier, known)) = furthest else { continue };
            let goes_back = match shown(later) {
                Some(_) if later.kind == Kind::Buy => false,
                Some(status) => {
                    rank(status) < rank(known) || (known.is_terminal() && status != known)
                }
                // While Redis has lost its log, an unwritten order may be out of sight.
                None => !(case.evidence.redis_lost_data && known == OrderStatus::Queued),
            };
            if goes_back {
                found.push(format!("{earlier} and later {later}"));
            }
        }
        // Whatever the times: an order has one end, and what was shown of it is in the database.
        for one in operations {
            let Some(status) = shown(one) else { continue };
            if status.is_terminal() && end != Some(status) {
                found.push(format!("{one}, but its row is {end:?}"));
            }
        }
    }
    for row in &case.evidence.rows {
        if row.has_payment != (row.status == OrderStatus::Paid) {
            found.push(format!("its payment is not that of {row:?}"));
        }
    }
}

pub(super) fn same_key_same_order(case: &Case, found: &mut Found) {
    let mut of_key: HashMap<(u32, u32, u8), Vec<&Operation>> = HashMap::new();
    for one in case.evidence.history.of_kind(Kind::Buy) {
        if one.key != NO_KEY {
            of_key.entry((one.user, one.key, one.sale)).or_default().push(one);
        }
    }
    for mut attempts in of_key.into_values() {
        attempts.sort_by_key(|one| one.completed);
        let Some(first) = attempts.iter().find(|one| one.answer.is_accepted()) else { continue };
        // After a loss a retry may get a new order or a refusal, if its own was rejected or lost.
        let gave_way = |order: i64| match case.rows.get(&order) {
            Some(row) => case.evidence.redis_lost_data && row.status == OrderStatus::Rejected,
            None => case.evidence.may_lose_accepted,
        };
        for one in &attempts {
            let differs = one.answer.is_accepted() && one.order != first.order;
            if differs && !gave_way(first.order) && !gave_way(one.order) {
                found.push(format!("{first} and {one}"));
            }
            let stands = attempts.iter().find(|earlier| {
                earlier.answer.is_accepted() && earlier.is_before(one) && !gave_way(earlier.order)
            });
            if let Some(earlier) = stands
                && one.answer.is_refused()
                && !case.evidence.may_lose_accepted
            {
                let end = case.rows.get(&earlier.order).map(|row| row.status);
                found.push(format!("{earlier}, whose row is {end:?}, and later {one}"));
            }
        }
    }
}

pub(super) fn orders_are_private(case: &Case, found: &mut Found) {
    for one in case.evidence.history.of_kind(Kind::Pry) {
        if matches!(one.answer, Answer::Order(_) | Answer::Conflict) {
            found.push(format!("{one}: an order of somebody else"));
        }
    }
}

pub(super) fn documented_answers(case: &Case, found: &mut Found) {
    for one in case.operations() {
        if let Answer::Undocumented(status) = one.answer {
            found.push(format!("{one} (status {status})"));
        }
    }
}
