//! A server whose shop leads nowhere, for tests of what needs none: its pools never connect.

use super::{App, HttpState, Streams};
use crate::{
    auth::{AdminToken, TokenSigner},
    bots::Bots,
    room::Rooms,
    sale::{Shop, ShopSettings, metrics::Metrics, payment::SimulatedPayments},
};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

pub const ADMIN: &str = "open sesame";

fn shop() -> Shop {
    let settings = ShopSettings {
        high_water: 1,
        batch_limit: 1,
        own_writer: false,
    };
    let postgres = crate::postgres::pool(sqlx::postgres::PgConnectOptions::new(), 1);
    let redis = crate::redis::Redis::new("redis://127.0.0.1:1", "").expect("an address");
    Shop::new(
        postgres,
        Arc::new(redis),
        Arc::new(SimulatedPayments),
        tokio::sync::mpsc::channel(1).0,
        settings,
        Metrics::unpublished(),
        crate::fail_point::FailPoints::default(),
    )
}

pub fn state() -> HttpState {
    let shop = Arc::new(shop());
    let tokens = TokenSigner::new(b"a secret of at least 32 bytes....").expect("long enough");
    HttpState {
        rooms: Arc::new(Rooms::new(shop.clone(), tokens.slips())),
        bots: Arc::new(Bots::new(shop.clone(), tokens.slips(), None)),
        shop,
        tokens: Arc::new(tokens),
        admin: Some(AdminToken::new(ADMIN)),
        limits: None,
        metrics: Arc::new(String::new),
        streams: Streams::new(false),
        draining: CancellationToken::new(),
        leaving: Arc::default(),
        trust_proxy: crate::config::ProxyTrust::Nobody,
        lab: None,
    }
}

pub fn app() -> App {
    Arc::new(state())
}

pub fn app_with(change: impl FnOnce(&mut HttpState)) -> App {
    let mut state = state();
    change(&mut state);
    Arc::new(state)
}
