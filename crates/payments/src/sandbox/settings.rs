//! The sandbox's settings, which are also the flags of its command.

use super::faults::Faults;
use clap::Args;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

const ABOUT: &str = "\
A payment provider for tests, apart from the shop as a real one is.

It charges, refunds, shows a payment page, and tells the shop by signed webhooks, which it sends
until they are taken. It moves no money. Its books are in one file and outlive it: what it has
answered is never lost.

The shop finds it by PAYMENT_URL, and shares a key and a secret with it:

    export PAYMENT_KEY=some-key PAYMENT_WEBHOOK_SECRET=some-secret
    flash-sale sandbox-pay &
    PAYMENT_URL=http://127.0.0.1:8090 flash-sale serve

Faults are flags, and can be changed while it runs. A PUT replaces them all:

    curl -X PUT http://127.0.0.1:8090/v1/faults -H \"authorization: Bearer $PAYMENT_KEY\" \\
      -H 'content-type: application/json' -d '{\"webhook_lose\": 0.1, \"decline\": 0.05}'";

#[derive(Clone, Args)]
#[command(long_about = ABOUT)]
pub struct Settings {
    /// Port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:8090", value_name = "ADDR")]
    pub listen_addr: SocketAddr,

    /// Where shoppers reach the payment pages, if not at the address it listens on
    #[arg(long, value_name = "URL")]
    pub public_url: Option<String>,

    /// Where the shop takes webhooks
    #[arg(long, value_name = "URL")]
    #[arg(default_value = "http://127.0.0.1:8080/api/v1/webhooks/payments")]
    pub webhook_url: String,

    /// The key of its API, which the shop sends
    #[arg(long, env = "PAYMENT_KEY", hide_env_values = true, value_name = "KEY")]
    pub api_key: String,

    /// Signs the webhooks
    #[arg(long, env = "PAYMENT_WEBHOOK_SECRET", hide_env_values = true, value_name = "SECRET")]
    pub webhook_secret: String,

    /// Its books; created if they are not there
    #[arg(long, default_value = "sandbox-pay.jsonl", value_name = "FILE")]
    pub data_file: PathBuf,

    #[command(flatten)]
    pub faults: Faults,
}

impl Settings {
    /// Beside a shop at an address of this machine, with its books in `folder`. Ten ports above it,
    /// so that open pages outlive a restart.
    pub fn beside(
        shop: SocketAddr,
        folder: &Path,
        api_key: String,
        webhook_secret: String,
    ) -> Self {
        let port = shop.port().checked_add(10).filter(|port| *port >= 1_024);
        Self {
            listen_addr: SocketAddr::new(shop.ip(), port.unwrap_or(0)),
            public_url: None,
            webhook_url: format!("http://{shop}/api/v1/webhooks/payments"),
            api_key,
            webhook_secret,
            data_file: folder.join("sandbox-pay.jsonl"),
            faults: Faults::default(),
        }
    }
}
