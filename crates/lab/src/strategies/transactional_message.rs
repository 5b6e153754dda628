//! `transactional-message`: the sale and its message in one transaction; a relay delivers it.

use crate::{message_consumer as consumer, prelude::*, shorthand::Steps};
use std::sync::Arc;

pub struct Node {
    steps: Arc<Steps>,
}

pub async fn open(stand: &Stand) -> Result<Node, Trouble> {
    let steps = stand.keep_doing(|stand| async move {
        Ok(relay(&stand).await? | consumer::consume(&stand).await?)
    });
    Ok(Node { steps })
}

impl Sell for Node {
    async fn buy(&self, stand: &Stand, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let sale = stand.in_transaction(async |tx| {
            if !stand.take_one(tx).await? {
                return Ok(Outcome::SoldOut);
            }
            stand.pause().await;
            stand.work().await;
            //= CURE the unit and the message are committed together, or neither is
            stand.write_message(tx, buyer).await
        });
        let outcome = sale.await?;
        self.steps.wakeup.notify_one();
        consumer::see_it_off(stand).await;
        Ok(outcome)
    }

    async fn settle(&self, stand: &Stand) {
        stand.until(|| consumer::is_done(stand)).await;
        self.steps.one_is_over().await; // it may have marked a message and not yet published it
        stand.until(|| consumer::is_done(stand)).await;
    }
}

/// Takes a message from the table to the queue in Redis.
async fn relay(stand: &Stand) -> Result<bool, Trouble> {
    let mut tx = stand.begin().await?;
    const MARK_NEXT: &str = "
        UPDATE lab.messages SET published = true WHERE id = (
            SELECT id FROM lab.messages WHERE arena = $1 AND NOT published
             LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id || ' ' || buyer";
    let Some(message) = tx.maybe::<String>(MARK_NEXT, (stand.arena(),)).await? else {
        return tx.rollback().await.map(|()| false);
    };
    let publish = stand.redis::<i64>("RPUSH", (stand.key("queue"), message));
    if stand.choice("relay") == "mark-first" {
        //= FLAW marked, not published: a crash here, and nobody publishes it any more
        tx.commit().await?;
        stand.meet("the message is on its way").await;
        stand.crash_point("between publishing and marking").await;
        publish.await?;
    } else {
        //= CURE published, then marked: after a crash it is published again, never lost
        publish.await?;
        stand.come_by("the message is on its way");
        stand.crash_point("between publishing and marking").await;
        tx.commit().await?;
    }
    Ok(true)
}

pub const STRATEGY: Strategy = Strategy {
    id: "transactional-message",
    family: Family::Queue,
    promise: Promise::everywhere(Harms::POSSIBLE),
    options: &[
        choice("relay", &["publish-first", "mark-first"]),
        choice("consumer", &["idempotent", "naive"]),
    ],
    scripts: &[consumer::SOURCE],
    crash_points: &["between publishing and marking"],
    demonstrations: &[
        show("delivered-again", Holds, ONE_BY_ONE.options(&[CRASH, RESTART])),
        show("doubled", Duplicates, ONE_BY_ONE.options(NAIVE)),
        show("oversold", Oversells, ONE_BY_ONE.options(NAIVE)),
        show("lost", Loses, ONE_BY_ONE.options(MARK_FIRST)),
        show("unit-gone", Undersells, ONE_BY_ONE.options(MARK_FIRST)),
    ],
    ..Strategy::PLAIN
};

const ONE_BY_ONE: Scenario = SMALL.concurrency(1);
const CRASH: (&str, &str) = ("crash_at", "between publishing and marking");
const RESTART: (&str, &str) = ("restart_ms", "0");
const NAIVE: &[(&str, &str)] = &[("consumer", "naive"), CRASH, RESTART];
const MARK_FIRST: &[(&str, &str)] = &[("relay", "mark-first"), CRASH, RESTART];
