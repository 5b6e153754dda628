//! A read replica, for what may be a little old: the catalogue that pages show.
//!
//! **How old** is not guessed from timestamps, which say nothing while nobody writes. Before a read the
//! primary is asked how far its log has come, and these marks are kept for a while; the replica then says
//! how far it has replayed. It shows at least what the primary had at the newest mark that it has passed,
//! so its age is at most the age of that mark. That is right for an idle primary, a replay that stands
//! still, and a connection between the two that is gone.
//!
//! A replica that is away, silent, too old, or not a standby of this primary is left alone for
//! [`PAUSE`], and the caller reads the primary. Nothing is lost on a crash: there is nothing but marks.

use super::{Pool, Transaction, timed_out};
use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// How long a replica may take for one read. Short: the primary is as good.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a replica that could not be used is not asked again.
const PAUSE: Duration = Duration::from_secs(2);
/// More marks than this are thinned out; one a second, they reach further back than any limit.
const MARKS: usize = 128;

/// How far a server's log has come, in bytes, and of which cluster it is.
type Position = (i64, i64);

/// Why the replica is not read.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    #[error("it failed a moment ago")]
    Resting,
    #[error("it does not show what the primary had {} ms ago", .0.as_millis())]
    TooOld(Duration),
    #[error("it is not a standby")]
    NotAStandby,
    #[error("it is a standby of another cluster")]
    Stranger,
    #[error("replica: {0}")]
    Failed(#[source] sqlx::Error),
    #[error("primary: {0}")]
    Primary(#[source] sqlx::Error),
}

#[derive(Debug, Default)]
struct State {
    /// When the primary's log was how far, oldest first.
    marks: VecDeque<(Instant, i64)>,
    resting_until: Option<Instant>,
    /// Whether the last read was of the replica; `None` before the first.
    is_used: Option<bool>,
}

/// See the module's text.
#[derive(Debug)]
pub struct Replica {
    pool: Pool,
    limit: Duration,
    state: Mutex<State>,
}

/// A place to read from, and how old it may be.
struct Fresh {
    transaction: Transaction,
    age: Duration,
}

impl Replica {
    /// `limit`: what is older is not read.
    pub fn new(pool: Pool, limit: Duration) -> Self {
        Self {
            pool,
            limit,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock can leave the value half-changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `read` in a transaction of the replica, if that is young enough. Says in the log when this
    /// begins and when it ends.
    pub async fn read<T>(
        &self,
        primary: &Pool,
        read: impl AsyncFnOnce(&mut Transaction) -> Result<T, sqlx::Error>,
    ) -> Result<(T, Duration), Unusable> {
        let outcome = self.try_read(primary, read).await;
        let mut state = self.state();
        let is_used = outcome.is_ok();
        if let Err(reason) = &outcome {
            if !matches!(reason, Unusable::Resting) {
                state.resting_until = Some(Instant::now() + PAUSE);
            }
            if state.is_used != Some(false) {
                tracing::warn!(%reason, "the replica is not read; the primary is");
            }
        } else {
            state.resting_until = None;
            if state.is_used == Some(false) {
                tracing::info!("the replica is read again");
            }
        }
        state.is_used = Some(is_used);
        outcome
    }

    async fn try_read<T>(
        &self,
        primary: &Pool,
        read: impl AsyncFnOnce(&mut Transaction) -> Result<T, sqlx::Error>,
    ) -> Result<(T, Duration), Unusable> {
        let asked = Instant::now();
        let (came, cluster) = position_of_primary(primary).await?;
        let rests = {
            let mut state = self.state();
            note(&mut state.marks, asked, came);
            state.resting_until.is_some_and(|until| asked < until)
        };
        if rests {
            return Err(Unusable::Resting);
        }
        let reading = async {
            let Fresh {
                mut transaction,
                age,
            } = self.begin(cluster).await?;
            let found = read(&mut transaction).await.map_err(Unusable::Failed)?;
            transaction.rollback().await.map_err(Unusable::Failed)?;
            Ok((found, age))
        };
        tokio::time::timeout(PATIENCE, reading)
            .await
            .unwrap_or_else(|_| Err(Unusable::Failed(timed_out())))
    }

    async fn begin(&self, cluster: i64) -> Result<Fresh, Unusable> {
        // Read committed: what is read after the position is at least as new as it.
        let mut transaction = Transaction::begin(&self.pool, "BEGIN READ ONLY")
            .await
            .map_err(Unusable::Failed)?;
        let (replayed, own): (Option<i64>, i64) = sqlx::query_as(
            "SELECT (pg_last_wal_replay_lsn() - '0/0'::pg_lsn)::bigint,
                    (SELECT system_identifier FROM pg_control_system()) FROM pg_is_in_recovery() WHERE pg_is_in_recovery",
        )
        .fetch_optional(&mut *transaction)
        .await
        .map_err(Unusable::Failed)?
        .ok_or(Unusable::NotAStandby)?;
        if own != cluster {
            return Err(Unusable::Stranger);
        }
        let passed = newest_passed(&self.state().marks, replayed.unwrap_or(0));
        let age = passed.map_or(Duration::MAX, |mark| mark.elapsed());
        if age > self.limit {
            return Err(Unusable::TooOld(self.limit));
        }
        Ok(Fresh { transaction, age })
    }
}

async fn position_of_primary(primary: &Pool) -> Result<Position, Unusable> {
    sqlx::query_as(
        "SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint,
                (SELECT system_identifier FROM pg_control_system())",
    )
    .fetch_one(primary)
    .await
    .map_err(Unusable::Primary)
}

/// Keeps a mark. Of many the oldest go: they are older than any limit.
fn note(marks: &mut VecDeque<(Instant, i64)>, at: Instant, position: i64) {
    // A primary that is behind itself is another one: a standby took over and lacks the end.
    marks.retain(|(_, before)| *before <= position);
    marks.push_back((at, position));
    if marks.len() > MARKS {
        marks.pop_front();
    }
}

/// When the newest mark was made that lies behind this position.
fn newest_passed(marks: &VecDeque<(Instant, i64)>, position: i64) -> Option<Instant> {
    let passed = marks.iter().rev().find(|(_, mark)| *mark <= position);
    passed.map(|(at, _)| *at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against the whole history: the age that is told is never less than the true one.
        #[test]
        fn what_is_shown_is_at_least_as_new_as_told(
            steps in prop::collection::vec((0i64..50, 0u64..3_000), 1..60),
            behind in 0i64..200,
        ) {
            let start = Instant::now();
            let (mut marks, mut history) = (VecDeque::new(), Vec::new());
            let (mut position, mut ms) = (0, 0);
            for (grown, later) in steps {
                position += grown;
                ms += later;
                let at = start + Duration::from_millis(ms);
                note(&mut marks, at, position);
                history.push((at, position));
            }
            let replayed = (position - behind).max(0);
            let told = newest_passed(&marks, replayed);
            let true_one = history.iter().rev().find(|(_, mark)| *mark <= replayed).map(|(at, _)| *at);
            prop_assert_eq!(told, true_one);
        }

        #[test]
        fn marks_are_bounded(positions in prop::collection::vec(any::<i64>(), 0..400)) {
            let mut marks = VecDeque::new();
            for position in positions {
                note(&mut marks, Instant::now(), position);
                prop_assert!(marks.len() <= MARKS);
                prop_assert!(marks.iter().all(|(_, mark)| *mark <= position));
            }
        }
    }
}
