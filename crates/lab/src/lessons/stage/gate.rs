//! Where a client's requests wait until the director lets them pass.

use futures_util::future::BoxFuture;
use locks::wire::{Reply, Sent, Verdict, Watcher};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::sync::{Notify, oneshot};

/// Where a client's requests wait.
#[derive(Default)]
pub(super) struct Gate {
    pub waiting: Mutex<VecDeque<Waiting>>,
    /// By the number of the request.
    pub replies: Mutex<HashMap<u64, Reply>>,
    pub heard: Mutex<VecDeque<String>>,
    arrived: Notify,
    pub dead: AtomicBool,
    /// Nobody watches any more: what is left to tidy up passes by itself.
    pub open: AtomicBool,
}

pub(super) struct Waiting {
    pub sent: Sent,
    pub decide: oneshot::Sender<Verdict>,
}

/// Which of a client's requests: by default all of its work, to any node.
#[derive(Clone, Copy, Default)]
pub(super) struct Which {
    /// What a watchdog sends, beside the work.
    pub is_renewal: bool,
    pub node: Option<&'static str>,
}

impl Waiting {
    fn is(&self, which: Which) -> bool {
        let is_renewal = self.sent.text.contains("renew.lua");
        let is_to_it = which.node.is_none_or(|node| node == &*self.sent.node);
        !self.decide.is_closed() && is_renewal == which.is_renewal && is_to_it
    }
}

impl Watcher for Gate {
    fn before<'a>(&'a self, sent: &'a Sent) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            if self.open.load(Relaxed) {
                return Verdict::Go;
            }
            if self.dead.load(Relaxed) {
                return Verdict::Fail;
            }
            let (decide, decided) = oneshot::channel();
            self.waiting.lock().push_back(Waiting { sent: sent.clone(), decide });
            self.arrived.notify_waiters();
            // Or nobody will ever let it pass: the play is over, or its client dead.
            decided.await.unwrap_or(Verdict::Fail)
        })
    }

    fn after(&self, sent: &Sent, reply: &Reply) {
        self.replies.lock().insert(sent.id, reply.clone());
        self.arrived.notify_waiters();
    }

    fn heard(&self, channel: &str, message: &str) {
        self.heard.lock().push_back(format!("{channel}: {message}"));
        self.arrived.notify_waiters();
    }
}

impl Gate {
    /// Waits until `found` finds something.
    pub async fn wait<T>(&self, found: impl Fn() -> Option<T>) -> T {
        loop {
            let arrival = self.arrived.notified();
            tokio::pin!(arrival);
            arrival.as_mut().enable();
            if let Some(it) = found() {
                return it;
            }
            arrival.await;
        }
    }

    /// Whether the client stands before a request of its work.
    pub fn is_met(&self) -> bool {
        self.waiting.lock().iter().any(|one| one.is(Which::default()))
    }

    /// The first request of this kind.
    pub fn first(&self, which: Which) -> Option<Waiting> {
        let mut waiting = self.waiting.lock();
        let index = waiting.iter().position(|one| one.is(which))?;
        waiting.remove(index)
    }
}
