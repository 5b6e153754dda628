//! 27. `sharded-local`: every node sells its own share of the stock out of its own memory.

use crate::{
    selling::{Buyer, Opening, Outcome, Sell, Trouble, opening},
    stand::{Stand, new_order_id},
    strategy::{
        Demonstration, Family, Harm, Harms, Never, OptionKind, OptionSpec, Possible, Promise,
        Scenario, Strategy, Words,
    },
};
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

pub const STRATEGY: Strategy = Strategy {
    number: 27,
    id: "sharded-local",
    family: Family::Split,
    title: Words::new("A share for every node", "库存分给各台服务器"),
    idea: Words::new(
        "Deal the stock out to the servers before the sale, and send each buyer always to the same \
         one, by a hash of their name. Then a purchase is a look into the server's own memory: no \
         Redis, no lock between servers, and one row in Postgres for each winner.",
        "开卖前把库存分给各台服务器，再按用户名的哈希把每个买家固定送到同一台。于是一次购买只是看一眼本机内存：不用 Redis，服务器之间也不用锁，抢到的人才写一行 Postgres。",
    ),
    source: Words::new(
        "The last step of 《突击Redis重大事故现场，又是“分布式锁”惹的祸》: split the stock over the servers, hash the \
         users, take Redis off the path. It is right that nothing is faster, and it says that \
         servers that come and go are the price. It does not say how high: what lies in the memory \
         of a server is sold there or not at all.",
        "《突击Redis重大事故现场，又是“分布式锁”惹的祸》的最后一步：把库存分到各台服务器，用户按哈希路由，路径上不再有 Redis。没有比这更快的了，文章也承认代价是服务器的增减。但\
         没说代价有多大：躺在某台服务器内存里的货，要么在那里卖掉，要么卖不掉。",
    ),
    fails: Words::new(
        "A server that dies takes its share along. Shares that do not fit the crowd are left over \
         on one server while another one turns people away. A server that joins during the sale \
         has nothing to sell, and changes every hash.",
        "服务器死了，它那一份跟着没。分得和人流对不上时，这台卖不完，那台却在赶人。开卖后新加的服务器没有货，还会打乱所有哈希。",
    ),
    break_it: Words::new(
        "shares=uneven on three nodes with about as many buyers as units; or crash_at=\"the unit \
         is taken\".",
        "三个节点、shares=uneven、买家数和库存差不多；或者 crash_at=\"the unit is taken\"。",
    ),
    instead: Words::new(
        "Split the stock where all nodes can reach it, and borrow before refusing: bucketed (28).",
        "把库存拆在大家都够得着的地方，拒绝之前先去别的桶借：bucketed（第 28 种）。",
    ),
    promise: Promise { one_node: HARMS, across_nodes: HARMS },
    needs: &[],
    options: &[SHARES],
    crash_points: &["the unit is taken"],
    demonstrations: &[
        Demonstration {
            shows: Harm::Undersells,
            teaches: Words::new(
                "The node dies: what it had in memory is gone, and when it is back there is \
                 nothing left to deal out.",
                "节点死了：内存里的货全没了；等它回来，已经没有可分的了。",
            ),
            scenario: Scenario {
                concurrency: 1,
                options: &[
                    ("crash_at", "the unit is taken"),
                    ("crash_after", "2"),
                    ("restart_ms", "0"),
                ],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            shows: Harm::Undersells,
            teaches: Words::new(
                "Node 0 has four fifths of the stock and a third of the crowd: it keeps what the \
                 others could have sold.",
                "0 号节点分到五分之四的货，却只来了三分之一的人：别处想买的人买不到它手里的货。",
            ),
            scenario: Scenario {
                stock: 20,
                buyers: 24,
                nodes: 3,
                options: &[("shares", "uneven")],
                ..Scenario::SMALL
            },
        },
    ],
    routes_by_buyer: true,
    code: include_str!("s27_sharded_local.rs"),
};

const HARMS: Harms = Harms { oversells: Never, undersells: Possible, duplicates: Never };

const SHARES: OptionSpec = OptionSpec {
    name: "shares",
    teaches: Words::new(
        "even: every node has the same share. uneven: node 0 has four fifths, and the others \
         divide the rest, as after guessing wrong where the crowd will be.",
        "even：各节点平分。uneven：0 号节点拿五分之四，其余的分剩下的，好比猜错了人会往哪里去。",
    ),
    kind: OptionKind::Choice(&["even", "uneven"]),
};

// --- the purchase

struct Node {
    memory: Mutex<Memory>,
    stand: Stand,
}

/// What a crash forgets.
struct Memory {
    units: i32,
    /// How many each buyer has, of those who come to this node: all that this buyer has anywhere.
    bought: HashMap<String, i32>,
}

pub fn open(stand: Stand) -> Opening {
    opening(async move {
        let mut transaction = stand.begin().await?;
        let left: i32 = sqlx::query_scalar(
            "SELECT remaining FROM lab.stock WHERE arena = $1 AND item = 'thing' FOR UPDATE",
        )
        .bind(stand.arena())
        .fetch_one(transaction.send())
        .await?;
        // The share leaves Postgres for good: a second incarnation (or process) of this node cannot
        // have it again, and nobody can take more than there is.
        let units = share(&stand).min(left);
        sqlx::query("UPDATE lab.stock SET remaining = $2 WHERE arena = $1 AND item = 'thing'")
            .bind(stand.arena())
            .bind(left - units)
            .execute(transaction.send())
            .await?;
        let bought: Vec<(String, i64)> = sqlx::query_as(
            "SELECT buyer, count(*) FROM lab.unique_orders WHERE arena = $1 GROUP BY buyer",
        )
        .bind(stand.arena())
        .fetch_all(transaction.send())
        .await?;
        transaction.commit().await?;
        let bought = bought.into_iter();
        let memory = Mutex::new(Memory {
            units,
            bought: bought
                .map(|(buyer, orders)| (buyer, i32::try_from(orders).unwrap_or(i32::MAX)))
                .collect(),
        });
        Ok(Node { memory, stand })
    })
}

/// How many units this node is dealt.
fn share(stand: &Stand) -> i32 {
    let nodes = i32::try_from(stand.nodes()).unwrap_or(1).max(1);
    let node = i32::try_from(stand.node()).unwrap_or(0);
    let even = |units: i32, node: i32, nodes: i32| units / nodes + i32::from(node < units % nodes);
    if stand.choice("shares") == "even" || nodes == 1 {
        return even(stand.stock(), node, nodes);
    }
    let rest = stand.stock() / 5;
    if node == 0 { stand.stock() - rest } else { even(rest, node - 1, nodes - 1) }
}

impl Node {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let nth = {
            let mut memory = self.memory();
            let bought = memory.bought.get(&buyer.name).copied().unwrap_or(0);
            if bought >= stand.per_user_limit() {
                return Ok(Outcome::Duplicate);
            }
            if memory.units < 1 {
                return Ok(Outcome::SoldOut);
            }
            memory.units -= 1;
            memory.bought.insert(buyer.name.clone(), bought + 1);
            bought + 1
        };
        stand.crash_point("the unit is taken").await;

        stand.meet("the unit is taken").await;
        stand.pause().await;
        stand.work().await;

        // The index holds what the hash promises: should another process serve the same buyer, it
        // says so.
        let order_id = new_order_id();
        let mut sql = stand.sql().await?;
        let written = sqlx::query(
            "INSERT INTO lab.unique_orders (id, arena, buyer, nth) VALUES ($1, $2, $3, $4)
             ON CONFLICT (arena, buyer, nth) DO NOTHING",
        )
        .bind(&order_id)
        .bind(stand.arena())
        .bind(&buyer.name)
        .bind(nth)
        .execute(sql.send())
        .await?;
        if written.rows_affected() == 0 {
            self.memory().units += 1;
            return Ok(Outcome::Duplicate);
        }
        Ok(Outcome::Sold { order_id })
    }
}
