//! Has this machine stood still? Measured, so that a verdict need not be excused.
//!
//! ```text
//! a task of the play: sleep 10 ms ── woke up 90 ms later ──▶ 80 ms are missing
//! the stage hand's own looks: took 60 ms ──────────────────▶ 50 ms are missing
//! a request let pass: replied to, or given up, after 70 ms ▶ 60 ms are missing
//! ```
//!
//! A play is begun again only if so much time is missing that a lease may have ended by it.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::task::AbortOnDropHandle;

const TICK: Duration = Duration::from_millis(10);

/// Runs as long as it is held.
pub struct PauseDetector {
    /// Every delay, and when it was over.
    missing: Arc<Mutex<Vec<(Instant, Duration)>>>,
    _ticking: AbortOnDropHandle<()>,
}

impl PauseDetector {
    pub fn start() -> Self {
        let missing = Arc::default();
        let noted = Arc::clone(&missing);
        let ticking = tokio::spawn(async move {
            loop {
                let before = Instant::now();
                tokio::time::sleep(TICK).await;
                note(&noted, before.elapsed());
            }
        });
        Self { missing, _ticking: AbortOnDropHandle::new(ticking) }
    }

    /// So long took what should come at once.
    pub fn note(&self, took: Duration) {
        note(&self.missing, took);
    }

    /// How much time is missing since then.
    pub fn missing_since(&self, since: Instant) -> Duration {
        let delays = self.missing.lock();
        delays.iter().filter(|(over, _)| *over >= since).map(|(_, delay)| *delay).sum()
    }
}

/// Something took so long that should have taken one tick. What two notice is missing once.
fn note(missing: &Mutex<Vec<(Instant, Duration)>>, took: Duration) {
    // A scheduler is a little late each time.
    if took <= TICK * 2 {
        return;
    }
    let mut missing = missing.lock();
    let now = Instant::now();
    let mut from = now - (took - TICK);
    while let Some((over, delay)) = missing.pop_if(|(over, _)| *over > from) {
        from = from.min(over - delay);
    }
    missing.push((now, now - from));
}
