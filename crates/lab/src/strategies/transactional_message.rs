//! `transactional-message`: the sale and its message in one transaction; a relay delivers it.

use crate::{message_consumer as consumer, prelude::*, shorthand::Steps};
use std::sync::Arc;

pub struct Node {
    steps: Arc<Steps>,
}

pub async fn open(bench: &Bench) -> Result<Node> {
    let steps = bench.keep_doing(|bench| async move {
        Ok(relay(&bench).await? | consumer::consume(&bench).await?)
    });
    Ok(Node { steps })
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        let sale = bench.in_transaction(async |tx| {
            if !bench.take_one(tx).await? {
                return Ok(Outcome::SoldOut);
            }
            bench.pause().await;
            bench.work().await;
            //= CURE the unit and the message are committed together, or neither is
            bench.write_message(tx, buyer).await
        });
        let outcome = sale.await?;
        self.steps.wakeup.notify_one();
        consumer::see_it_off(bench).await;
        Ok(outcome)
    }

    async fn settle(&self, bench: &Bench) {
        bench.until(|| consumer::is_done(bench)).await;
        self.steps.one_is_over().await; // it may have marked a message and not yet published it
        bench.until(|| consumer::is_done(bench)).await;
    }
}

/// Takes a message from the table to the queue in Redis.
async fn relay(bench: &Bench) -> Result<bool> {
    let mut tx = bench.begin().await?;
    const MARK_NEXT: &str = "
        UPDATE lab.messages SET published = true WHERE id = (
            SELECT id FROM lab.messages WHERE arena = $1 AND NOT published
             LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id || ' ' || buyer";
    let Some(message) = tx.maybe::<String>(MARK_NEXT, (bench.arena(),)).await? else {
        return tx.rollback().await.map(|()| false);
    };
    let publish = bench.redis::<i64>("RPUSH", (bench.key("queue"), message));
    if bench.choice("relay") == "mark-first" {
        //= FLAW marked, not published: a crash here, and nobody publishes it any more
        tx.commit().await?;
        bench.interleaving_point("the message is on its way").await;
        bench.crash_point("between publishing and marking").await;
        publish.await?;
    } else {
        //= CURE published, then marked: after a crash it is published again, never lost
        publish.await?;
        bench.resume_waiting("the message is on its way");
        bench.crash_point("between publishing and marking").await;
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
        show("delivered-again", Holds, ONE_BY_ONE.options(&[CRASH, RESTART])).at(5),
        show("doubled", Duplicates, ONE_BY_ONE.options(NAIVE)).at(4),
        show("oversold", Oversells, ONE_BY_ONE.options(NAIVE)).at(4),
        show("lost", Loses, ONE_BY_ONE.options(MARK_FIRST)).at(2),
        show("unit-gone", Undersells, ONE_BY_ONE.options(MARK_FIRST)).at(2),
    ],
    ..Strategy::PLAIN
};

const CRASH: (&str, &str) = ("crash_at", "between publishing and marking");
const RESTART: (&str, &str) = ("restart_ms", "0");
const NAIVE: &[(&str, &str)] = &[("consumer", "naive"), CRASH, RESTART];
const MARK_FIRST: &[(&str, &str)] = &[("relay", "mark-first"), CRASH, RESTART];
