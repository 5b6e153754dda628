//! `group-update`: buyers who come at the same time share one transaction.

use crate::prelude::*;
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

pub struct Node {
    waiting: mpsc::Sender<Waiting>,
}

/// The order's number, the buyer, and where the answer goes.
type Waiting = (String, String, oneshot::Sender<(Outcome, TaskTrackerToken)>);

pub async fn open(bench: &Bench) -> Result<Node> {
    let (waiting, buyers) = mpsc::channel(1_024);
    bench.spawn(sell_to_groups(bench.clone(), buyers));
    Ok(Node { waiting })
}

impl Sell for Node {
    async fn buy(&self, _: &Bench, buyer: &Buyer) -> Result<Outcome> {
        let (answer, answered) = oneshot::channel();
        let waiting = (new_order_id(), buyer.name.clone(), answer);
        self.waiting.send(waiting).await.map_err(|_| PurchaseError::NodeIsDown)?;
        let answer = answered.await.map_err(|_| PurchaseError::from("the group failed"));
        answer.map(|(outcome, _is_heard)| outcome)
    }

    async fn settle(&self, bench: &Bench) {
        let Ok(mut sql) = bench.sql().await else { return };
        // The row is free once the last group's transaction has ended.
        let _: Result<i32> = sql.one(LOCK, (bench.arena(),)).await;
    }
}

const LOCK: &str = "SELECT remaining FROM lab.stock WHERE arena = $1 AND item = 'thing' FOR UPDATE";

async fn sell_to_groups(bench: Bench, mut buyers: mpsc::Receiver<Waiting>) {
    let mut group = Vec::new();
    //= CURE takes everybody who waits by now: one transaction for all of them
    while buyers.recv_many(&mut group, 64).await > 0 {
        (group.len() > 1).then(|| bench.note(GROUPED));
        let sold = sell_to(&bench, std::mem::take(&mut group)).await;
        sold.unwrap_or_else(|error| tracing::debug!(%error, "a group failed"));
    }
}

async fn sell_to(bench: &Bench, mut group: Vec<Waiting>) -> Result {
    let (ids, buyers): (Vec<_>, Vec<_>) = group.iter().map(|(id, buyer, _)| (id, buyer)).unzip();
    let mut tx = bench.begin().await?;
    //= CURE the row is this group's until the commit: other servers' groups wait here
    let remaining: i32 = tx.one(LOCK, (bench.arena(),)).await?;
    bench.pause().await;
    bench.work().await;

    let binds = (bench.arena(), ids, buyers, i64::from(bench.per_user_limit()), remaining.max(0));
    let (sold, twice): (Vec<String>, Vec<String>) = tx.row(WRITE_ORDERS.text, binds).await?;
    const TAKE: &str =
        "UPDATE lab.stock SET remaining = remaining - $2 WHERE arena = $1 AND item = 'thing'";
    //= CURE the hot row is written once for the whole group, and synced to disk once
    tx.run(TAKE, (bench.arena(), i32::try_from(sold.len()).unwrap_or(i32::MAX))).await?;

    let unheard = TaskTracker::new();
    let answer = |(order_id, _, answer): Waiting| {
        let _ = answer.send(match () {
            () if sold.contains(&order_id) => (Outcome::Sold { order_id }, unheard.token()),
            () if twice.contains(&order_id) => (Outcome::Duplicate, unheard.token()),
            () => (Outcome::SoldOut, unheard.token()),
        });
    };
    let early = if bench.choice("answer") == "before-commit" { group.split_off(0) } else { vec![] };
    //= FLAW these hear "sold" before the commit: a crash in between takes their orders back
    early.into_iter().for_each(&answer);
    unheard.close();
    unheard.wait().await;
    bench.crash_point("group written").await;
    tx.commit().await?;
    group.into_iter().for_each(answer);
    Ok(())
}

const WRITE_ORDERS: Source = script!("group_orders.sql");

pub const STRATEGY: Strategy = Strategy {
    id: "group-update",
    promise: Promise::everywhere(Harms::UNSOLD),
    scripts: &[WRITE_ORDERS],
    options: &[choice("answer", &["after-commit", "before-commit"])],
    crash_points: &["group written"],
    demonstrations: &[
        show("grouped", Notes(GROUPED), SMALL).at(1),
        show("three-servers", Holds, SMALL.nodes(3)).at(2),
        show("answered-too-early", Loses, SMALL.options(EARLY)).at(4),
        show("units-left", Undersells, SMALL.options(EARLY)).at(4),
    ],
    ..DATABASE_STRATEGY
};

const GROUPED: &str = "several buyers in one transaction";
const EARLY: &[(&str, &str)] = &[("answer", "before-commit"), ("crash_at", "group written")];
