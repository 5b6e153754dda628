//! Selling: who buys, how a purchase ends, and what a node of a strategy does.

use futures_util::future::BoxFuture;
use locks::LockError;
use std::{
    future::Future,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

/// Who buys.
#[derive(Debug, Clone)]
pub struct Buyer {
    pub name: String,
}

impl Buyer {
    /// Always the same for a name.
    pub fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.name.hash(&mut hasher);
        hasher.finish()
    }
}

/// How a purchase ends. Being refused is an answer, not an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Sold {
        order_id: String,
    },
    SoldOut,
    /// The buyer has as many as allowed.
    Duplicate,
    /// Others were faster at the lock or at the row; trying again may help.
    Contended,
}

/// Why a purchase came to no answer.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    #[error("postgres: {0}")]
    Postgres(#[from] sqlx::Error),
    #[error("redis: {0}")]
    Redis(#[from] redis::RedisError),
    #[error("the shop: {0}")]
    Shop(Box<dyn std::error::Error + Send + Sync>),
    #[error("the lock: {0}")]
    Lock(#[from] LockError),
    /// The node has crashed and is not up again.
    #[error("the node is down")]
    NodeIsDown,
    #[error("{0}")]
    Other(String),
}

impl Trouble {
    /// Whether Postgres said this.
    pub fn is(&self, sqlstate: &str) -> bool {
        self.sqlstate().as_deref() == Some(sqlstate)
    }

    /// The five characters by which Postgres says what went wrong.
    pub fn sqlstate(&self) -> Option<String> {
        match self {
            Self::Postgres(sqlx::Error::Database(error))
            | Self::Lock(LockError::Postgres(sqlx::Error::Database(error))) => {
                error.code().map(|code| code.into_owned())
            }
            _ => None,
        }
    }
}

/// One node of an arena, selling one way.
pub trait Sell: Send + Sync + 'static {
    /// One purchase. The future may be dropped anywhere: that is how a node crashes.
    fn buy(&self, buyer: &Buyer) -> impl Future<Output = Result<Outcome, Trouble>> + Send;

    /// Waits until everything that was answered has been written. The caller bounds it.
    fn settle(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Ends the node in order. A crash does not call it.
    fn close(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// [`Sell`] as the registry holds it.
pub trait Seller: Send + Sync + 'static {
    fn buy<'a>(&'a self, buyer: &'a Buyer) -> BoxFuture<'a, Result<Outcome, Trouble>>;
    fn settle(&self) -> BoxFuture<'_, ()>;
    fn close(&self) -> BoxFuture<'_, ()>;
}

impl<T: Sell> Seller for T {
    fn buy<'a>(&'a self, buyer: &'a Buyer) -> BoxFuture<'a, Result<Outcome, Trouble>> {
        Box::pin(Sell::buy(self, buyer))
    }

    fn settle(&self) -> BoxFuture<'_, ()> {
        Box::pin(Sell::settle(self))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(Sell::close(self))
    }
}

pub type Opening = BoxFuture<'static, Result<Arc<dyn Seller>, Trouble>>;

/// A node that is open as soon as it exists.
pub fn ready(node: impl Sell) -> Opening {
    Box::pin(async move { Ok(Arc::new(node) as Arc<dyn Seller>) })
}

/// A node that has something to prepare.
pub fn opening<T: Sell>(
    node: impl Future<Output = Result<T, Trouble>> + Send + 'static,
) -> Opening {
    Box::pin(async move { Ok(Arc::new(node.await?) as Arc<dyn Seller>) })
}
