//! All of several independent Redis nodes.
//!
//! Source: Redisson's multi-lock over equal nodes, as in the course notes 《秒杀》: a failover cannot
//! forget the lock, since no node is a copy of another.
//!
//! ```text
//! on each node:  NAME  string: the holder's token, expires with the lease
//!                NAME:freed  sorted set: the tokens given back in the last seconds
//! ```
//!
//! Crashes. Of the holder: the leases end. Of one node: nobody gets the lock until it is back. So
//! it survives the loss of *data* on all nodes but one, and the loss of no node.
//!
//! Nodes are taken in the given order, so two clients never hold one half each. After a failure all
//! nodes are released, those too that did not answer.

use super::{
    Acquired, Guard, Hold, Lock, LockError, Lost, Released, Retry, Undo, Why,
    token::{RELEASE_ATTEMPTS, RENEW, release, undo},
    watchdog::Watchdog,
    wire::{Line, ScriptCall, millis},
};
use futures_util::future::join_all;
use redis::{RedisError, cmd};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

const PAUSE: Duration = Duration::from_millis(20);

/// See the head of this file.
#[derive(Clone)]
pub struct MultiLock {
    nodes: Arc<[Line]>,
    lease: Duration,
    renewed: bool,
}

impl MultiLock {
    /// Each node must be a Redis of its own, and no replica of another.
    pub fn new(nodes: Vec<Line>, lease: Duration) -> Self {
        Self { nodes: nodes.into(), lease, renewed: false }
    }

    /// Renews the lease on all nodes every third of it for as long as the guard lives.
    pub fn renewed(mut self) -> Self {
        self.renewed = true;
        self
    }

    /// Whether all nodes were taken.
    async fn attempt(&self, name: &str, token: &str) -> Result<bool, LockError> {
        for node in self.nodes.iter() {
            match take(node, name, token, self.lease).await {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => return Err(node.lock_error(error)),
            }
        }
        Ok(true)
    }

    fn guard(&self, name: &str, token: String, hold: Hold) -> MultiGuard {
        let watchdog = self.renewed.then(|| {
            let (nodes, lease) = (self.nodes.clone(), self.lease);
            let (name, token) = (Arc::<str>::from(name), Arc::<str>::from(&*token));
            Watchdog::start(hold.clone(), lease, move || {
                let (nodes, name, token) = (nodes.clone(), name.clone(), token.clone());
                async move {
                    let renewed = renew_everywhere(&nodes, &name, &token, lease).await;
                    if let Some(error) = renewed.error {
                        return Err(error);
                    }
                    Ok(renewed.yes == nodes.len())
                }
            })
        });
        MultiGuard { nodes: self.nodes.clone(), name: name.to_owned(), token, hold, watchdog }
    }
}

impl Lock for MultiLock {
    type Guard = MultiGuard;

    async fn acquire(&self, name: &str, wait: Duration) -> Result<Acquired<MultiGuard>, LockError> {
        let Some(first) = self.nodes.first() else {
            return Err(LockError::NoQuorum { got: 0, needed: 1 });
        };
        let token = first.unique_token();
        let retry = Retry::new(wait, PAUSE);
        let mut undo = Undo::with({
            let (nodes, name, token) = (self.nodes.clone(), name.to_owned(), token.clone());
            || async move {
                give_up_everywhere(&nodes, &name, &token).await;
            }
        });
        loop {
            let sent = Instant::now();
            undo.arm(true);
            let outcome = match self.attempt(name, &token).await {
                Ok(true) => {
                    // Counted from before the first request: that lease ends first.
                    let hold = Hold::lease(sent, self.lease);
                    if !hold.is_lost() {
                        undo.arm(false);
                        return Ok(Acquired::Held(self.guard(name, token, hold)));
                    }
                    Ok(Acquired::Contended { remaining: None })
                }
                Ok(false) => Ok(Acquired::Contended { remaining: None }),
                Err(error) => Err(error),
            };
            // Silent nodes too. The lease ends what cannot be reached.
            let released = give_up_everywhere(&self.nodes, name, &token).await;
            undo.arm(released.error.is_some());
            if !retry.allows_another(&outcome).await {
                return outcome;
            }
        }
    }
}

