//! 25. `in-process-queue`: the script decides, a queue in memory takes the order, and another task
//!     writes it.

use crate::{
    selling::{Buyer, Opening, Outcome, Sell, Trouble, opening},
    stand::{Stand, new_order_id},
    strategy::{
        Demonstration, Family, Harm, Harms, Never, Possible, Promise, Scenario, Strategy, Words,
    },
};
use locks::wire::{Line, LuaScript};
use redis::cmd;
use std::time::Duration;
use tokio::{
    sync::{mpsc, watch},
    time::sleep,
};

pub const STRATEGY: Strategy = Strategy {
    number: 25,
    id: "in-process-queue",
    family: Family::Queue,
    title: Words::new("A queue in memory", "内存队列，异步写单"),
    idea: Words::new(
        "As lua-sync (23), but the request does not wait for Postgres: it puts the order into a \
         queue in its own memory and answers \"sold\" at once. Another task empties the queue. The \
         database can be slow; the buyer does not notice.",
        "和 lua-sync（第 23 种）一样，只是请求不再等 Postgres：把订单放进自己内存里的队列，立刻回答“抢到了”，由另一个任务慢慢写库。数据库再慢，买家也感觉不到。",
    ),
    source: Words::new(
        "The final form in the course notes 《秒杀》 (a blocking queue and a thread that writes \
         orders). The split is right: deciding is fast, writing may lag behind. What the notes \
         pass over is where the queue lives: in memory, so that a crash loses orders that buyers \
         were already told of.",
        "课程笔记《秒杀》的最终版（阻塞队列加一个写订单的线程）。拆得对：判断要快，写库可以慢慢来。笔记没有追问的是队列放在哪里：放在内存里，一崩溃，已经答应买家的订单就没了。",
    ),
    fails: Words::new(
        "A process that dies takes its queue along. Redis has counted the units as sold, the \
         buyers have been told so, and no order will ever be written: the worst of all failures, \
         because nobody notices until the parcels do not come.",
        "进程一死，队列跟着没。Redis 里货已扣掉，买家也被告知“抢到了”，订单却永远不会写进库：这是最糟的一种失败，因为要等到包裹迟迟不来才有人发现。",
    ),
    break_it: Words::new(
        "work_ms=400 makes the writer lag; crash_at=\"the promise is in memory\" with \
         crash_after=3 ends the node when two orders wait in the queue. The verdict counts them as \
         lost.",
        "work_ms=400 让写入慢下来；crash_at=\"the promise is in memory\" 加 crash_after=3，在队列里还有两单时杀死节点。判定会\
         把它们算作丢单。",
    ),
    instead: Words::new(
        "The same split with a queue that survives: lua-stream (26), where the script that decides \
         also writes the promise into a stream on disk.",
        "同样的拆分，但换一个不会丢的队列：lua-stream（第 26 种），判断的脚本同时把承诺写进落盘的流里。",
    ),
    promise: Promise { one_node: HARMS, across_nodes: HARMS },
    needs: &[],
    options: &[],
    crash_points: &["the promise is in memory"],
    demonstrations: &[
        Demonstration {
            shows: Harm::Loses,
            teaches: Words::new(
                "Two buyers hold a promise that is only in memory when the node dies: they were \
                 told \"sold\" and have nothing.",
                "节点死时，有两个买家的承诺还只在内存里：他们被告知“抢到了”，却什么也没有。",
            ),
            scenario: CRASH,
        },
        Demonstration {
            shows: Harm::Undersells,
            teaches: Words::new(
                "The same crash from the shop's side: units that Redis counts as sold and nobody \
                 has bought.",
                "同一次崩溃，从商家一边看：Redis 里算作卖掉的货，其实谁也没买到。",
            ),
            scenario: CRASH,
        },
    ],
    routes_by_buyer: false,
    code: concat!(
        include_str!("s25_in_process_queue.rs"),
        "\n",
        include_str!("scripts/decide.lua")
    ),
};

// One at a time: the first two have their answers when the third one's node dies.
const CRASH: Scenario = Scenario {
    concurrency: 1,
    options: &[
        ("crash_at", "the promise is in memory"),
        ("crash_after", "3"),
        ("work_ms", "400"),
        ("restart_ms", "0"),
    ],
    ..Scenario::SMALL
};

const HARMS: Harms = Harms { oversells: Never, undersells: Possible, duplicates: Never };

// --- the purchase

static DECIDE: LuaScript = LuaScript::new("decide.lua", include_str!("scripts/decide.lua"));

struct Order {
    id: String,
    buyer: String,
}

struct Node {
    redis: Line,
    stock: String,
    buyers: String,
    /// All that a crash takes along. Bounded by the stock: only who was let through comes here.
    queue: mpsc::UnboundedSender<Order>,
    /// How many orders were promised and are not written yet.
    pending: watch::Sender<u64>,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    opening(async move {
        let (redis, stock) = (stand.line().clone(), stand.key("stock"));
        let mut install = cmd("SETNX");
        let _: bool = redis.send(install.arg(&stock).arg(stand.stock())).await?;
        let (queue, orders) = mpsc::unbounded_channel();
        let pending = watch::Sender::new(0);
        let (writer, gone) =
            (write_orders(stand.clone(), orders, pending.clone()), stand.gone().clone());
        tokio::spawn(async move { gone.run_until_cancelled(writer).await });
        Ok(Node { redis, stock, buyers: stand.key("buyers"), queue, pending, stand })
    })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let call = DECIDE.on(&[&self.stock, &self.buyers]);
        let call = call.arg(&buyer.name).arg(stand.per_user_limit());
        match self.redis.run(&call).await? {
            1 => {}
            2 => return Ok(Outcome::Duplicate),
            _ => return Ok(Outcome::SoldOut),
        }
        stand.meet("the script has decided").await;
        stand.pause().await;

        let order_id = new_order_id();
        self.pending.send_modify(|pending| *pending += 1);
        let queued = self.queue.send(Order { id: order_id.clone(), buyer: buyer.name.clone() });
        stand.crash_point("the promise is in memory").await;
        match queued {
            Ok(()) => Ok(Outcome::Sold { order_id }), // said before it is true
            Err(_) => Err(Trouble::NodeIsDown),
        }
    }

    async fn settle(&self) {
        let _ = self.pending.subscribe().wait_for(|pending| *pending == 0).await;
    }

    /// An orderly end writes what was promised; a crash does not come by here.
    async fn close(&self) {
        self.settle().await;
    }
}

async fn write_orders(
    stand: Stand,
    mut orders: mpsc::UnboundedReceiver<Order>,
    pending: watch::Sender<u64>,
) {
    while let Some(order) = orders.recv().await {
        stand.work().await; // the database is slow
        while let Err(trouble) = write(&stand, &order).await {
            tracing::debug!(%trouble, "an order could not be written, will retry");
            sleep(Duration::from_millis(50)).await;
        }
        pending.send_modify(|pending| *pending -= 1);
    }
}

async fn write(stand: &Stand, order: &Order) -> Result<(), Trouble> {
    // Written before, if only the answer was lost: the number says so.
    let statement =
        "INSERT INTO lab.orders (id, arena, buyer) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
    let mut sql = stand.sql().await?;
    sqlx::query(statement)
        .bind(&order.id)
        .bind(stand.arena())
        .bind(&order.buyer)
        .execute(sql.send())
        .await?;
    Ok(())
}
