//! What a purchase does again and again, in one line each: a statement, a transaction, a lock, a
//! retry, an order.

use crate::{
    selling::{Buyer, Outcome, Trouble},
    sql::Sql,
    stand::{Stand, new_order_id},
};
use locks::{Guard, Lock, Released};
use sqlx::PgPool;
use std::{panic::Location, sync::Arc, time::Duration};
use stores::postgres;
use tokio::{
    sync::{Mutex, Notify},
    time::{Instant, sleep, timeout},
};

/// Longer than a purchase may take: nobody is told "contended" who was only impatient.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

impl Stand {
    /// A connection, each statement its own transaction.
    pub async fn sql(&self) -> Result<Sql, Trouble> {
        self.sql_of(self.postgres()).await
    }

    /// A connection of this pool.
    pub async fn sql_of(&self, pool: &PgPool) -> Result<Sql, Trouble> {
        Ok(Sql::session(pool.acquire().await?, self.meter().clone()))
    }

    #[track_caller]
    pub fn begin(&self) -> impl Future<Output = Result<Sql, Trouble>> + Send + '_ {
        self.begin_with("BEGIN")
    }

    /// Begins with this statement, a BEGIN of some kind.
    #[track_caller]
    pub fn begin_with(
        &self,
        statement: &'static str,
    ) -> impl Future<Output = Result<Sql, Trouble>> + Send + '_ {
        let (postgres, meter) = (self.postgres(), self.meter());
        meter.statement(Location::caller());
        async move {
            let transaction = postgres::Transaction::begin(postgres, statement).await?;
            Ok(Sql::transaction(transaction, meter.clone()))
        }
    }

    /// Sells in a transaction: a sale is committed, everything else rolled back.
    #[track_caller]
    pub fn in_transaction(
        &self,
        sell: impl AsyncFnOnce(&mut Sql) -> Result<Outcome, Trouble>,
    ) -> impl Future<Output = Result<Outcome, Trouble>> {
        self.in_transaction_with("BEGIN", sell)
    }

    /// The same, begun with this statement.
    #[track_caller]
    pub fn in_transaction_with(
        &self,
        statement: &'static str,
        sell: impl AsyncFnOnce(&mut Sql) -> Result<Outcome, Trouble>,
    ) -> impl Future<Output = Result<Outcome, Trouble>> {
        let begun = self.begin_with(statement);
        async move {
            let mut transaction = begun.await?;
            let outcome = sell(&mut transaction).await;
            transaction.end(outcome).await
        }
    }

    /// Tries again, at most so many times more, while others were faster.
    #[track_caller]
    pub fn retrying<F: Future<Output = Result<Outcome, Trouble>>>(
        &self,
        retries: i64,
        attempt: impl Fn() -> F,
    ) -> impl Future<Output = Result<Outcome, Trouble>> {
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
    pub fn has_bought<'a>(
        &'a self,
        sql: &'a mut Sql,
        buyer: &'a Buyer,
    ) -> impl Future<Output = Result<bool, Trouble>> + Send + 'a {
        let orders = sql.one::<i64>(
            "SELECT count(*) FROM lab.orders WHERE arena = $1 AND buyer = $2",
            (self.arena(), &buyer.name),
        );
        async move { Ok(orders.await? >= i64::from(self.per_user_limit())) }
    }

    /// Writes the order. One round trip.
    #[track_caller]
    pub fn write_order<'a>(
        &'a self,
        sql: &'a mut Sql,
        buyer: &'a Buyer,
    ) -> impl Future<Output = Result<Outcome, Trouble>> + Send + 'a {
        let order_id = new_order_id();
        let written = sql.run(
            "INSERT INTO lab.orders (id, arena, buyer) VALUES ($1, $2, $3)",
            (order_id.clone(), self.arena(), &buyer.name),
        );
        async move {
            written.await?;
            Ok(Outcome::Sold { order_id })
        }
    }

    /// Writes the buyer's first order, or second, as far as the limit goes; a unique index refuses
    /// one more. Waits for a click that is under way.
    #[track_caller]
    pub fn write_unique_order<'a>(
        &'a self,
        sql: &'a mut Sql,
        buyer: &'a Buyer,
    ) -> impl Future<Output = Result<Outcome, Trouble>> + Send + 'a {
        const WRITE: &str = "
            INSERT INTO lab.unique_orders (id, arena, buyer, nth) VALUES ($1, $2, $3, $4)
            ON CONFLICT ON CONSTRAINT lab_unique_orders_buyer_nth_unique DO NOTHING";
        self.passed(Location::caller());
        async move {
            for nth in 1..=self.per_user_limit() {
                let order_id = new_order_id();
                let binds = (&order_id, self.arena(), &buyer.name, nth);
                if sql.run(WRITE, binds).await? > 0 {
                    return Ok(Outcome::Sold { order_id });
                }
            }
            Ok(Outcome::Duplicate)
        }
    }

    /// Takes a unit if there is one, as `conditional-update` does.
    #[track_caller]
    pub fn take_one<'a>(
        &'a self,
        sql: &'a mut Sql,
    ) -> impl Future<Output = Result<bool, Trouble>> + Send + 'a {
        const TAKE: &str = "UPDATE lab.stock SET remaining = remaining - 1
                             WHERE arena = $1 AND item = 'thing' AND remaining > 0";
        let taken = sql.run(TAKE, (self.arena(),));
        async move { Ok(taken.await? > 0) }
    }

    /// Writes the message from which the order will be made; under the lock of the stock, so that
    /// the buyer's messages can be counted.
    #[track_caller]
    pub fn write_message<'a>(
        &'a self,
        sql: &'a mut Sql,
        buyer: &'a Buyer,
    ) -> impl Future<Output = Result<Outcome, Trouble>> + Send + 'a {
        const WRITE: &str = "
            INSERT INTO lab.messages (id, arena, buyer) SELECT $1, $2, $3
             WHERE (SELECT count(*) FROM lab.messages WHERE arena = $2 AND buyer = $3) < $4";
        let order_id = new_order_id();
        let limit = i64::from(self.per_user_limit());
        let written = sql.run(WRITE, (order_id.clone(), self.arena(), &buyer.name, limit));
        async move {
            match written.await? {
                0 => Ok(Outcome::Duplicate),
                _ => Ok(Outcome::Sold { order_id }),
            }
        }
    }

    /// Sells under a lock that has the name of a key of the arena. Waits for it `wait_ms`, or, if
    /// the strategy has no such option, for as long as a purchase may take.
    #[track_caller]
    pub fn under_lock<'a, L: Lock>(
        &'a self,
        lock: &'a L,
        name: &'a str,
        sell: impl AsyncFnOnce(&L::Guard) -> Result<Outcome, Trouble> + 'a,
    ) -> impl Future<Output = Result<Outcome, Trouble>> + 'a {
        self.passed(Location::caller());
        let wait = self.options().millis_or("wait_ms", LONGEST_WAIT);
        async move {
            let acquired = lock.acquire(&self.key(name), wait).await?;
            let Some(guard) = acquired.held() else {
                return Ok(Outcome::Contended);
            };
            let outcome = sell(&guard).await;
            self.release(guard).await;
            outcome
        }
    }

    /// Does this again and again until this incarnation of the node ends. After a step that found
    /// nothing to do, or failed, it goes on when it is woken up, or a moment later.
    pub fn keep_doing<F>(&self, step: impl Fn(Self) -> F + Send + 'static) -> Arc<Steps>
    where
        F: Future<Output = Result<bool, Trouble>> + Send,
    {
        let steps: Arc<Steps> = Arc::default();
        let (stand, gone, done) = (self.clone(), self.gone().clone(), Arc::clone(&steps));
        let doing = async move {
            loop {
                let under_way = done.under_way.lock().await;
                let went_on = step(stand.clone()).await;
                drop(under_way);
                if !matches!(went_on, Ok(true)) {
                    let _ = timeout(Duration::from_millis(250), done.wakeup.notified()).await;
                }
            }
        };
        tokio::spawn(async move { gone.run_until_cancelled(doing).await });
        steps
    }

    /// Asks every few milliseconds until this is true; false if it is not for so long.
    pub async fn within<F>(&self, wait: Duration, ask: impl Fn() -> F) -> Result<bool, Trouble>
    where
        F: Future<Output = Result<bool, Trouble>>,
    {
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
    pub async fn until<F>(&self, done: impl Fn() -> F)
    where
        F: Future<Output = Result<bool, Trouble>>,
    {
        while !matches!(done().await, Ok(true)) {
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Gives a lock back, and notes what the holder would otherwise never learn. What was sold
    /// under it is sold in any case.
    pub async fn release(&self, guard: impl Guard) {
        match guard.release().await {
            Ok(Released::NotHeld) => self.note("the lock was gone before it was released"),
            Ok(Released::Freed | Released::StillHeld { .. }) => {}
            Err(error) => {
                tracing::debug!(%error, "a lock could not be released");
                self.note("the lock could not be released");
            }
        }
    }
}

/// What [`Stand::keep_doing`] does.
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
