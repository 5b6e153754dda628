//! `in-process-queue`: the script decides, the order waits in memory for a writer.

use crate::prelude::*;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

static DECIDE: LuaScript = lua!("decide.lua");

pub struct Node {
    /// Order ids and buyers, at most as many as there are units.
    queue: mpsc::UnboundedSender<(String, String)>,
    /// How many are not written yet.
    pending: watch::Sender<u64>,
}

pub async fn open(bench: &Bench) -> Result<Node> {
    let _: bool = bench.redis("SETNX", (bench.key("stock"), bench.stock())).await?;
    let ((queue, orders), pending) = (mpsc::unbounded_channel(), watch::Sender::new(0));
    bench.spawn(write_orders(bench.clone(), orders, pending.clone()));
    Ok(Node { queue, pending })
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        let decide = DECIDE.on(&[&bench.key("stock"), &bench.key("buyers")]).arg(&buyer.name);
        match bench.line.send(&decide.arg(bench.per_user_limit())).await? {
            1 => {}
            2 => return Ok(Outcome::Duplicate),
            _ => return Ok(Outcome::SoldOut),
        }
        bench.interleaving_point("the script has decided").await;
        bench.pause().await;

        let order_id = new_order_id();
        self.pending.send_modify(|pending| *pending += 1);
        //= FLAW "sold" is answered while the order is only in memory: a crash forgets it
        let queued = self.queue.send((order_id.clone(), buyer.name.clone()));
        bench.crash_point("the promise is in memory").await;
        queued.map(|()| Outcome::Sold { order_id }).map_err(|_| PurchaseError::NodeIsDown)
    }

    async fn settle(&self, _: &Bench) {
        let _ = self.pending.subscribe().wait_for(|pending| *pending == 0).await;
    }

    /// An orderly end writes what was promised. A crash does not come by here.
    async fn close(&self, bench: &Bench) {
        self.settle(bench).await;
    }
}

type Orders = mpsc::UnboundedReceiver<(String, String)>;

async fn write_orders(bench: Bench, mut orders: Orders, pending: watch::Sender<u64>) {
    while let Some((id, buyer)) = orders.recv().await {
        bench.work().await; // the database is slow
        // Written before, if only the answer was lost: the id says so.
        const WRITE: &str =
            "INSERT INTO lab.orders (id, arena, buyer) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
        //= FLAW the order is written when its buyer has long been told "sold"
        let write = async || bench.sql().await?.run(WRITE, (&id, bench.arena(), &buyer)).await;
        while write().await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        pending.send_modify(|pending| *pending -= 1);
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "in-process-queue",
    family: Family::Queue,
    promise: Promise::everywhere(Harms::UNSOLD),
    crash_points: &["the promise is in memory"],
    demonstrations: &[
        show("crash", Loses, ONE_BY_ONE.options(CRASH)).at(1),
        show("undersold", Undersells, ONE_BY_ONE.options(CRASH)).at(1),
    ],
    scripts: &[script!("decide.lua")],
    ..Strategy::PLAIN
};

const CRASH: &[(&str, &str)] = &[
    ("crash_at", "the promise is in memory"),
    ("crash_after", "3"),
    ("work_ms", "400"),
    ("restart_ms", "0"),
];
