//! Units: none too many, none twice, none lost, none left over.

use super::*;

pub(super) fn no_oversell(case: &Case, found: &mut Found) {
    for look in &case.evidence.snapshots {
        let (at, sale, live, stock) = (look.at as f64 / 1e6, look.sale, look.live, look.stock);
        if live > stock {
            found.push(format!("at {at:.3} s sale {sale}: {live} live on a stock of {stock}"));
        }
    }
    for SaleFacts { id, name, stock, .. } in &case.evidence.sales {
        let live = case.live(*id).count() as i64;
        if live > *stock {
            found.push(format!("in the end sale {id} ({name}): {live} live on a stock of {stock}"));
        }
    }
}

pub(super) fn no_duplicate(case: &Case, found: &mut Found) {
    for look in &case.evidence.snapshots {
        let (at, sale, users) = (look.at as f64 / 1e6, look.sale, look.users_over_limit);
        if users > 0 {
            found.push(format!("at {at:.3} s {users} users of sale {sale} held more than allowed"));
        }
    }
    let mut held: HashMap<(i64, UserId), Vec<i64>> = HashMap::new();
    for row in case.evidence.rows.iter().filter(|row| row.is_live()) {
        let orders = held.entry((row.sale, row.user)).or_default();
        orders.push(row.id);
        let limit = case.sale_of(row).map_or(1, |sale| sale.per_user_limit);
        if orders.len() as i64 > limit {
            let Row { sale, user, .. } = row;
            found.push(format!("user {user} holds {orders:?} of sale {sale}, limit {limit}"));
        }
    }
}

/// By Postgres' own numbers, by Redis' own, by the orders that each knows, and by the audit.
pub(super) fn conservation(case: &Case, found: &mut Found) {
    for (sale, index) in case.evidence.sales.iter().zip(0u8..) {
        let what = format!("sale {} ({})", sale.id, sale.name);
        let (least, most) = stock_by_the_operator(case, index, sale.first_stock);
        let (stock, taken) = (sale.stock, sale.taken);
        if !(least..=most).contains(&stock) {
            found.push(format!("{what}: stock {stock}, operator's changes: {least} to {most}"));
        }
        let live: HashSet<_> = case.live(sale.id).map(|row| (row.user, row.id)).collect();
        if taken != live.len() as i64 {
            found.push(format!("{what}: {taken} taken in postgres, {} orders live", live.len()));
        }
        let Some(redis) = case.evidence.redis.iter().find(|one| one.sale == sale.id) else {
            found.push(format!("{what} is not in redis"));
            continue;
        };
        let held: HashSet<_> = redis.live.iter().copied().collect();
        let (in_redis, remaining, holds) = (redis.stock, redis.remaining, held.len());
        if in_redis != stock || remaining + holds as i64 != in_redis {
            found.push(format!(
                "{what}: stock {stock} in postgres, {in_redis} in redis, which has {remaining} \
                 remaining and {holds} held"
            ));
        }
        let lost: Vec<_> = live.difference(&held).collect();
        let extra: Vec<_> = held.difference(&live).collect();
        if !lost.is_empty() || !extra.is_empty() {
            let [lost, extra] = [lost, extra].map(|all| (all.len(), all.first().copied()));
            found.push(format!(
                "{what}: live orders, and one of them: only in postgres {lost:?}, only in redis \
                 {extra:?}"
            ));
        }
    }
    for audit in &case.evidence.audits {
        if audit["ok"] != true || audit["conserved"] != true {
            found.push(format!("the audit says {audit}"));
        }
    }
}

fn stock_by_the_operator(case: &Case, sale: u8, first: i64) -> (i64, i64) {
    let (mut least, mut most) = (first, first);
    for one in case.operations().iter().filter(|one| one.sale == sale) {
        let Kind::AddStock(add) = one.kind else { continue };
        let add = i64::from(add);
        if one.answer == Answer::Done {
            (least, most) = (least + add, most + add);
        } else if one.answer.leaves_open_whether() {
            (least, most) = (least + add.min(0), most + add.max(0));
        }
    }
    (least, most)
}

/// I5. Only where demand was certain: more buyers than units, until they heard "sold out".
pub(super) fn no_undersell(case: &Case, found: &mut Found) {
    for sale in case.evidence.sales.iter().filter(|sale| sale.sold_off) {
        let paid = case.live(sale.id).filter(|row| row.status == OrderStatus::Paid).count() as i64;
        if paid < sale.stock {
            found.push(format!(
                "sale {} ({}) told buyers that it is sold out, but only {paid} of {} are paid",
                sale.id, sale.name, sale.stock
            ));
        }
    }
}

pub(super) fn terminal_in_time(case: &Case, found: &mut Found) {
    found.extend(case.evidence.late.iter().cloned());
    let settled = &case.evidence.settled;
    if settled.after.is_none() {
        let (limit, still) = (settled.limit, &settled.still);
        found.push(format!("{limit:.0?} after healing there still was: {still}"));
    }
    let open = |row: &&Row| !row.status.is_terminal();
    let open: Vec<&Row> = case.evidence.rows.iter().filter(open).collect();
    if let Some(Row { id, .. }) = open.first() {
        found.push(format!("{} orders are not terminal, such as {id}", open.len()));
    }
    let waiting: i64 = case.evidence.redis.iter().map(|one| one.pending).sum();
    let entries: i64 = case.evidence.redis.iter().map(|one| one.log_entries).sum();
    let outbox = case.evidence.outbox;
    if waiting != 0 || entries != 0 || outbox != 0 {
        found.push(format!(
            "{waiting} orders in {entries} log entries are not written, {outbox} units not returned"
        ));
    }
}
