//! The other end of `transactional-message`: who takes messages from the queue and writes orders.

use crate::{
    marks::Source,
    selling::Trouble,
    stand::{Stand, new_order_id},
};

pub const SOURCE: Source = Source {
    file: "crates/lab/src/message_consumer.rs",
    text: include_str!("message_consumer.rs"),
};

/// Writes the order of the first message, which may have come before.
pub async fn consume(stand: &Stand) -> Result<bool, Trouble> {
    let queue = stand.key("queue");
    let first: Option<String> = stand.redis("LINDEX", (&queue, 0)).await?;
    let Some(message) = first else { return Ok(false) };
    let (id, buyer) = message.split_once(' ').unwrap_or((&message, ""));
    let new = new_order_id();
    let id = if stand.choice("consumer") == "naive" { &new } else { id };
    const WRITE: &str =
        "INSERT INTO lab.orders (id, arena, buyer) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
    //= CURE the order has the number of its message: a second delivery writes nothing
    stand.sql().await?.run(WRITE, (id, stand.arena(), buyer)).await?;
    stand.redis::<i64>("LREM", (&queue, 1, &message)).await?;
    Ok(true)
}

/// The buyer's side of a crash that is forced on the relay: a relay that publishes first is
/// waited for, and one that marks first waits until the buyer has been told.
pub async fn see_it_off(stand: &Stand) {
    match stand.choice("relay") {
        "mark-first" => stand.come_by("the message is on its way"),
        _ => stand.meet("the message is on its way").await,
    }
}

/// Whether no message waits any more, neither in the table nor in the queue.
pub async fn is_done(stand: &Stand) -> Result<bool, Trouble> {
    const WAITING: &str =
        "SELECT EXISTS (SELECT FROM lab.messages WHERE arena = $1 AND NOT published)";
    let waiting: bool = stand.sql().await?.one(WAITING, (stand.arena(),)).await?;
    Ok(!waiting && stand.redis::<i64>("LLEN", stand.key("queue")).await? == 0)
}
