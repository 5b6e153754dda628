//! 26. `lua-stream`: the production path of this program.

use crate::{
    real_shop::{self, Premises, RealServer, user_of},
    selling::{Buyer, Opening, Outcome, Sell, Trouble, opening},
    stand::Stand,
    strategy::{Demonstration, Family, Harm, Promise, Scenario, Strategy, Words},
};
use tokio::sync::OwnedSemaphorePermit;

pub const STRATEGY: Strategy = Strategy {
    number: 26,
    id: real_shop::STRATEGY,
    family: Family::Queue,
    title: Words::new(
        "One script, a durable log, batches into Postgres",
        "脚本裁决 + 持久日志 + 成批写库",
    ),
    idea: Words::new(
        "One Lua script decides for everybody who waits at that moment, and writes each accepted \
         order into a log in the same step. The answer goes out; a writer moves the log into \
         Postgres in batches. A crash loses nothing: what is in the log and not in Postgres is \
         found there by the next writer. This is not a copy: it is what POST \
         /api/v1/sales/{id}/orders runs.",
        "一个 Lua 脚本为此刻所有等待的人一次裁决，并在同一步里把每个被接受的订单写进日志。随即应答；写库程序成批地把日志搬进 Postgres。崩溃什么也不会丢：在日志里、不在 \
         Postgres 里的订单，下一个写库者会找到。这不是仿制品：POST /api/v1/sales/{id}/orders 跑的就是它。",
    ),
    source: Words::new(
        "《秒杀》 (course notes), the final form: Redis decides who may buy, a queue and another \
         thread write the order. There the queue is in memory and a crash loses orders (25); here \
         it is a Redis stream with a consumer group.",
        "《秒杀》课程笔记的最终形态：Redis 判断资格，队列和另一个线程写订单。那里的队列在内存里，崩溃会丢单（第 25 种）；这里换成了带消费组的 Redis Stream。",
    ),
    fails: Words::new(
        "An accepted order is in Redis before it is in Postgres, so Redis has to keep what it has \
         confirmed (appendfsync always), and a Redis that has lost data must not be trusted until \
         it has been compared with Postgres. That is what epochs, approval and the rebuild are \
         for: most of the code of this program.",
        "订单先进 Redis 再进 Postgres，所以 Redis 必须守住自己确认过的东西（appendfsync always）；丢过数据的 Redis 在与 Postgres 核\
         对之前不可信。纪元、核准与重建就是为此而设：这个程序大半的代码都在做这件事。",
    ),
    break_it: Words::new(
        "crash_at=accepted ends a node that has accepted an order and told nobody: the order is \
         written all the same, by another node, two seconds later.",
        "crash_at=accepted：节点接受了订单、还没告诉任何人就崩溃。两秒之后，订单照样由另一个节点写进数据库。",
    ),
    instead: Words::new(
        "Nothing, when a sale is too hot for one row (8). For less, that is simpler.",
        "当一行热点（第 8 种）扛不住时，就用它；扛得住时，那种更简单。",
    ),
    promise: Promise::SOUND,
    needs: &[],
    options: &[],
    crash_points: &["accepted"],
    demonstrations: &[Demonstration {
        shows: Harm::Holds,
        teaches: Words::new(
            "Three nodes, everybody clicks twice, and one node dies with an order that it has \
             accepted.",
            "三个节点，人人连点两下，其中一个节点带着刚接受的订单崩溃。",
        ),
        scenario: Scenario {
            nodes: 3,
            duplicates_percent: 100,
            options: &[("crash_at", "accepted"), ("crash_node", "2")],
            ..Scenario::SMALL
        },
    }],
    routes_by_buyer: false,
    code: include_str!("s26_lua_stream.rs"),
};

// --- the purchase

struct Node {
    stand: Stand,
    /// A shop and all its loops, as `flash-sale serve` runs them.
    server: Box<dyn RealServer>,
    _place: OwnedSemaphorePermit,
}

pub fn open(stand: Stand) -> Opening {
    opening(async {
        let servers = stand.servers();
        let place = servers.production_node()?;
        let premises = Premises {
            postgres: servers.postgres.clone(),
            schema: real_shop::schema_of(stand.arena()),
            redis_url: servers.redis_url.clone(),
            key_prefix: stand.key(""),
            stock: stand.stock(),
            per_user_limit: stand.per_user_limit(),
        };
        let server = servers.shop.open(premises).await?;
        Ok(Node { stand, server, _place: place })
    })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        self.stand.pause().await;
        self.stand.work().await;
        let outcome = self.server.buy(user_of(buyer)).await?;
        self.stand.crash_point("accepted").await;
        Ok(outcome)
    }

    async fn settle(&self) {
        self.server.settle().await;
        self.count_round_trips();
    }

    async fn close(&self) {
        self.server.close().await;
    }
}

impl Node {
    /// Batches share their round trips, so this is far below one for each purchase.
    fn count_round_trips(&self) {
        self.stand.meter().add(self.server.round_trips());
    }
}

impl Drop for Node {
    /// After a crash: what it has sent was sent.
    fn drop(&mut self) {
        self.count_round_trips();
    }
}
