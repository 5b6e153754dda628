//! Controlled by a test, it fails requests, loses replies, and stops a client between two.

use super::soon;
use futures_util::future::BoxFuture;
use locks::wire::{Reply, Sent, Verdict, Watcher};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

#[derive(Default)]
pub struct Interceptor(Mutex<State>);

#[derive(Default)]
struct State {
    faults: Vec<Fault>,
    ended: Vec<(Sent, bool)>,
}

struct Fault {
    /// Parts of `node request`, such as `redis-3*SET lock`.
    text: String,
    kind: Kind,
    left: u32,
}

#[derive(Clone)]
enum Kind {
    Fail,
    LoseReply,
    Before(Breakpoint),
    After(Breakpoint),
}

#[derive(Clone, Default)]
pub struct Breakpoint {
    reached: CancellationToken,
    resumed: CancellationToken,
}

impl Breakpoint {
    pub async fn reached(&self) {
        soon("a client reaches the breakpoint", self.reached.cancelled()).await;
    }

    pub fn resume(&self) {
        self.resumed.cancel();
    }

    async fn stop(self) {
        self.reached.cancel();
        self.resumed.cancelled().await;
    }
}

impl Interceptor {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic")
    }

    fn add(&self, text: &str, kind: Kind, left: u32) {
        self.state().faults.push(Fault { text: text.to_owned(), kind, left });
    }

    /// The next `times` requests with this text are never sent.
    pub fn fail(&self, text: &str, times: u32) {
        self.add(text, Kind::Fail, times);
    }

    /// The next `times` requests with this text are done, and their replies lost.
    pub fn lose(&self, text: &str, times: u32) {
        self.add(text, Kind::LoseReply, times);
    }

    pub fn hold(&self, text: &str) -> Breakpoint {
        let breakpoint = Breakpoint::default();
        self.add(text, Kind::Before(breakpoint.clone()), 1);
        breakpoint
    }

    /// The next request with this text is done, and its reply waits.
    pub fn hold_after(&self, text: &str) -> Breakpoint {
        let breakpoint = Breakpoint::default();
        self.add(text, Kind::After(breakpoint.clone()), 1);
        breakpoint
    }

    pub fn clear(&self) {
        self.state().faults.clear();
    }

    pub fn answered(&self, text: &str) -> usize {
        let state = self.state();
        let answered = state.ended.iter().filter(|(_, answered)| *answered);
        answered.filter(|(sent, _)| has_parts(&sent.text, text)).count()
    }

    pub fn texts(&self) -> Vec<String> {
        self.state().ended.iter().map(|(sent, _)| sent.text.clone()).collect()
    }
}

fn has_parts(text: &str, pattern: &str) -> bool {
    pattern.split('*').all(|part| text.contains(part))
}

impl Watcher for Interceptor {
    fn before<'a>(&'a self, sent: &'a Sent) -> BoxFuture<'a, Verdict> {
        let request = format!("{} {}", sent.node, sent.text);
        let mut state = self.state();
        let mut faults = state.faults.iter_mut();
        let fault = faults.find(|fault| fault.left > 0 && has_parts(&request, &fault.text));
        let kind = fault.map(|fault| {
            fault.left -= 1;
            fault.kind.clone()
        });
        Box::pin(async move {
            match kind {
                None => Verdict::Go,
                Some(Kind::Fail) => Verdict::Fail,
                Some(Kind::LoseReply) => Verdict::LoseReply,
                Some(Kind::Before(breakpoint)) => {
                    breakpoint.stop().await;
                    Verdict::Go
                }
                Some(Kind::After(breakpoint)) => Verdict::GoThenWait(Box::pin(breakpoint.stop())),
            }
        })
    }

    fn after(&self, sent: &Sent, reply: &Reply) {
        self.state().ended.push((sent.clone(), matches!(reply, Reply::Answer(_))));
    }
}
