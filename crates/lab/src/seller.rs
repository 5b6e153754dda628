//! What a node of a strategy does.

use crate::{
    selling::{Buyer, Outcome, Trouble, Trying},
    stand::Stand,
};
use futures_util::future::BoxFuture;

/// What one node keeps in memory to sell one way.
pub trait Sell: Send + Sync + 'static {
    /// One purchase. The future may be dropped anywhere: that is how a node crashes.
    fn buy(&self, stand: &Stand, buyer: &Buyer) -> impl Trying<Outcome> + Send;

    /// Waits until everything that was answered has been written. The caller bounds it.
    fn settle(&self, _: &Stand) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Ends the node in order. A crash does not call it.
    fn close(&self, _: &Stand) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// [`Sell`] as an arena holds it.
pub trait Seller: Send + Sync + 'static {
    fn buy<'a>(
        &'a self,
        stand: &'a Stand,
        buyer: &'a Buyer,
    ) -> BoxFuture<'a, Result<Outcome, Trouble>>;
    fn settle<'a>(&'a self, stand: &'a Stand) -> BoxFuture<'a, ()>;
    fn close<'a>(&'a self, stand: &'a Stand) -> BoxFuture<'a, ()>;
}

impl<T: Sell> Seller for T {
    fn buy<'a>(
        &'a self,
        stand: &'a Stand,
        buyer: &'a Buyer,
    ) -> BoxFuture<'a, Result<Outcome, Trouble>> {
        Box::pin(Sell::buy(self, stand, buyer))
    }

    fn settle<'a>(&'a self, stand: &'a Stand) -> BoxFuture<'a, ()> {
        Box::pin(Sell::settle(self, stand))
    }

    fn close<'a>(&'a self, stand: &'a Stand) -> BoxFuture<'a, ()> {
        Box::pin(Sell::close(self, stand))
    }
}
