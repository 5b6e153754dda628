//! What is measured: each scenario says what it asks of whom and what the only right answer is.

use crate::load::Expected;
use clap::ValueEnum;
use lab::MOST_STOCK;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// Purchases that succeed, each by another user, each written to Postgres; fsync before the
    /// answer
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

pub const ACCEPTED: Expected = Expected { status: 202, marker: "\"status\":\"queued\"" };
pub const SOLD_OUT: Expected = Expected { status: 409, marker: "\"code\":\"sold_out\"" };

impl Scenario {
    /// As in the JSON and in `--only`; as in the table; requests of a run at scale 1, which take a
    /// second or two on two cores; and the right answer.
    pub fn facts(self) -> (&'static str, &'static str, usize, Expected) {
        const MANY: usize = 100_000;
        let duplicate = Expected { status: 409, marker: "\"code\":\"already_ordered\"" };
        let browse = Expected { status: 200, marker: "\"state\":\"open\"" };
        let order = Expected { status: 200, marker: "\"status\":\"pending_payment\"" };
        let sold = Expected { status: 200, marker: "\"outcome\":\"sold\"" };
        // As much as an arena can hold.
        let most = MOST_STOCK as usize;
        match self {
            Self::Accepted => ("accepted", "accepted, fsync always", MANY, ACCEPTED),
            Self::AcceptedEverysec => ("accepted-everysec", "accepted, fsync 1/s", MANY, ACCEPTED),
            Self::SoldOut => ("sold-out", "sold out, with a retry key", MANY, SOLD_OUT),
            Self::SoldOutKeyless => ("sold-out-keyless", "sold out, without", MANY, SOLD_OUT),
            Self::Duplicate => ("duplicate", "duplicate", MANY, duplicate),
            Self::Browse => ("browse", "browse a sale", MANY, browse),
            Self::OrderStatus => ("order-status", "order status", 20_000, order),
            Self::Baseline => ("baseline", "baseline: lua-sync", most, sold),
        }
    }

    pub fn name(self) -> &'static str {
        self.facts().0
    }

    pub fn title(self) -> &'static str {
        self.facts().1
    }
}

/// Requests of a bare run at scale 1.
pub const BARE_COUNT: usize = 80_000;

/// How many different orders `order-status` looks at.
pub const ORDERS_LOOKED_AT: usize = 500;
