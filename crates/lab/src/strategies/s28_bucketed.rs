//! 28. `bucketed`: the stock is split into buckets in Redis, and an empty bucket borrows before it
//!     refuses.

use crate::{
    options::whole,
    selling::{Buyer, Opening, Outcome, Sell, Trouble, opening},
    stand::Stand,
    strategy::{
        Demonstration, Family, Harm, Harms, Never, OptionKind, OptionSpec, Possible, Promise,
        Scenario, Strategy, Words,
    },
};
use locks::wire::{Line, LuaScript};
use redis::cmd;
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

pub const STRATEGY: Strategy = Strategy {
    number: 28,
    id: "bucketed",
    family: Family::Split,
    title: Words::new("Buckets that lend to each other", "分桶库存，先借后拒"),
    idea: Words::new(
        "One key can only be as fast as the one Redis that has it. Split the stock into buckets, \
         which may live on different Redis servers; each buyer has a home bucket, by hash, that \
         also knows what they have bought. When it is empty, ask the others before saying \"sold \
         out\". Units are never moved, only sold: so a bucket once seen empty stays empty, and who \
         finds all empty has not overlooked one that was on its way.",
        "一个键再快也快不过它所在的那台 Redis。把库存拆成若干桶，可以放在不同的 Redis 上；每个买家按哈希有自己的“本桶”，他买过没有也记在本桶。本桶空了，先去别的桶借，再说“卖\
         完了”。货从不搬来搬去，只会卖掉：看到空的桶就永远是空的，谁看到所有桶都空，就绝不会漏掉一件还在路上的货。",
    ),
    source: Words::new(
        "The repair of the last step of 《突击Redis重大事故现场，又是“分布式锁”惹的祸》: its shares lie in the \
         servers' memory, where nobody else can reach them and a crash loses them. The splitting \
         is the same, the place is shared.",
        "对《突击Redis重大事故现场，又是“分布式锁”惹的祸》最后一步的改进：原文把份额放在各服务器内存里，别人够不着，一崩溃就丢。这里同样拆分，但放在大家都够得着的地方。",
    ),
    fails: Words::new(
        "Script and order are two steps, as in lua-sync (23): a node that dies in between has \
         taken a unit and sold it to nobody. Near the end of the sale every purchase asks several \
         buckets. And many buckets in one Redis gain nothing: it executes one command at a time \
         anyway.",
        "和 lua-sync（第 23 种）一样，脚本和订单是两步：节点在中间死掉，货扣了，却没卖给任何人。快卖完时，每次购买都要问好几个桶。把许多桶放在同一台 Redis 里则毫无好处：\
         它本来就一次只执行一条命令。",
    ),
    break_it: Words::new(
        "borrow=off: an empty bucket turns its buyers away while others have stock. crash_at=\"the \
         unit is taken\": one unit is gone.",
        "borrow=off：本桶空了就赶人，别的桶却还有货。crash_at=\"the unit is taken\"：丢掉一件。",
    ),
    instead: Words::new(
        "One counter and one script per sale are enough for tens of thousands of purchases a \
         second: lua-stream (26). Buckets are for a single sale that is larger than one Redis.",
        "一场抢购一个计数器、一段脚本，每秒几万次也够：lua-stream（第 26 种）。只有单场抢购大到一台 Redis 装不下时，才需要分桶。",
    ),
    promise: Promise { one_node: HARMS, across_nodes: HARMS },
    needs: &[],
    options: &[BUCKETS, BORROW],
    crash_points: &["the unit is taken"],
    demonstrations: &[
        Demonstration {
            shows: Harm::Undersells,
            teaches: Words::new(
                "Without borrowing: eight buckets of one unit each, and the buyers do not spread \
                 evenly.",
                "不许借：八个桶各一件，而买家并不会均匀地散开。",
            ),
            scenario: Scenario {
                stock: 8,
                buyers: 8,
                options: &[("borrow", "off")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            shows: Harm::Holds,
            teaches: Words::new(
                "The same with borrowing: everybody gets one.",
                "同样的情形，允许借：人人都买到。",
            ),
            scenario: Scenario { stock: 8, buyers: 8, ..Scenario::SMALL },
        },
        Demonstration {
            shows: Harm::Undersells,
            teaches: Words::new(
                "The node dies with a unit in its hand: taken from the bucket, sold to nobody.",
                "节点手里拿着一件货死了：桶里扣了，谁也没买到。",
            ),
            scenario: Scenario {
                concurrency: 1,
                options: &[("crash_at", "the unit is taken"), ("restart_ms", "0")],
                ..Scenario::SMALL
            },
        },
    ],
    routes_by_buyer: false,
    code: concat!(
        include_str!("s28_bucketed.rs"),
        "\n",
        include_str!("scripts/reserve.lua"),
        "\n",
        include_str!("scripts/borrow.lua")
    ),
};

const HARMS: Harms = Harms { oversells: Never, undersells: Possible, duplicates: Never };

const BUCKETS: OptionSpec = whole(
    "buckets",
    (8, 1, 64),
    Words::new(
        "Into how many buckets the stock is split. More buckets spread the load wider and are \
         empty sooner.",
        "库存拆成几个桶。桶越多，压力越分散，也越早空。",
    ),
);

const BORROW: OptionSpec = OptionSpec {
    name: "borrow",
    teaches: Words::new(
        "on: an empty bucket asks the others. off: it refuses, and their units are left over.",
        "on：本桶空了去问别的桶。off：直接拒绝，别的桶里的货就剩下了。",
    ),
    kind: OptionKind::Choice(&["on", "off"]),
};

// --- the purchase

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
        stand.write_order(sql.send(), buyer).await
    }
}
