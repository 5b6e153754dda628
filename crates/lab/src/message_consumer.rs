//! The consumer of `transactional-message`: takes messages from the queue and writes orders.

use crate::bench::{Bench, new_order_id};
use crate::{marks::Source, selling::Result};

pub const SOURCE: Source = Source {
    file: "crates/lab/src/message_consumer.rs",
    text: include_str!("message_consumer.rs"),
};

/// Writes the order of the first message, which may have come before.
pub async fn consume(bench: &Bench) -> Result<bool> {
    let queue = bench.key("queue");
    let first: Option<String> = bench.redis("LINDEX", (&queue, 0)).await?;
    let Some(message) = first else { return Ok(false) };
    let (id, buyer) = message.split_once(' ').unwrap_or((&message, ""));
    let new = new_order_id();
    //= FLAW a naive consumer numbers each delivery anew: a second one is a second order
    let id = if bench.choice("consumer") == "naive" { &new } else { id };
    const WRITE: &str =
        "INSERT INTO lab.orders (id, arena, buyer) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
    //= CURE the order has the number of its message: a second delivery writes nothing
    bench.sql().await?.run(WRITE, (id, bench.arena(), buyer)).await?;
    bench.redis::<i64>("LREM", (&queue, 1, &message)).await?;
    Ok(true)
}

/// The buyer's side of a crash that is forced on the relay: a relay that publishes first is
/// waited for, and one that marks first waits until the buyer has been told.
pub async fn see_it_off(bench: &Bench) {
    match bench.choice("relay") {
        "mark-first" => bench.resume_waiting("the message is on its way"),
        _ => bench.interleaving_point("the message is on its way").await,
    }
}

/// Whether no message waits any more, neither in the table nor in the queue.
pub async fn is_done(bench: &Bench) -> Result<bool> {
    const WAITING: &str =
        "SELECT EXISTS (SELECT FROM lab.messages WHERE arena = $1 AND NOT published)";
    let waiting: bool = bench.sql().await?.one(WAITING, (bench.arena(),)).await?;
    Ok(!waiting && bench.redis::<i64>("LLEN", bench.key("queue")).await? == 0)
}
