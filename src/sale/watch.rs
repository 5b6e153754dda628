//! Following orders: subscribers share one query.
//!
//! Every watched order has one `watch` channel, whatever the number of its subscribers. A worker asks
//! Postgres for all watched orders in one query, on a timer and when the writer rings; transitions
//! made by this process are told at once. An order nobody watches is forgotten.

use crate::{
    domain::{Order, OrderId},
    postgres::Pool,
};
use dashmap::DashMap;
use std::sync::Arc;
use tokio::sync::{Notify, watch};

/// The orders that somebody follows.
pub struct OrderWatch {
    orders: DashMap<OrderId, watch::Sender<Order>>,
    /// Rung when orders were written or changed by a worker of this process.
    pub bell: Arc<Notify>,
}

impl OrderWatch {
    pub fn new() -> Self {
        Self {
            orders: DashMap::new(),
            bell: Arc::new(Notify::new()),
        }
    }

    /// Follows an order from this state on; the first value counts as a change.
    pub fn subscribe(&self, order: Order) -> watch::Receiver<Order> {
        let entry = self
            .orders
            .entry(order.id)
            .or_insert_with(|| watch::channel(order.clone()).0);
        let mut receiver = entry.subscribe();
        drop(entry);
        self.tell(&order);
        receiver.mark_changed();
        receiver
    }

    /// Passes a newer state on to the order's followers.
    pub fn tell(&self, order: &Order) {
        if let Some(sender) = self.orders.get(&order.id) {
            sender.send_if_modified(|known| {
                // Queued never follows a row, and a terminal state is the last: what arrives late is old.
                let stale = known.status.is_terminal()
                    || order.status == crate::domain::OrderStatus::Queued
                    || known == order;
                if !stale {
                    *known = order.clone();
                }
                !stale
            });
        }
    }

    /// Asks once for all followed orders.
    pub async fn step(&self, postgres: &Pool) -> Result<(), sqlx::Error> {
        self.orders.retain(|_, sender| sender.receiver_count() > 0);
        let ids: Vec<i64> = self
            .orders
            .iter()
            .filter(|entry| !entry.value().borrow().status.is_terminal())
            .map(|entry| entry.key().get())
            .collect();
        if ids.is_empty() {
            return Ok(());
        }
        for order in super::orders::by_ids(postgres, &ids).await? {
            self.tell(&order);
        }
        Ok(())
    }
}

impl Default for OrderWatch {
    fn default() -> Self {
        Self::new()
    }
}
