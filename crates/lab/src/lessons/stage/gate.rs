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
    pub replies: Mutex<HashMap<u64, oneshot::Sender<Reply>>>,
    pub heard: Mutex<VecDeque<String>>,
    arrived: Notify,
    pub dead: AtomicBool,
    /// Nobody watches any more: what is left to tidy up passes by itself.
    pub open: AtomicBool,
}

pub(super) struct Waiting {
    pub sent: Sent,
    pub decide: oneshot::Sender<Decision>,
}

impl Waiting {
    /// What a watchdog sends, beside the work.
    pub fn is_renewal(&self) -> bool {
        self.sent.text.contains("renew.lua")
    }
}

/// Which of a client's requests.
#[derive(Debug, Clone, Copy)]
pub(super) enum Of {
    Work,
    WorkAt(&'static str),
    Watchdog,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    Go,
    Fail,
    LoseReply,
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
            match decided.await {
                Ok(Decision::Go) => Verdict::Go,
                Ok(Decision::LoseReply) => Verdict::LoseReply,
                // Nobody will ever let it pass: the play is over, or its client dead.
                Ok(Decision::Fail) | Err(_) => Verdict::Fail,
            }
        })
    }

    fn after(&self, sent: &Sent, reply: &Reply) {
        if let Some(waits) = self.replies.lock().remove(&sent.id) {
            let _ = waits.send(reply.clone());
        }
    }

    fn heard(&self, _client: &str, _node: &str, channel: &str, message: &str) {
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

    /// The first request of this kind.
    pub fn first(&self, of: Of) -> Option<Waiting> {
        let mut waiting = self.waiting.lock();
        let fits = |one: &Waiting| match of {
            Of::Work => !one.is_renewal(),
            Of::WorkAt(node) => !one.is_renewal() && &*one.sent.node == node,
            Of::Watchdog => one.is_renewal(),
        };
        let index = waiting.iter().position(|one| !one.decide.is_closed() && fits(one))?;
        waiting.remove(index)
    }
}
