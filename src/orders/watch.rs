//! Watching orders: subscribers share one query.
//!
//! Every watched order has one `watch` channel for all its subscribers. A task reads all watched
//! orders in one query, on a timer and when the writer notifies; transitions of this process are
//! published at once. Orders without subscribers are dropped.

use crate::domain::{Order, OrderId};
use crate::postgres::Pool;
use dashmap::DashMap;
use std::sync::Arc;
use std::time::Duration;
use tasks::Tasks;
use tokio::sync::{Notify, watch};

/// The pause between two queries, without and with news.
const PAUSE: Duration = Duration::from_millis(250);
const LEAST_PAUSE: Duration = Duration::from_millis(50);

/// The watched orders.
pub struct OrderWatch {
    postgres: Pool,
    orders: DashMap<OrderId, watch::Sender<Order>>,
    /// Notified when this process wrote or changed orders.
    pub wakeup: Notify,
}

pub fn spawn(watch: &Arc<OrderWatch>, tasks: &Tasks) {
    tasks.spawn("order watch", watch, |watch, task| async move {
        let mut periodic = task.every(PAUSE).or_on(&watch.wakeup);
        while periodic.tick(watch.step()).await {
            // The writer notifies after every batch; followers need fewer updates.
            tokio::time::sleep(LEAST_PAUSE).await;
        }
    });
}

impl OrderWatch {
    pub fn new(postgres: Pool) -> Self {
        Self { postgres, orders: DashMap::new(), wakeup: Notify::new() }
    }

    /// Subscribes to an order from this state on; the first value counts as a change.
    pub fn subscribe(&self, order: Order) -> watch::Receiver<Order> {
        let entry = self.orders.entry(order.id);
        let entry = entry.or_insert_with(|| watch::channel(order.clone()).0);
        let mut receiver = entry.subscribe();
        if order.status.is_terminal() {
            entry.send_replace(order.clone()); // a refund follows a terminal state
        }
        drop(entry);
        self.tell(&order);
        receiver.mark_changed();
        receiver
    }

    /// Publishes a newer state.
    pub fn tell(&self, order: &Order) {
        if let Some(sender) = self.orders.get(&order.id) {
            sender.send_if_modified(|known| {
                // A late value is old after a terminal state (`subscribe` tells of a refund), and
                // a row is never queued again.
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

    /// Reads all watched orders once.
    pub async fn step(&self) -> sqlx::Result<()> {
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
        for order in crate::orders::queries::by_ids(&self.postgres, &ids).await? {
            self.tell(&order);
        }
        Ok(())
    }
}
