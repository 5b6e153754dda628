//! All of several independent Redis nodes.
//!
//! Source: Redisson's multi-lock over equal nodes, as in the course notes 《秒杀》: a failover cannot
//! forget the lock, since no node is a copy of another.
//!
//! Crashes. Of the holder: the leases end. Of one node: nobody gets the lock until it is back. So
//! it survives the loss of *data* on all nodes but one, and the loss of no node.

use super::nodes::{Nodes, Rule};
use super::prelude::*;

/// See the head of this file.
pub type MultiLock = Nodes<All>;

#[derive(Clone)]
pub struct All;

impl Rule for All {
    fn needed(nodes: usize) -> usize {
        trace!(nodes, "all have to agree");
        //= FLAW all of them: one node that is down stops everybody
        //= CURE all of them: one node that has forgotten lets nobody in
        nodes
    }

    async fn take(nodes: &Nodes<Self>, claim: &Claim) -> Vec<Answer<bool>> {
        let mut answers = Vec::new();
        for node in nodes.lines.iter() {
            trace!(?node, "the next");
            //= CURE in the same order for everybody: no two clients hold one half each
            answers.push(nodes.take(node, claim).await);
            if !matches!(answers.last(), Some(Ok(true))) {
                break;
            }
        }
        answers
    }
}
