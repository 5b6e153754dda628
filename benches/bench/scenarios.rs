//! What is measured: each scenario says what it asks of whom and what the only right answer is.

use crate::load::Expected;
use clap::ValueEnum;
use flash_sale::lab::MOST_STOCK;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Scenario {
    /// Purchases that succeed, each by another user, each written to Postgres; fsync before the answer
    Accepted,
    /// The same with one fsync a second
    AcceptedEverysec,
    /// Purchases of a sale that has nothing left
    SoldOut,
    /// The same without an Idempotency-Key: answered from memory
    SoldOutKeyless,
    /// Purchases by users who have bought
    Duplicate,
    /// Looking at a sale
    Browse,
    /// Looking at an order that is in Postgres
    OrderStatus,
    /// The usual design: the lab's lua-sync, one script call and one insert a request
    Baseline,
}

/// The server that a scenario runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    FsyncAlways,
    FsyncEverysec,
}

impl Scenario {
    pub const ALL: [Self; 8] = [
        Self::Accepted,
        Self::AcceptedEverysec,
        Self::SoldOut,
        Self::SoldOutKeyless,
        Self::Duplicate,
        Self::Browse,
        Self::OrderStatus,
        Self::Baseline,
    ];

    /// As in the JSON and in `--only`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::AcceptedEverysec => "accepted-everysec",
            Self::SoldOut => "sold-out",
            Self::SoldOutKeyless => "sold-out-keyless",
            Self::Duplicate => "duplicate",
            Self::Browse => "browse",
            Self::OrderStatus => "order-status",
            Self::Baseline => "baseline",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Self::Accepted => "accepted, fsync always",
            Self::AcceptedEverysec => "accepted, fsync 1/s",
            Self::SoldOut => "sold out, with a retry key",
            Self::SoldOutKeyless => "sold out, without",
            Self::Duplicate => "duplicate",
            Self::Browse => "browse a sale",
            Self::OrderStatus => "order status",
            Self::Baseline => "baseline: lua-sync",
        }
    }

    /// Requests of a run at scale 1: a second or two of work on two cores.
    pub fn usual_count(self) -> usize {
        match self {
            Self::Accepted | Self::AcceptedEverysec => 100_000,
            Self::SoldOut | Self::SoldOutKeyless | Self::Duplicate | Self::Browse => 100_000,
            Self::OrderStatus => 20_000,
            // As much as an arena can hold.
            Self::Baseline => MOST_STOCK as usize,
        }
    }

    pub fn expected(self) -> Expected {
        let (status, marker) = match self {
            Self::Accepted | Self::AcceptedEverysec => (202, "\"status\":\"queued\""),
            Self::SoldOut | Self::SoldOutKeyless => (409, "\"code\":\"sold_out\""),
            Self::Duplicate => (409, "\"code\":\"already_ordered\""),
            Self::Browse => (200, "\"state\":\"open\""),
            Self::OrderStatus => (200, "\"status\":\"pending_payment\""),
            Self::Baseline => (200, "\"outcome\":\"sold\""),
        };
        Expected { status, marker }
    }

    pub fn server(self) -> Server {
        match self {
            Self::AcceptedEverysec => Server::FsyncEverysec,
            _ => Server::FsyncAlways,
        }
    }
}

/// Requests of a bare run at scale 1.
pub const BARE_COUNT: usize = 80_000;
pub const BARE_EXPECTED: Expected = Expected {
    status: 202,
    marker: "\"status\":\"queued\"",
};

/// How many different orders `order-status` looks at.
pub const ORDERS_LOOKED_AT: usize = 500;
