//! Taking a hand between the commands of a lock, whose code knows nothing of it.

use crate::stand::Stand;
use futures_util::future::BoxFuture;
use locks::wire::{Line, Sent, Verdict, Watcher};
use std::sync::Arc;

struct Between {
    stand: Stand,
    crash: (&'static str, &'static str),
    meeting: (&'static str, &'static str),
}

impl Stand {
    /// The shop's Redis. The node may crash before one command, and clients meet after another;
    /// each is given by the command's first words, and the name of the point or the place.
    pub fn line_between(
        &self,
        crash: (&'static str, &'static str),
        meeting: (&'static str, &'static str),
    ) -> Line {
        self.line.clone().watched_by(Arc::new(Between { stand: self.clone(), crash, meeting }))
    }
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
