//! Units: none too many, none twice, none lost, none left over.

use super::{Case, Found};
use crate::support::history::{Answer, Kind};
use flash_sale::domain::OrderStatus;
use std::collections::{HashMap, HashSet};

pub(super) fn no_oversell(case: &Case, found: &mut Found) {
    for look in &case.evidence.snapshots {
        if look.live > look.stock {
            found.add(format!(
                "at {:.3} s sale {} had {} live orders on a stock of {}",
                look.at as f64 / 1e6,
                look.sale,
                look.live,
                look.stock
            ));
        }
    }
    let mut live: HashMap<i64, i64> = HashMap::new();
    for row in case.evidence.rows.iter().filter(|row| row.is_live()) {
        *live.entry(row.sale).or_default() += 1;
    }
    for sale in &case.evidence.sales {
        let live = live.get(&sale.id).copied().unwrap_or(0);
        if live > sale.stock {
            found.add(format!(
                "in the end sale {} ({}) has {live} live orders on a stock of {}",
                sale.id, sale.name, sale.stock
            ));
        }
    }
}

pub(super) fn no_duplicate(case: &Case, found: &mut Found) {
    for look in &case.evidence.snapshots {
        if look.users_over_limit > 0 {
            found.add(format!(
                "at {:.3} s {} users of sale {} held more live orders than it allows",
                look.at as f64 / 1e6,
                look.users_over_limit,
                look.sale
            ));
        }
    }
    let mut held: HashMap<(i64, u128), Vec<i64>> = HashMap::new();
    for row in case.evidence.rows.iter().filter(|row| row.is_live()) {
        held.entry((row.sale, row.user)).or_default().push(row.id);
    }
    for ((sale, user), orders) in held {
        let facts = case.sales.get(&sale).and_then(|index| case.sale(*index));
        let limit = facts.map_or(1, |facts| facts.per_user_limit);
        if orders.len() as i64 > limit {
            let user = uuid::Uuid::from_u128(user);
            found.add(format!(
                "in the end user {user} holds {orders:?} of sale {sale}, whose limit is {limit}"
            ));
        }
    }
}

/// I4, three times: by Postgres' own numbers, by Redis' own, and by comparing which orders they know;
/// and once more by the program's audit.
pub(super) fn conservation(case: &Case, found: &mut Found) {
    let mut in_postgres: HashMap<i64, HashSet<i64>> = HashMap::new();
    for row in case.evidence.rows.iter().filter(|row| row.is_live()) {
        in_postgres.entry(row.sale).or_default().insert(row.id);
    }
    let none = HashSet::new();
    for (sale, index) in case.evidence.sales.iter().zip(0u8..) {
        let (least, most) = stock_by_the_operator(case, index, sale.first_stock);
        if !(least..=most).contains(&sale.stock) {
            found.add(format!(
                "sale {} ({}): a stock of {}, but what the operator was told makes {least} to {most}",
                sale.id, sale.name, sale.stock
            ));
        }
        let live = in_postgres.get(&sale.id).unwrap_or(&none);
        if sale.taken != live.len() as i64 {
            found.add(format!(
                "sale {} ({}): postgres counts {} units as taken, {} orders are live",
                sale.id,
                sale.name,
                sale.taken,
                live.len()
            ));
        }
        let Some(redis) = case.evidence.redis.iter().find(|one| one.sale == sale.id) else {
            found.add(format!("sale {} ({}) is not in redis", sale.id, sale.name));
            continue;
        };
        let held: HashSet<i64> = redis.live.iter().map(|(_, order)| *order).collect();
        let sum = redis.remaining + held.len() as i64;
        if redis.stock != sale.stock || sum != redis.stock {
            found.add(format!(
                "sale {} ({}): stock {} in postgres, {} in redis, which has {} remaining and {} held",
                sale.id, sale.name, sale.stock, redis.stock, redis.remaining, held.len()
            ));
        }
        let (lost, extra): (Vec<_>, Vec<_>) = (
            live.difference(&held).collect(),
            held.difference(live).collect(),
        );
        if !lost.is_empty() || !extra.is_empty() {
            found.add(format!(
                "sale {} ({}): {} live orders only in postgres (such as {:?}), {} only in redis (such as {:?})",
                sale.id,
                sale.name,
                lost.len(),
                lost.first(),
                extra.len(),
                extra.first()
            ));
        }
    }
    for audit in &case.evidence.audits {
        if !audit.ok || audit.conserved != Some(true) {
            found.add(format!(
                "the audit of sale {}: ok {}, conserved {:?}: {}",
                audit.sale, audit.ok, audit.conserved, audit.problems
            ));
        }
    }
}

/// What the stock can be after the changes that were confirmed, and those of which nobody knows.
fn stock_by_the_operator(case: &Case, sale: u8, first: i64) -> (i64, i64) {
    let (mut least, mut most) = (first, first);
    for one in case.operations().iter().filter(|one| one.sale == sale) {
        let Kind::AddStock(add) = one.kind else {
            continue;
        };
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
        let paid = case.evidence.rows.iter();
        let paid = paid.filter(|row| row.sale == sale.id && row.status == OrderStatus::Paid);
        let paid = paid.count() as i64;
        if paid < sale.stock {
            found.add(format!(
                "sale {} ({}) told buyers that it is sold out, but only {paid} of {} are paid",
                sale.id, sale.name, sale.stock
            ));
        }
    }
}

pub(super) fn terminal_in_time(case: &Case, found: &mut Found) {
    let settled = &case.evidence.settled;
    if settled.after.is_none() {
        found.add(format!(
            "{:.0?} after healing there still was: {}",
            settled.limit, settled.still
        ));
    }
    let open = |row: &&super::Row| !row.status.is_terminal();
    let open: Vec<i64> = (case.evidence.rows.iter().filter(open))
        .map(|row| row.id)
        .collect();
    if let Some(first) = open.first() {
        let count = open.len();
        found.add(format!("{count} orders are not terminal, such as {first}"));
    }
    let waiting: i64 = case.evidence.redis.iter().map(|one| one.pending).sum();
    let entries: i64 = case.evidence.redis.iter().map(|one| one.log_entries).sum();
    if waiting != 0 || entries != 0 || case.evidence.outbox != 0 {
        found.add(format!(
            "{waiting} orders in {entries} log entries are not written, {} units not returned",
            case.evidence.outbox
        ));
    }
}
