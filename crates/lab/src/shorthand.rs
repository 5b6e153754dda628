//! The steps that purchases share, one line each: a statement, a transaction, a retry, an order.

use crate::bench::{Bench, new_order_id};
use crate::selling::{Buyer, Outcome, Result, Trying};
use crate::sql::{Connection, POSTGRES, Sql};
use futures_util::TryFutureExt;
use sqlx::PgPool;
use std::{panic::Location, sync::Arc, time::Duration};
use stores::postgres::Transaction;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep, timeout};

impl Bench {
    /// A connection, each statement its own transaction.
    pub async fn sql(&self) -> Result<Sql> {
        self.sql_of(&self.shared.postgres).await
    }

    /// A connection of this pool.
    pub async fn sql_of(&self, pool: &PgPool) -> Result<Sql> {
        Ok(self.counted(Connection::Session(pool.acquire().await?)))
    }

    fn counted(&self, connection: Connection) -> Sql {
        Sql { connection, meter: self.shared.meter.clone() }
    }

    #[track_caller]
    pub fn begin(&self) -> impl Trying<Sql> + Send {
        self.begin_with("BEGIN")
    }

    /// Begins with this statement, a BEGIN of some kind.
    #[track_caller]
    fn begin_with(&self, statement: &'static str) -> impl Trying<Sql> + Send {
        self.shared.meter.count(POSTGRES, Location::caller());
        let begun = Transaction::begin(&self.shared.postgres, statement);
        begun.map_ok(|begun| self.counted(Connection::Transaction(begun))).err_into()
    }

    /// Sells in a transaction: a sale is committed, everything else rolled back.
    #[track_caller]
    pub fn in_transaction(
        &self,
        sell: impl AsyncFnOnce(&mut Sql) -> Result<Outcome>,
    ) -> impl Trying<Outcome> {
        self.in_transaction_with("BEGIN", sell)
    }

    /// Sells in a transaction that begins with this statement.
    #[track_caller]
    pub fn in_transaction_with(
        &self,
        statement: &'static str,
        sell: impl AsyncFnOnce(&mut Sql) -> Result<Outcome>,
    ) -> impl Trying<Outcome> {
        let begun = self.begin_with(statement);
        async move {
            let mut transaction = begun.await?;
            let outcome = sell(&mut transaction).await;
            transaction.end(outcome).await
        }
    }

    /// Tries again, at most so many times more, while others were faster.
    #[track_caller]
    pub fn retrying<F: Trying<Outcome>>(
        &self,
        retries: i64,
        attempt: impl Fn() -> F,
    ) -> impl Trying<Outcome> {
        self.passed(Location::caller());
        async move {
            for _ in 0..=retries {
                let outcome = attempt().await?;
                if outcome != Outcome::Contended {
                    return Ok(outcome);
                }
            }
            Ok(Outcome::Contended)
        }
    }

    /// Whether the buyer has as many orders as allowed. One round trip.
    #[track_caller]
    pub fn has_bought(&self, sql: &mut Sql, buyer: &Buyer) -> impl Trying<bool> + Send {
        const HAS_BOUGHT: &str =
            "SELECT count(*) >= $3 FROM lab.orders WHERE arena = $1 AND buyer = $2";
        let limit = i64::from(self.per_user_limit());
        sql.one(HAS_BOUGHT, (self.arena(), &buyer.name, limit))
    }

    /// Writes the order. One round trip.
    #[track_caller]
    pub fn write_order(&self, sql: &mut Sql, buyer: &Buyer) -> impl Trying<Outcome> + Send {
        const WRITE: &str = "INSERT INTO lab.orders (id, arena, buyer) VALUES ($1, $2, $3)";
        let order_id = new_order_id();
        let written = sql.run(WRITE, (order_id.clone(), self.arena(), &buyer.name));
        written.map_ok(|_| Outcome::Sold { order_id })
    }

