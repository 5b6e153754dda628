//! A server whose shop leads nowhere, for tests of what needs none: its pools never connect.

use super::{App, HttpState};
use crate::{
    auth::{AdminToken, TokenSigner},
    bots::Bots,
    lab::http::LabState,
    room::Rooms,
    sale::{Shop, ShopSettings, metrics::Metrics, payment::SimulatedPayments},
    web::events::Streams,
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
    let draining = CancellationToken::new();
    HttpState {
        rooms: Arc::new(Rooms::new(shop.clone(), tokens.slips())),
        bots: Arc::new(Bots::new(shop.clone(), tokens.slips(), None)),
        shop,
        tokens: Arc::new(tokens),
        admin: Some(AdminToken::new(ADMIN)),
        limits: None,
        metrics: Arc::new(String::new),
        streams: Streams::new(false, draining.clone()),
        draining,
        leaving: Arc::default(),
        trust_proxy: crate::config::ProxyTrust::Nobody,
        lab: LabState::default(),
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

mod bodies {
    use crate::web::body::{LIMIT, parse};
    use proptest::prelude::*;

    /// Reads these bytes as every type of body that the API takes. Whether any of them was content.
    fn read_as_everything(bytes: &[u8]) -> bool {
        use crate::{
            http::{admin::AddStock, session::NewSession},
            sale::{NewSale, SaleChange},
        };
        let found = [
            parse::<NewSession>(bytes).err(),
            parse::<NewSale>(bytes).err(),
            parse::<SaleChange>(bytes).err(),
            parse::<AddStock>(bytes).err(),
        ];
        let all_said_why = found
            .iter()
            .flatten()
            .all(|problem| problem.kind().code == "invalid");
        assert!(all_said_why);
        found.iter().any(Option::is_none)
    }

    /// JSON of any shape, with the names that the bodies know among its members.
    fn json_of_any_shape() -> impl Strategy<Value = String> {
        let name = "title|name|stock|add|price_cents|opens_at|closes_at|per_user_limit|[a-z]{0,5}";
        let leaf = prop_oneof![
            Just("null".to_owned()),
            any::<bool>().prop_map(|value| value.to_string()),
            any::<i64>().prop_map(|value| value.to_string()),
            "-?[0-9]{1,60}(\\.[0-9]{1,40})?([eE][+-]?[0-9]{1,5})?",
            "[ -~]{0,20}".prop_map(|text| format!("{text:?}")),
            "\"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(Z|[+-][0-9]{2}:[0-9]{2})\"",
        ];
        leaf.prop_recursive(6, 40, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6)
                    .prop_map(|all| format!("[{}]", all.join(","))),
                prop::collection::vec((name, inner), 0..6).prop_map(|all| {
                    let members: Vec<String> = all
                        .into_iter()
                        .map(|(name, value)| format!("{name:?}:{value}"))
                        .collect();
                    format!("{{{}}}", members.join(","))
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_body_or_invalid(bytes: Vec<u8>) {
            read_as_everything(&bytes);
            read_as_everything(&[b"{", &bytes[..]].concat());
        }

        #[test]
        fn any_json_is_a_body_or_invalid(text in json_of_any_shape()) {
            read_as_everything(text.as_bytes());
        }
    }

    #[test]
    fn deep_nesting_is_refused_before_the_stack_ends() {
        for (open, close) in [("[", "]"), (r#"{"title":"#, "}")] {
            for depth in [100, 1_000, LIMIT] {
                let text = format!(
                    "{{\"title\":{}1{}}}",
                    open.repeat(depth),
                    close.repeat(depth)
                );
                assert!(!read_as_everything(text.as_bytes()));
            }
        }
    }
}
