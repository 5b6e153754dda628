//! `lua-stream`: the production path itself, not a copy of it.

use crate::{
    prelude::*,
    real_shop::{Premises, RealServer, schema_of, user_of},
};
use locks::wire::Meter;
use tokio::sync::OwnedSemaphorePermit;

pub struct Node {
    /// A shop and all its loops, as `flash-sale serve` runs them.
    server: Box<dyn RealServer>,
    meter: Meter,
    _place: OwnedSemaphorePermit,
}

pub async fn open(stand: &Stand) -> Result<Node, Trouble> {
    let servers = &stand.shared.servers;
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
    Ok(Node { server, meter: stand.shared.meter.clone(), _place: place })
}

impl Sell for Node {
    async fn buy(&self, stand: &Stand, buyer: &Buyer) -> Result<Outcome, Trouble> {
        stand.pause().await;
        stand.work().await;
        let outcome = self.server.buy(user_of(buyer)).await?;
        //= CURE answered only after script and log: whatever crashes now, the order is found again
        stand.crash_point("accepted").await;
        Ok(outcome)
    }

    async fn settle(&self, _: &Stand) {
        self.server.settle().await;
        // Batches share their round trips, so this is far below one for each purchase.
        self.meter.add(self.server.round_trips());
    }

    async fn close(&self, _: &Stand) {
        self.server.close().await;
    }
}

impl Drop for Node {
    /// After a crash: what it has sent was sent.
    fn drop(&mut self) {
        self.meter.add(self.server.round_trips());
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "lua-stream",
    family: Family::Queue,
    crash_points: &["accepted"],
    demonstrations: &[show(
        "crash",
        Holds,
        SMALL.nodes(3).double_clicks().options(&[("crash_at", "accepted"), ("crash_node", "2")]),
    )],
    ..Strategy::PLAIN
};