    /// Writes the buyer's first order, or second, as far as the limit goes; a unique index refuses
    /// one more. Waits for a click that is under way.
    #[track_caller]
    pub fn write_unique_order(&self, sql: &mut Sql, buyer: &Buyer) -> impl Trying<Outcome> + Send {
        const WRITE: &str = "
            INSERT INTO lab.unique_orders (id, arena, buyer, nth) VALUES ($1, $2, $3, $4)
            ON CONFLICT ON CONSTRAINT lab_unique_orders_buyer_nth_unique DO NOTHING";
        self.passed(Location::caller());
        async move {
            for nth in 1..=self.per_user_limit() {
                let order_id = new_order_id();
                let values = (&order_id, self.arena(), &buyer.name, nth);
                if sql.run(WRITE, values).await? > 0 {
                    return Ok(Outcome::Sold { order_id });
                }
            }
            Ok(Outcome::Duplicate)
        }
    }

    /// Takes a unit if there is one, as `conditional-update` does.
    #[track_caller]
    pub fn take_one(&self, sql: &mut Sql) -> impl Trying<bool> + Send {
        const TAKE: &str = "UPDATE lab.stock SET remaining = remaining - 1
                             WHERE arena = $1 AND item = 'thing' AND remaining > 0";
        sql.run(TAKE, (self.arena(),)).map_ok(|taken| taken > 0)
    }

    /// Writes the message from which the order will be made; under the lock of the stock, so that
    /// the buyer's messages can be counted.
    #[track_caller]
    pub fn write_message(&self, sql: &mut Sql, buyer: &Buyer) -> impl Trying<Outcome> + Send {
        const WRITE: &str = "
            INSERT INTO lab.messages (id, arena, buyer) SELECT $1, $2, $3
             WHERE (SELECT count(*) FROM lab.messages WHERE arena = $2 AND buyer = $3) < $4";
        let order_id = new_order_id();
        let limit = i64::from(self.per_user_limit());
        let written = sql.run(WRITE, (order_id.clone(), self.arena(), &buyer.name, limit));
        written.map_ok(|written| match written {
            0 => Outcome::Duplicate,
            _ => Outcome::Sold { order_id },
        })
    }

    /// Runs in the background until this incarnation of the node ends.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(self.gone.clone().run_until_cancelled_owned(work));
    }

    /// Does this again and again until this incarnation of the node ends. After a step that found
    /// nothing to do, or failed, it goes on when it is woken up, or a moment later.
    pub fn keep_doing<F: Trying<bool> + Send>(
        &self,
        step: impl Fn(Self) -> F + Send + 'static,
    ) -> Arc<Steps> {
        let steps: Arc<Steps> = Arc::default();
        let (bench, done) = (self.clone(), Arc::clone(&steps));
        self.spawn(async move {
            loop {
                let under_way = done.under_way.lock().await;
                let went_on = step(bench.clone()).await.unwrap_or_else(|error| {
                    tracing::debug!(%error, "a step failed, will be tried again");
                    false
                });
                drop(under_way);
                if !went_on {
                    let _ = timeout(Duration::from_millis(250), done.wakeup.notified()).await;
                }
            }
        });
        steps
    }

    /// Asks every few milliseconds until this is true; false if it is not for so long.
    pub async fn within<F: Trying<bool>>(
        &self,
        wait: Duration,
        ask: impl Fn() -> F,
    ) -> Result<bool> {
        let until = Instant::now() + wait;
        while !ask().await? {
            if Instant::now() > until {
                return Ok(false);
            }
            sleep(Duration::from_millis(10)).await;
        }
        Ok(true)
    }

    /// Waits until this is true.
    pub async fn until<F: Trying<bool>>(&self, done: impl Fn() -> F) {
        while !matches!(done().await, Ok(true)) {
            sleep(Duration::from_millis(10)).await;
        }
    }
}

/// The background steps of [`Bench::keep_doing`].
#[derive(Default)]
pub struct Steps {
    pub wakeup: Notify,
    under_way: Mutex<()>,
}

impl Steps {
    /// Waits until the step that is under way is over.
    pub async fn one_is_over(&self) {
        drop(self.under_way.lock().await);
    }
}
