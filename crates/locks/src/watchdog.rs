//! What runs beside a holder: the watchdog, which renews a lease as long as its holder lives.
//!
//! ```text
//! guard ──owns──▶ Watchdog ──task──▶ every third of the lease: renew ─┬─ yes: it begins anew
//!                    │                                              ├─ not ours: lost, at once
//!        drop: abort ┘                                              └─ silence: again
//! ```
//!
//! Crashes: the task dies with its process, and the lease ends. A paused process renews too late,
//! and learns of it.
//!
//! Known bugs that this avoids: renewing after an unlock, a failed unlock or a cancelled acquire
//! (the guard owns the task, and the release ends it first); stopping after one failed renewal (it
//! tries until the lease is over); renewing for ever on errors (it ends with the lease).
//!
//! A watchdog also keeps the lock of a holder that hangs: use none if the lock must end at a fixed
//! time.

use crate::hold::{Hold, Why};
use crate::protocol::{Claim, Protocol};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, trace};

/// A task beside one holder. Dropping it ends it.
pub type Watchdog = AbortOnDropHandle<()>;

pub fn start(task: impl Future<Output = ()> + Send + 'static) -> Watchdog {
    AbortOnDropHandle::new(tokio::spawn(task))
}

pub async fn renew<P: Protocol>(protocol: P, claim: Claim<P::Own>, hold: Hold, lease: Duration) {
    let mut pause = lease / 3;
    loop {
        //= CURE every third of the lease, for as long as the holder lives
        sleep(pause).await;
        let Some(end) = hold.sure_until().filter(|_| !hold.is_lost()) else {
            //= CURE the holder is told: by its own clock the lease is over
            hold.lose(Why::LeaseOver);
            return trace!(name = &*claim.name, "the lease is over");
        };
        trace!(name = &*claim.name, "renewing");
        let sent = Instant::now();
        pause = match timeout_at(end, protocol.renew(&claim)).await {
            Ok(Ok(true)) if hold.renewed(sent, lease) => lease / 3,
            Ok(Ok(false)) => return hold.lose(Why::NotOurs),
            //= CURE one failed renewal is tried again, until the lease is over
            Ok(Err(error)) => {
                debug!(%error, "a lease was not renewed; trying again");
                (lease / 20).max(Duration::from_millis(1))
            }
            // It is over by now.
            Ok(Ok(true)) | Err(_) => Duration::ZERO,
        };
    }
}
