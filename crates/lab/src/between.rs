//! Taking a hand between the commands of a lock, whose code knows nothing of it.

use crate::stand::Stand;
use futures_util::future::BoxFuture;
use locks::wire::{Sent, Verdict, Watcher};

/// The node may crash before one command, and two clients meet after another.
pub struct Between {
    pub stand: Stand,
    /// The first words of the command, and the crash point.
    pub crash: (&'static str, &'static str),
    /// The first words of the command, and the place.
    pub meeting: (&'static str, &'static str),
}

impl Watcher for Between {
    fn before<'a>(&'a self, sent: &'a Sent) -> BoxFuture<'a, Verdict> {
        Box::pin(async {
            let (stand, (command, place)) = (self.stand.clone(), self.meeting);
            if sent.text.starts_with(self.crash.0) {
                stand.crash_point(self.crash.1).await;
            }
            if !sent.text.starts_with(command) {
                return Verdict::Go;
            }
            Verdict::GoThenWait(Box::pin(async move { stand.meet(place).await }))
        })
    }
}
