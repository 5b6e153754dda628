//! `bucketed`: the stock is split into buckets in Redis, and an empty bucket borrows before it
//!     refuses.

use crate::prelude::*;
use locks::wire::{Line, LuaScript};
use redis::cmd;
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

static RESERVE: LuaScript = LuaScript::new("reserve.lua", include_str!("scripts/reserve.lua"));
static BORROW_ONE: LuaScript = LuaScript::new("borrow.lua", include_str!("scripts/borrow.lua"));

struct Node {
    redis: Line,
    buckets: Vec<Bucket>,
    stand: Stand,
}

struct Bucket {
    units: String,
    buyers: String,
    /// Seen empty. Units never come back, so this need not be asked again.
    empty: AtomicBool,
}

pub fn open(stand: Stand) -> Opening {
    opening(async move {
        let redis = stand.line().clone();
        let (count, stock) = (stand.whole("buckets").max(1), i64::from(stand.stock()));
        let mut buckets = Vec::new();
        for number in 0..count {
            let bucket = Bucket {
                units: stand.key(&format!("bucket:{number}")),
                buyers: stand.key(&format!("bucket:{number}:buyers")),
                empty: AtomicBool::new(false),
            };
            let share = stock / count + i64::from(number < stock % count);
            let mut install = cmd("SETNX");
            let _: bool = redis.send(install.arg(&bucket.units).arg(share)).await?;
            buckets.push(bucket);
        }
        Ok(Node { redis, buckets, stand })
    })
}

impl Node {
    fn home_of(&self, buyer: &Buyer) -> usize {
        let mut hasher = DefaultHasher::new();
        buyer.name.hash(&mut hasher);
        (hasher.finish() % self.buckets.len().max(1) as u64) as usize
    }

    /// Takes a unit from whichever other bucket has one.
    async fn borrow(&self, home: usize) -> Result<bool, Trouble> {
        let (before, after) = self.buckets.split_at(home);
        for bucket in after.iter().chain(before).skip(1) {
            if bucket.empty.load(Relaxed) {
                continue;
            }
            if self.redis.run(&BORROW_ONE.on(&[&bucket.units])).await? {
                return Ok(true);
            }
            bucket.empty.store(true, Relaxed);
        }
        Ok(false)
    }
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        if self.buckets.iter().all(|bucket| bucket.empty.load(Relaxed)) {
            return Ok(Outcome::SoldOut); // nobody has to be asked
        }
        let number = self.home_of(buyer);
        let home = &self.buckets[number];
        let reserve = RESERVE.on(&[&home.units, &home.buyers]);
        let reserve = reserve.arg(&buyer.name).arg(stand.per_user_limit());
        match self.redis.run(&reserve).await? {
            1 => {}
            2 => return Ok(Outcome::Duplicate),
            _ => {
                home.empty.store(true, Relaxed);
                stand.meet("the home bucket is empty").await;
                // The buyer stays noted meanwhile: a second click must not borrow as well.
                if stand.choice("borrow") == "off" || !self.borrow(number).await? {
                    let mut forget = cmd("HINCRBY");
                    let forget = forget.arg(&home.buyers).arg(&buyer.name).arg(-1);
                    let _: i64 = self.redis.send(forget).await?;
                    return Ok(Outcome::SoldOut);
                }
            }
        }
        stand.crash_point("the unit is taken").await;

        stand.meet("the unit is taken").await;
        stand.pause().await;
        stand.work().await;

        let mut sql = stand.sql().await?;
        stand.write_order(&mut sql, buyer).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "bucketed",
    family: Family::Split,
    promise: Promise::everywhere(HARMS),
    options: &[BUCKETS, BORROW],
    crash_points: &["the unit is taken"],
    demonstrations: &[
        Demonstration {
            id: "undersells",
            shows: Harm::Undersells,
            scenario: Scenario {
                stock: 8,
                buyers: 8,
                options: &[("borrow", "off")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            id: "holds",
            shows: Harm::Holds,
            scenario: Scenario { stock: 8, buyers: 8, ..Scenario::SMALL },
        },
        Demonstration {
            id: "undersells-2",
            shows: Harm::Undersells,
            scenario: Scenario {
                concurrency: 1,
                options: &[("crash_at", "the unit is taken"), ("restart_ms", "0")],
                ..Scenario::SMALL
            },
        },
    ],
    ..Strategy::PLAIN
};

const HARMS: Harms = Harms { oversells: Never, undersells: Possible, duplicates: Never };

const BUCKETS: OptionSpec = whole("buckets", (8, 1, 64));

const BORROW: OptionSpec =
    OptionSpec { name: "borrow", kind: crate::strategy::OptionKind::Choice(&["on", "off"]) };
