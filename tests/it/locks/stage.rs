//! A watcher that a test directs: it stops a client between two requests, and breaks what it is told to.

use super::soon;
use flash_sale::lock::wire::{Reply, Sent, Verdict, Watcher};
use futures_util::future::BoxFuture;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

/// What the director has asked for, and what the client has done.
#[derive(Default)]
pub struct Stage(Mutex<Plot>);

#[derive(Default)]
struct Plot {
    cues: Vec<Cue>,
    sent: Vec<(String, Sent)>,
}

struct Cue {
    node: Option<String>,
    text: String,
    act: Act,
    left: u32,
}

#[derive(Clone)]
enum Act {
    Fail,
    Lose,
    HoldBefore(Gate),
    HoldAfter(Gate),
}

/// A place where a client stands until the director lets it go on.
#[derive(Clone)]
pub struct Gate {
    reached: watch::Sender<bool>,
    open: watch::Sender<bool>,
}

impl Gate {
    fn new() -> Self {
        Self {
            reached: watch::Sender::new(false),
            open: watch::Sender::new(false),
        }
    }

    /// Until the client stands there.
    pub async fn reached(&self) {
        let mut reached = self.reached.subscribe();
        soon(
            "a client reaches the gate",
            reached.wait_for(|reached| *reached),
        )
        .await
        .expect("a gate");
    }

    pub fn open(&self) {
        self.open.send_replace(true);
    }

    async fn stand(&self) {
        self.reached.send_replace(true);
        let mut open = self.open.subscribe();
        open.wait_for(|open| *open).await.expect("a gate");
    }
}

impl Stage {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    fn cue(&self, node: Option<&str>, text: &str, act: Act, times: u32) {
        self.0.lock().expect("no panic").cues.push(Cue {
            node: node.map(str::to_owned),
            text: text.to_owned(),
            act,
            left: times,
        });
    }

    /// The next `times` requests with this text are never sent.
    pub fn fail(&self, text: &str, times: u32) {
        self.cue(None, text, Act::Fail, times);
    }

    pub fn fail_on(&self, node: &str, text: &str, times: u32) {
        self.cue(Some(node), text, Act::Fail, times);
    }

    /// The next `times` requests with this text are done, and their replies lost.
    pub fn lose(&self, text: &str, times: u32) {
        self.cue(None, text, Act::Lose, times);
    }

    pub fn lose_on(&self, node: &str, text: &str, times: u32) {
        self.cue(Some(node), text, Act::Lose, times);
    }

    /// The next request with this text waits before it is sent.
    pub fn hold(&self, text: &str) -> Gate {
        let gate = Gate::new();
        self.cue(None, text, Act::HoldBefore(gate.clone()), 1);
        gate
    }

    /// The next request with this text is done, and its client gets the reply only when the gate opens.
    pub fn hold_after(&self, text: &str) -> Gate {
        let gate = Gate::new();
        self.cue(None, text, Act::HoldAfter(gate.clone()), 1);
        gate
    }

    /// Forgets what was asked for and did not come up.
    pub fn clear(&self) {
        self.0.lock().expect("no panic").cues.clear();
    }

    /// How many requests with this text were really sent and answered.
    pub fn answered(&self, text: &str) -> usize {
        let plot = self.0.lock().expect("no panic");
        let matching = plot
            .sent
            .iter()
            .filter(|(reply, sent)| sent.text.contains(text) && reply == "answer");
        matching.count()
    }

    /// Everything that came to an end, in order.
    pub fn texts(&self) -> Vec<String> {
        let plot = self.0.lock().expect("no panic");
        plot.sent
            .iter()
            .map(|(_, sent)| sent.text.clone())
            .collect()
    }

    pub fn last(&self) -> Option<Sent> {
        let plot = self.0.lock().expect("no panic");
        plot.sent.last().map(|(_, sent)| sent.clone())
    }
}

impl Watcher for Stage {
    fn before<'a>(&'a self, sent: &'a Sent) -> BoxFuture<'a, Verdict> {
        let act = {
            let mut plot = self.0.lock().expect("no panic");
            let cue = plot.cues.iter_mut().find(|cue| {
                cue.left > 0
                    && sent.text.contains(&cue.text)
                    && cue.node.as_ref().is_none_or(|node| **node == *sent.node)
            });
            cue.map(|cue| {
                cue.left -= 1;
                cue.act.clone()
            })
        };
        Box::pin(async move {
            match act {
                None => Verdict::Go,
                Some(Act::Fail) => Verdict::Fail,
                Some(Act::Lose) => Verdict::LoseReply,
                Some(Act::HoldBefore(gate)) => {
                    gate.stand().await;
                    Verdict::Go
                }
                Some(Act::HoldAfter(gate)) => {
                    Verdict::GoThenWait(Box::pin(async move { gate.stand().await }))
                }
            }
        })
    }

    fn after(&self, sent: &Sent, reply: &Reply) {
        let kind = match reply {
            Reply::Answer(_) => "answer",
            Reply::Error(_) => "error",
            Reply::NotSent => "not sent",
            Reply::Lost(_) => "lost",
        };
        let mut plot = self.0.lock().expect("no panic");
        plot.sent.push((kind.to_owned(), sent.clone()));
    }
}
