//! Crashes and interleaving between the commands of a lock, without a hook in its code.

use crate::bench::Bench;
use futures_util::future::BoxFuture;
use locks::wire::{Line, Sent, Verdict, Watcher};
use std::sync::Arc;

struct Between {
    bench: Bench,
    crash: (&'static str, &'static str),
    interleaving: (&'static str, &'static str),
}

impl Bench {
    /// The shop's Redis. The node may crash before one command, and clients meet after another;
    /// each is given by the command's first words, and the name of the point or the place.
    pub fn line_between(
        &self,
        crash: (&'static str, &'static str),
        interleaving: (&'static str, &'static str),
    ) -> Line {
        self.line.clone().watched_by(Arc::new(Between { bench: self.clone(), crash, interleaving }))
    }
}

impl Watcher for Between {
    fn before<'a>(&'a self, sent: &'a Sent) -> BoxFuture<'a, Verdict> {
        Box::pin(async {
            let (bench, (command, place)) = (self.bench.clone(), self.interleaving);
            if sent.text.starts_with(self.crash.0) {
                bench.crash_point(self.crash.1).await;
            }
            if !sent.text.starts_with(command) {
                return Verdict::Go;
            }
            Verdict::GoThenWait(Box::pin(async move { bench.interleaving_point(place).await }))
        })
    }
}
