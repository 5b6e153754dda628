//! Waiting for what should happen at once.

use super::error::{LessonError, Result};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How long anything on stage may take that should happen at once. Also a server's answer: a busy
/// machine is no failure of the lesson's.
pub const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two looks.
const POLL: Duration = Duration::from_millis(5);

/// What should happen at once, or soon on a busy machine.
pub async fn in_time<T>(what: impl Future<Output = T>, otherwise: &'static str) -> Result<T> {
    timeout(STEP_TIMEOUT, what).await.map_err(|_| LessonError::TooSlow(otherwise))
}

/// Looks again and again until it is so.
pub async fn until<F>(otherwise: &'static str, is_so: impl Fn() -> F) -> Result
where
    F: Future<Output = Result<bool>>,
{
    let waiting = async {
        while !is_so().await? {
            sleep(POLL).await;
        }
        Ok(())
    };
    in_time(waiting, otherwise).await?
}
