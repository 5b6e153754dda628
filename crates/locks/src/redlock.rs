//! A majority of several independent Redis nodes.
//!
//! Source: the page "Distributed Locks with Redis" (Redlock), Martin Kleppmann's "How to do
//! distributed locking" against it, and the weighing of both in 《突击Redis重大事故现场》.
//!
//! Crashes. Of the holder: the leases end. Of a minority of nodes: nothing. A node that returns
//! *without its data* within a lease, or whose clock jumps, may grant the lock again, and there are
//! two majorities. After a crash a node must stay away for longer than the longest lease, which
//! nothing here can ensure.
//!
//! Not given: a paused holder may overlap with the next one, as with one node.

use super::nodes::{Nodes, Rule};
use super::prelude::*;
use futures_util::future::join_all;

/// See the head of this file. The driver counts the lease from before the first request, less the
/// drift of the nodes' clocks, and gives up a majority that came too late.
pub type Redlock = Nodes<Majority>;

#[derive(Clone)]
pub struct Majority;

impl Rule for Majority {
    fn needed(nodes: usize) -> usize {
        trace!(nodes, "a majority has to agree");
        //= FLAW a node that forgets within a lease can be part of a second majority
        //= FLAW with a majority of them down nobody gets in
        //= CURE one node may be away; and one that has forgotten is no majority by itself
        nodes / 2 + 1
    }

    async fn take(nodes: &Nodes<Self>, claim: &Claim) -> Vec<Answer<bool>> {
        trace!("all at once");
        //= CURE all at once: the lease on the first node must not run out while others are asked
        join_all(nodes.lines.iter().map(|node| nodes.take(node, claim))).await
    }
}