/// A held [`MultiLock`].
#[derive(Debug)]
pub struct MultiGuard {
    nodes: Arc<[Line]>,
    name: String,
    token: String,
    hold: Hold,
    watchdog: Option<Watchdog>,
}

impl Guard for MultiGuard {
    /// None: numbers of independent nodes cannot be compared with each other.
    fn fencing(&self) -> Option<u64> {
        None
    }

    fn lost(&self) -> Lost {
        self.hold.lost()
    }

    /// Freed when all nodes have said so. A silent node is an error, since the lock stays there
    /// until its lease is over.
    async fn release(mut self) -> Result<Released, LockError> {
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.stop().await;
        }
        let released = release_everywhere(&self.nodes, &self.name, &self.token).await;
        if let Some(error) = released.error {
            return Err(error);
        }
        if released.yes == self.nodes.len() { Ok(Released::Freed) } else { Ok(Released::NotHeld) }
    }
}

impl Drop for MultiGuard {
    fn drop(&mut self) {
        self.hold.lose(Why::Released);
    }
}

// --- what redlock shares

/// Takes the lock on one node. If the token is there already (a lost reply), its lease is renewed,
/// so that this attempt can count on it.
pub(super) async fn take(
    node: &Line,
    name: &str,
    token: &str,
    lease: Duration,
) -> Result<bool, RedisError> {
    let before: Option<String> = node
        .send(cmd("SET").arg(name).arg(token).arg("NX").arg("GET").arg("PX").arg(millis(lease)))
        .await?;
    match before {
        None => Ok(true),
        Some(holder) if holder != token => Ok(false),
        Some(_) => {
            let call = RENEW.on(&[name]).arg(token).arg(millis(lease));
            node.run(&call).await
        }
    }
}

/// The answers of all nodes.
pub(super) struct Everywhere {
    pub yes: usize,
    pub no: usize,
    /// The error of a silent node.
    pub error: Option<LockError>,
}

impl Everywhere {
    fn sum(nodes: &[Line], answers: Vec<Result<bool, RedisError>>) -> Self {
        let mut sum = Self { yes: 0, no: 0, error: None };
        for (node, answer) in nodes.iter().zip(answers) {
            match answer {
                Ok(true) => sum.yes += 1,
                Ok(false) => sum.no += 1,
                Err(error) => sum.error = Some(node.lock_error(error)),
            }
        }
        sum
    }
}

/// Releases a held lock on all nodes at once. After a lost reply a node says yes to the retry; one
/// that lost its data says no.
pub(super) async fn release_everywhere(nodes: &[Line], name: &str, token: &str) -> Everywhere {
    everywhere(nodes, &release(name, token)).await
}

/// The same for a lock that was never held.
pub(super) async fn give_up_everywhere(nodes: &[Line], name: &str, token: &str) -> Everywhere {
    everywhere(nodes, &undo(name, token)).await
}

async fn everywhere(nodes: &[Line], call: &ScriptCall) -> Everywhere {
    let releases = nodes.iter().map(async |node| {
        let mut attempt = 1;
        loop {
            let answer = node.run(call).await;
            if answer.is_ok() || attempt == RELEASE_ATTEMPTS {
                return answer;
            }
            attempt += 1;
        }
    });
    Everywhere::sum(nodes, join_all(releases).await)
}

pub(super) async fn renew_everywhere(
    nodes: &[Line],
    name: &str,
    token: &str,
    lease: Duration,
) -> Everywhere {
    let renewals = nodes.iter().map(async |node| {
        let call = RENEW.on(&[name]).arg(token).arg(millis(lease));
        node.run(&call).await
    });
    Everywhere::sum(nodes, join_all(renewals).await)
}
