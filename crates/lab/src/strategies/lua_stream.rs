//! `lua-stream`: the production path itself, not a copy of it.

use crate::{
    prelude::*,
    real_shop::{Premises, RealServer, schema_of, user_of},
};
use tokio::sync::OwnedSemaphorePermit;

struct Node {
    /// A shop and all its loops, as `flash-sale serve` runs them.
    server: Box<dyn RealServer>,
    stand: Stand,
    _place: OwnedSemaphorePermit,
}

pub fn open(stand: Stand) -> Opening {
    opening(async {
        let servers = stand.servers();
        let place = servers.production_node()?;
        let premises = Premises {
            postgres: servers.postgres.clone(),
            schema: schema_of(stand.arena()),
            redis_url: servers.redis_url.clone(),
            key_prefix: stand.key(""),
            stock: stand.stock(),
            per_user_limit: stand.per_user_limit(),
        };
        let server = servers.shop.open(premises).await?;
        Ok(Node { server, stand, _place: place })
    })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        self.stand.pause().await;
        self.stand.work().await;
        let outcome = self.server.buy(user_of(buyer)).await?;
        //= CURE answered only after script and log: whatever crashes now, the order is found again
        self.stand.crash_point("accepted").await;
        Ok(outcome)
    }

    async fn settle(&self) {
        self.server.settle().await;
        self.count_round_trips();
    }

    async fn close(&self) {
        self.server.close().await;
    }
}

impl Node {
    /// Batches share their round trips, so this is far below one for each purchase.
    fn count_round_trips(&self) {
        self.stand.meter().add(self.server.round_trips());
    }
}

impl Drop for Node {
    /// After a crash: what it has sent was sent.
    fn drop(&mut self) {
        self.count_round_trips();
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "lua-stream",
    family: Family::Queue,
    crash_points: &["accepted"],
    demonstrations: &[demonstration(
        "crash",
        Harm::Holds,
        Scenario::SMALL
            .nodes(3)
            .duplicates_percent(100)
            .options(&[("crash_at", "accepted"), ("crash_node", "2")]),
    )],
    ..Strategy::PLAIN
};
