//! The work of one node of a strategy.

use crate::bench::Bench;
use crate::selling::{Buyer, Outcome, Result, Trying};
use futures_util::future::BoxFuture;

/// The memory of one node that sells by a strategy.
pub trait Sell: Send + Sync + 'static {
    /// One purchase. The future may be dropped anywhere: that is how a node crashes.
    fn buy(&self, bench: &Bench, buyer: &Buyer) -> impl Trying<Outcome> + Send;

    /// Waits until everything that was answered has been written. The caller bounds it.
    fn settle(&self, _: &Bench) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Ends the node in order. A crash does not call it.
    fn close(&self, _: &Bench) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// [`Sell`] as an arena holds it.
pub trait Seller: Send + Sync + 'static {
    fn buy<'a>(&'a self, bench: &'a Bench, buyer: &'a Buyer) -> BoxFuture<'a, Result<Outcome>>;
    fn settle<'a>(&'a self, bench: &'a Bench) -> BoxFuture<'a, ()>;
    fn close<'a>(&'a self, bench: &'a Bench) -> BoxFuture<'a, ()>;
}

impl<T: Sell> Seller for T {
    fn buy<'a>(&'a self, bench: &'a Bench, buyer: &'a Buyer) -> BoxFuture<'a, Result<Outcome>> {
        Box::pin(Sell::buy(self, bench, buyer))
    }

    fn settle<'a>(&'a self, bench: &'a Bench) -> BoxFuture<'a, ()> {
        Box::pin(Sell::settle(self, bench))
    }

    fn close<'a>(&'a self, bench: &'a Bench) -> BoxFuture<'a, ()> {
        Box::pin(Sell::close(self, bench))
    }
}
