//! `bucketed`: the stock is split into buckets in Redis, and an empty bucket borrows.

use crate::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static RESERVE: LuaScript = lua!("reserve.lua");
static BORROW: LuaScript = lua!("borrow.lua");

pub struct Node {
    /// The key of each bucket, and whether it was seen empty: units never come back.
    buckets: Vec<(String, AtomicBool)>,
}

pub async fn open(bench: &Bench) -> Result<Node> {
    let (count, stock) = (bench.whole("buckets").max(1), i64::from(bench.stock()));
    let mut buckets = Vec::new();
    for number in 0..count {
        let units = bench.key(&format!("bucket:{number}"));
        let share = stock / count + i64::from(number < stock % count);
        let _: bool = bench.redis("SETNX", (&units, share)).await?;
        buckets.push((units, AtomicBool::new(false)));
    }
    Ok(Node { buckets })
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        let buckets = &self.buckets;
        if buckets.iter().all(|(_, empty)| empty.load(Relaxed)) {
            return Ok(Outcome::SoldOut); // nobody has to be asked
        }
        let home = hash_of(&buyer.name) as usize % buckets.len();
        let (units, buyers) = (&buckets[home].0, format!("{}:buyers", buckets[home].0));
        let reserve = RESERVE.on(&[units, &buyers]).arg(&buyer.name).arg(bench.per_user_limit());
        let reserved: i32 = bench.line.send(&reserve).await?;
        if reserved == 2 {
            return Ok(Outcome::Duplicate);
        }
        // The buyer stays noted at home meanwhile: a second click must not borrow as well.
        if reserved == 0 && !self.borrow(bench, home).await? {
            let _: i64 = bench.redis("HINCRBY", (buyers, &buyer.name, -1)).await?;
            return Ok(Outcome::SoldOut);
        }
        bench.crash_point("the unit is taken").await;
        bench.interleave("the unit is taken").await;

        //= FLAW the unit is taken, the order is another step: a crash before it loses the unit
        bench.write_order(&mut bench.sql().await?, buyer).await
    }
}

impl Node {
    /// The home bucket is empty: takes a unit from another one.
    async fn borrow(&self, bench: &Bench, home: usize) -> Result<bool> {
        let buckets = &self.buckets;
        buckets[home].1.store(true, Relaxed);
        bench.interleaving_point("the home bucket is empty").await;
        //= FLAW without borrowing this is "sold out", whatever the other buckets have
        if bench.choice("borrow") == "off" {
            return Ok(false);
        }
        let others = buckets[home..].iter().chain(&buckets[..home]);
        for (units, empty) in others.filter(|(_, empty)| !empty.load(Relaxed)) {
            //= CURE ask every bucket that may have one; units never come back to an empty one
            if bench.line.send(&BORROW.on(&[units])).await? {
                return Ok(true);
            }
            empty.store(true, Relaxed);
        }
        Ok(false)
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "bucketed",
    family: Family::Split,
    promise: Promise::everywhere(Harms::UNSOLD),
    options: &[whole("buckets", (8, 1, 64)), choice("borrow", &["on", "off"])],
    crash_points: &["the unit is taken"],
    demonstrations: &[
        show("no-borrowing", Undersells, EIGHT.options(&[("borrow", "off")])).at(2),
        show("borrowing", Holds, EIGHT).at(3),
        show("crash", Undersells, ONE_BY_ONE.options(UNIT_LOST)).at(1),
    ],
    scripts: &[script!("reserve.lua"), script!("borrow.lua")],
    ..Strategy::PLAIN
};

const EIGHT: Scenario = SMALL.stock(8).buyers(8);
