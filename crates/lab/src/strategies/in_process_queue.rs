//! `in-process-queue`: the script decides, a queue in memory takes the order, and another task
//!     writes it.

use crate::prelude::*;
use locks::wire::{Line, LuaScript};
use redis::cmd;
use std::time::Duration;
use tokio::{
    sync::{mpsc, watch},
    time::sleep,
};

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

pub const STRATEGY: Strategy = Strategy {
    id: "in-process-queue",
    family: Family::Queue,
    promise: Promise::everywhere(HARMS),
    crash_points: &["the promise is in memory"],
    demonstrations: &[
        Demonstration { id: "loses", shows: Harm::Loses, scenario: CRASH },
        Demonstration { id: "undersells", shows: Harm::Undersells, scenario: CRASH },
    ],
    ..Strategy::PLAIN
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
