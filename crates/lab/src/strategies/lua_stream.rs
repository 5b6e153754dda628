//! `lua-stream`: the production path itself, not a copy of it.

use crate::prelude::*;
use crate::real_shop::{Premises, RealServer, schema_of, user_of};
use locks::wire::Meter;
use tokio::sync::OwnedSemaphorePermit;

pub struct Node {
    /// A shop and all its loops, as `flash-sale serve` runs them.
    server: Box<dyn RealServer>,
    meter: Meter,
    _place: OwnedSemaphorePermit,
}

pub async fn open(bench: &Bench) -> Result<Node> {
    let servers = &bench.shared.servers;
    let place = servers.production_node()?;
    let premises = Premises {
        postgres: servers.postgres.clone(),
        schema: schema_of(bench.arena()),
        redis_url: servers.redis_url.clone(),
        key_prefix: bench.key(""),
        stock: bench.stock(),
        per_user_limit: bench.per_user_limit(),
    };
    let server = servers.shop.open(premises).await?;
    Ok(Node { server, meter: bench.shared.meter.clone(), _place: place })
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        bench.pause().await;
        bench.work().await;
        //= CURE answers only after script and log: whatever crashes then, the order is found again
        let outcome = self.server.buy(user_of(buyer)).await?;
        bench.crash_point("accepted").await;
        Ok(outcome)
    }

    async fn settle(&self, _: &Bench) {
        self.server.settle().await;
        // Batches share their round trips, so this is far below one for each purchase.
        self.meter.add(self.server.round_trips());
    }

    async fn close(&self, _: &Bench) {
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
    demonstrations: &[show("crash", Holds, SMALL.nodes(3).double_clicks().options(CRASH)).at(1)],
    ..Strategy::PLAIN
};

const CRASH: &[(&str, &str)] = &[("crash_at", "accepted"), ("crash_node", "2")];
