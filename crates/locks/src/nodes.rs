//! One lock on several independent Redis nodes: what [`MultiLock`](super::MultiLock) and
//! [`Redlock`](super::Redlock) share. How many nodes decide is their [`Rule`].
//!
//! ```text
//! on each node:  NAME  string: the holder's token, expires with the lease
//!                NAME:freed  list: the tokens given back in the last seconds
//! ```
//!
//! Not given: a fencing token, since numbers of independent nodes cannot be compared.

use super::prelude::*;
use super::token::{release, renew, undo};
use futures_util::future::join_all;
use std::marker::PhantomData;

/// How many of the nodes decide, and how they are asked.
pub trait Rule: Clone + Sized + Send + Sync + 'static {
    fn needed(nodes: usize) -> usize;

    /// Tries to take the lock on the nodes, one after the other or all at once.
    fn take(nodes: &Nodes<Self>, claim: &Claim) -> impl Future<Output = Vec<Answer<bool>>> + Send;
}

/// A lock on these nodes.
#[derive(Clone)]
pub struct Nodes<R> {
    pub(super) lines: Arc<[Line]>,
    pub(super) lease: Lease,
    rule: PhantomData<R>,
}

impl<R: Rule> Nodes<R> {
    /// Each node must be independent, no replica of another. Their timeouts should be small against
    /// the lease.
    pub fn new(nodes: Vec<Line>, lease: Duration) -> Self {
        let lease = Lease { time: lease, renewed: false };
        Self { lines: nodes.into(), lease, rule: PhantomData }
    }

    /// Renews the lease every third of it for as long as the guard lives.
    pub fn renewed(mut self) -> Self {
        self.lease.renewed = true;
        self
    }

    /// Takes the lock on one node. If the token is there already (a lost reply), its lease is
    /// renewed, so that this attempt can count on it.
    pub(super) async fn take(&self, node: &Line, claim: &Claim) -> Answer<bool> {
        let mut set = cmd("SET");
        set.arg(&*claim.name).arg(&*claim.token).arg("NX").arg("GET").arg("PX");
        match node.ask::<Option<String>>(set.arg(millis(self.lease.time))).await? {
            None => Ok(true),
            Some(holder) if holder != *claim.token => Ok(false),
            Some(_) => node.ask(&renew(&claim.name, &claim.token, self.lease.time)).await,
        }
    }

    /// Whether enough nodes say yes; an error if too few answer.
    fn decide(&self, answers: Vec<Answer<bool>>) -> Answer<bool> {
        let needed = R::needed(self.lines.len()).max(1);
        let yes = answers.iter().filter(|answer| matches!(answer, Ok(true))).count();
        let answered = answers.iter().filter(|answer| answer.is_ok()).count();
        match answers.into_iter().filter_map(Result::err).last() {
            _ if yes >= needed => Ok(true),
            // Where no node can be missed, its own error says more.
            Some(error) if answered < needed && needed == self.lines.len() => Err(error),
            Some(_) if answered < needed => Err(LockError::NoQuorum { got: answered, needed }),
            None if self.lines.is_empty() => Err(LockError::NoQuorum { got: 0, needed }),
            _ => Ok(false),
        }
    }

    /// Asks all nodes at once, each as often as a release is asked for.
    async fn everywhere(&self, call: ScriptCall) -> Vec<Answer<bool>> {
        let asked = self.lines.iter().map(async |node| {
            for _ in 1..3 {
                if let Ok(answer) = node.ask(&call).await {
                    return Ok(answer);
                }
            }
            node.ask(&call).await
        });
        join_all(asked).await
    }
}

impl<R: Rule> Protocol for Nodes<R> {
    type Own = ();
    /// Each node is asked several times already.
    const RELEASES: u32 = 1;

    fn token(&self) -> String {
        self.lines.first().map(Line::unique_token).unwrap_or_default()
    }

    fn lease(&self) -> Option<Lease> {
        Some(self.lease)
    }

    async fn attempt(&self, claim: &Claim, _: Instant) -> Answer<Attempt> {
        Ok(Attempt::ours(self.decide(R::take(self, claim).await)?))
    }

    async fn renew(&self, claim: &Claim) -> Answer<bool> {
        let call = renew(&claim.name, &claim.token, self.lease.time);
        let answers = join_all(self.lines.iter().map(|node| node.ask(&call))).await;
        let refused = answers.iter().filter(|answer| matches!(answer, Ok(false))).count();
        let (left, needed) = (self.lines.len() - refused, R::needed(self.lines.len()));
        match self.decide(answers) {
            // The silent nodes may have it still: the watchdog asks again until the lease is over.
            Ok(false) if left >= needed => Err(LockError::NoQuorum { got: left, needed }),
            answer => answer,
        }
    }

    /// A silent node keeps the lock until its lease is over.
    async fn release(&self, claim: &Claim, _: &Hold, _: bool) -> Answer<Released> {
        trace!(name = &*claim.name, "given back");
        //= CURE on every node, compared and deleted there; one that fails does not stop the others
        let answers = self.everywhere(release(&claim.name, &claim.token)).await;
        Ok(Released::freed(self.decide(answers)?))
    }

    async fn undo(&self, claim: &Claim) {
        let _ = self.everywhere(undo(&claim.name, &claim.token)).await;
    }

    /// Gives back what some nodes have granted, at once.
    async fn settle(&self, claim: &Claim, _doubt: bool) -> bool {
        trace!(name = &*claim.name, "not enough");
        //= CURE on all nodes, those too that refused or did not answer
        let answers = self.everywhere(undo(&claim.name, &claim.token)).await;
        answers.iter().any(Result::is_err)
    }
}
