//! Keeps the board fresh: snapshots from Redis, rows from Postgres, published changes.
//!
//! Sales that somebody looks at or buys from are read every [`WARM_PAUSE`], all in one round trip, so
//! that the cost of a subscriber is a write and not a query; the others every [`COLD_PAUSE`].

use crate::{
    domain::{SaleId, UserId},
    postgres::timed_out,
    redis::functions::Snapshot,
    sale::{Shop, ShopError, board::Listing},
    worker::{Pace, STEP_LIMIT, supervise::supervise},
};
use futures_util::StreamExt;
use std::{sync::Arc, time::Duration};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// At most 5 events a second for a subscriber, and how stale "sold out" can be on an instance that
/// missed a message.
const WARM_PAUSE: Duration = Duration::from_millis(200);
const COLD_PAUSE: Duration = Duration::from_secs(1);

pub fn spawn(shop: &Arc<Shop>, tasks: &TaskTracker, stop: &CancellationToken) {
    supervise(shop, tasks, "warm sales", stop, |shop, stop| async move {
        let mut pace = Pace::new(&shop, "warm sales", WARM_PAUSE, None, &stop);
        while pace.rest(read_warm(&shop)).await {}
    });
    supervise(shop, tasks, "catalogue", stop, |shop, stop| async move {
        let mut suspects = Vec::new();
        let mut pace = Pace::new(&shop, "catalogue", COLD_PAUSE, None, &stop);
        while pace.rest(read_all(&shop, &mut suspects)).await {}
    });
    let name = "published changes";
    supervise(shop, tasks, name, stop, move |shop, stop| async move {
        // One step follows the channel for as long as it lasts.
        let mut pace = Pace::new(&shop, name, COLD_PAUSE, None, &stop).without_limit();
        while pace.rest(listen(&shop, &stop)).await {}
    });
}

async fn read_all(shop: &Arc<Shop>, suspects: &mut Vec<(SaleId, i64)>) -> Result<(), ShopError> {
    // Redis is read, and what is known reported, even while one of the two is away: above all then.
    let snapshots = shop.read_snapshots(&shop.board.listings()).await;
    forget_old_buyers(shop);
    report(shop);
    shop.refresh_catalogue().await?;
    // What could be read can be repaired, whoever else is silent.
    let repaired = shop.reconcile(suspects).await;
    snapshots.and(repaired)
}

async fn read_warm(shop: &Arc<Shop>) -> Result<(), ShopError> {
    let warm: Vec<Arc<Listing>> = shop
        .board
        .listings()
        .into_iter()
        .filter(|listing| listing.is_warm())
        .collect();
    if warm.is_empty() {
        return Ok(());
    }
    shop.read_snapshots(&warm).await?;
    for listing in warm {
        load_buyers_if_over(shop, &listing);
    }
    Ok(())
}

/// Nobody asks who bought in a sale that has long been over; see [`Listing::refuse_locally`].
fn forget_old_buyers(shop: &Shop) {
    let now = shop.now();
    for listing in shop.board.listings() {
        if listing.is_retired(now) {
            listing.buyers.forget();
        }
    }
}

/// Once nobody new can buy, learns who has bought, so that the others can be refused here.
fn load_buyers_if_over(shop: &Arc<Shop>, listing: &Arc<Listing>) {
    let now = shop.now();
    let selling = listing.view(now).state == crate::domain::SaleState::Open;
    if !listing.is_present() || selling || listing.is_retired(now) {
        return;
    }
    let Some(known) = listing.snapshot() else {
        return;
    };
    if !listing.buyers.begin_loading(known.epoch, known.admitted) {
        return;
    }
    let (shop, listing) = (shop.clone(), listing.clone());
    tokio::spawn(async move {
        if let Err(error) = load_buyers(&shop, &listing, &known).await {
            tracing::debug!(%error, sale = %listing.id, "could not load the buyers");
        }
        listing.buyers.end_loading();
    });
}

/// How many fields Redis is asked to look at a time: about a millisecond of its time.
const SCAN: usize = 2_000;

async fn load_buyers(shop: &Shop, listing: &Listing, known: &Snapshot) -> Result<(), ShopError> {
    if listing.sale().epoch != known.epoch {
        return Ok(());
    }
    let mut users = Vec::new();
    let record = |(user, _): (UserId, Vec<u8>)| users.push(user);
    shop.each_buyer(listing.id, known.epoch, SCAN, record)
        .await?;
    listing
        .buyers
        .loaded(known.epoch, known.admitted, users.into_iter());
    Ok(())
}

/// Follows the channel of changes until it breaks.
async fn listen(shop: &Arc<Shop>, stop: &CancellationToken) -> Result<(), ShopError> {
    let mut subscriber = shop.redis.subscribe().await?;
    // What was published while nobody listened.
    let warm: Vec<_> = shop
        .board
        .listings()
        .into_iter()
        .filter(|listing| listing.is_warm())
        .collect();
    for listing in warm {
        refresh(shop, listing.id).await?;
    }
    let mut messages = subscriber.on_message();
    loop {
        let message = tokio::select! {
            message = messages.next() => message,
            () = stop.cancelled() => return Ok(()),
        };
        let Some(message) = message else {
            return Err(redis::RedisError::from(std::io::Error::from(
                std::io::ErrorKind::ConnectionAborted,
            ))
            .into());
        };
        let Ok(id) = message.get_payload::<i64>() else {
            continue;
        };
        match refresh(shop, SaleId::from_i64(id)).await {
            Ok(_) | Err(ShopError::SaleNotFound) => {}
            Err(error) => tracing::debug!(%error, sale = id, "could not follow a change"),
        }
    }
}

async fn refresh(shop: &Arc<Shop>, sale: SaleId) -> Result<(), ShopError> {
    tokio::time::timeout(STEP_LIMIT, shop.refresh(sale))
        .await
        .unwrap_or(Err(timed_out().into()))
        .map(|_| ())
}

fn report(shop: &Shop) {
    let pending: i64 = shop
        .board
        .listings()
        .iter()
        .filter_map(|listing| listing.snapshot())
        .map(|known| known.pending)
        .sum();
    let metrics = &shop.metrics;
    metrics.backlog_orders.set(pending as f64);
    let redis = shop.redis.pool_size();
    metrics.redis_connections.size.set(redis.size as f64);
    metrics.redis_connections.idle.set(redis.idle as f64);
    let postgres = &metrics.postgres_connections;
    postgres.size.set(f64::from(shop.postgres.size()));
    postgres.idle.set(shop.postgres.num_idle() as f64);
    let gate_is_open = shop.gate_is_open();
    metrics.gate_open.set(f64::from(u8::from(gate_is_open)));
}
