//! Settings: flags and environment variables of the same name. `--help` is their documentation.

use clap::{Args, ValueEnum};
use embedded::RedisFsync;
use payments::settings::PaymentSettings;
use std::net::SocketAddr;
use std::path::PathBuf;
use tracing_subscriber::filter::{EnvFilter, ParseError};
pub use web::proxies::ProxyTrust;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

fn log_filter(text: &str) -> Result<String, ParseError> {
    EnvFilter::try_new(text).map(|_| text.to_owned())
}

impl Switch {
    pub fn is_on(self) -> bool {
        self == Self::On
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Sharing {
    /// Each instance counts for itself.
    Off,
    /// All count together; while Redis does not answer, requests pass.
    Open,
    /// All count together; while Redis does not answer, requests are refused.
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Fsync {
    /// Before every answer: an accepted order survives a power cut.
    Always,
    /// Once a second: a power cut can lose the orders of the last second.
    Everysec,
}

impl From<Fsync> for RedisFsync {
    fn from(fsync: Fsync) -> Self {
        match fsync {
            Fsync::Always => Self::Always,
            Fsync::Everysec => Self::EverySec,
        }
    }
}

/// Stores and logs, for every command. Settings with secrets have no Debug, so that they are not
/// logged by accident.
#[derive(Clone, Args)]
pub struct StoreSettings {
    /// Postgres to use, like postgres://user:password@host/database. Leave it and REDIS_URL unset
    /// to run embedded: a private Postgres and a private Redis in DATA_DIR
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub database_url: Option<String>,

    /// Postgres itself, if DATABASE_URL leads to a connection pooler in transaction mode
    /// (PgBouncer). Migrations and the lab use it; unset, DATABASE_URL leads to Postgres
    #[arg(long, env = "DATABASE_DIRECT_URL", hide_env_values = true)]
    #[arg(value_name = "URL", requires = "database_url")]
    pub database_direct_url: Option<String>,

    /// Redis to use, like redis://host:6379 or redis+unix:///path/to/socket; some nodes of a Redis
    /// Cluster, like redis+cluster://host,host,host; or Sentinels, like
    /// redis-sentinel://host,host/NAME. Must keep its data (appendonly yes, maxmemory-policy
    /// noeviction)
    #[arg(long, env = "REDIS_URL", hide_env_values = true, value_name = "URL")]
    pub redis_url: Option<String>,

    /// Put before every Redis key, so that several deployments can share a Redis
    #[arg(long, env = "REDIS_PREFIX", default_value = "", value_name = "TEXT")]
    pub redis_prefix: String,

    /// The embedded servers' data and the generated secrets
    #[arg(long, env = "DATA_DIR", default_value = ".flash-sale")]
    #[arg(value_name = "DIR")]
    pub data_dir: PathBuf,

    /// Embedded Redis only: when an accepted order reaches the disk
    #[arg(long, env = "REDIS_FSYNC", value_enum, default_value_t = Fsync::Always, value_name =
        "WHEN")]
    pub redis_fsync: Fsync,

    /// Connections to Postgres
    #[arg(long, env = "POSTGRES_CONNECTIONS", default_value_t = 16, value_name = "N",
          value_parser = clap::value_parser!(u32).range(4..=500))]
    pub postgres_connections: u32,

    #[command(flatten)]
    pub payment: PaymentSettings,

    #[command(flatten)]
    pub logs: LogSettings,
}

#[derive(Debug, Clone, Args)]
pub struct LogSettings {
    /// What to log, in the syntax of tracing's EnvFilter: a level, or target=level, comma-separated
    #[arg(long, env = "RUST_LOG", default_value = "info", value_name = "FILTER",
          value_parser = log_filter)]
    pub rust_log: String,

    /// How to log
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value_t = LogFormat::Text, value_name =
        "FORMAT")]
    pub log_format: LogFormat,
}

/// How the sale is run.
#[derive(Debug, Clone, Args)]
pub struct SaleSettings {
    /// The most accepted orders of one sale that may wait to be written to Postgres; beyond it
    /// buyers get 503 before any stock is taken
    #[arg(long, env = "BACKLOG_LIMIT", default_value_t = 1_000_000, value_name = "ORDERS",
          value_parser = clap::value_parser!(i64).range(1..))]
    pub backlog_limit: i64,

    /// The most buyers that one call of the admission function decides on
    #[arg(long, env = "BATCH_LIMIT", default_value_t = 512, value_name = "BUYERS",
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub batch_limit: u16,

    /// Where this process fails on purpose; only in a build with the feature fault-injection
    #[arg(long, env = "FAIL_POINTS", hide = true, default_value = "")]
    #[arg(value_name = "POINTS")]
    pub fail_points: String,
}

impl Default for SaleSettings {
    fn default() -> Self {
        Self { backlog_limit: 1_000_000, batch_limit: 512, fail_points: String::new() }
    }
}

fn connections() -> impl clap::builder::TypedValueParser<Value = usize> {
    use clap::builder::TypedValueParser;
    clap::value_parser!(u32).range(1..=1_000_000).map(|number| number as usize)
}

/// Where traces go, if anywhere.
#[derive(Debug, Clone, Args)]
pub struct TraceSettings {
    /// Export traces to this collector (OTLP over HTTP, protobuf), like http://127.0.0.1:4318.
    /// Unset: no traces
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,

    /// What traces call this program
    #[arg(long, env = "OTEL_SERVICE_NAME")]
    #[arg(default_value = "flash-sale", value_name = "NAME")]
    pub otel_service_name: String,

    /// The share of requests that are traced, from 0 to 1, where the caller's traceparent has not
    /// decided it
    #[arg(long, env = "OTEL_TRACES_SAMPLER_ARG", default_value_t = 1.0, value_name = "SHARE",
          value_parser = share)]
    pub trace_share: f64,
}

fn share(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| format!("{text:?} is not a number from 0 to 1"))
}

/// The settings of a worker.
#[derive(Debug, Clone, Args)]
pub struct WorkerSettings {
    /// Serve /metrics, /healthz and /readyz here, for a network that shoppers cannot reach; port 0
    /// takes a free one, and the ready line prints it. Unset: nowhere
    #[arg(long, env = "METRICS_ADDR", value_name = "ADDR")]
    pub metrics_addr: Option<SocketAddr>,

    #[command(flatten)]
    pub traces: TraceSettings,
}

/// The settings of a server.
#[derive(Clone, Args)]
pub struct ServeSettings {
    /// Where to listen; port 0 takes a free one, and the ready line prints it
    #[arg(long, env = "LISTEN_ADDR")]
    #[arg(default_value = "127.0.0.1:8080", value_name = "ADDR")]
    pub listen_addr: SocketAddr,

    /// Signs shoppers' tokens; at least 32 bytes. Generated into DATA_DIR when embedded
    #[arg(long, env = "TOKEN_SECRET", hide_env_values = true)]
    #[arg(value_name = "SECRET")]
    pub token_secret: Option<String>,

    /// Opens the admin routes. Generated into DATA_DIR and printed once when embedded; otherwise
    /// unset means that admin routes answer 404
    #[arg(long, env = "ADMIN_TOKEN", hide_env_values = true)]
    #[arg(value_name = "TOKEN")]
    pub admin_token: Option<String>,

    /// Limits per user and per address; turn them off for load tests from one address
    #[arg(long, env = "RATE_LIMIT", value_enum, default_value_t = Switch::On, value_name =
        "on|off")]
    pub rate_limit: Switch,

    /// With RATE_LIMIT on: whether all instances count requests together, in Redis, which costs a
    /// purchase a round trip. While Redis does not answer, `open` lets everybody pass and `closed`
    /// nobody
    #[arg(long, env = "SHARED_LIMITS", value_enum, default_value_t = Sharing::Off, value_name =
        "off|open|closed")]
    pub shared_limits: Sharing,

    /// Behind proxies that set X-Forwarded-For: the proxies that are trusted to name the client.
    /// Addresses and networks, comma-separated (10.0.0.0/8,192.168.1.7); on: every peer is a
    /// proxy. Off unless there is a proxy, since clients can send the header too
    #[arg(long, env = "TRUST_PROXY", default_value = "off")]
    #[arg(value_name = "on|off|NETWORKS")]
    pub trust_proxy: ProxyTrust,

    /// Upon SIGTERM, go on serving for so many seconds while /readyz and /routable already answer
    /// 503, so that a proxy stops sending requests before the port closes. 0: the port closes at
    /// once
    #[arg(long, env = "DRAIN_NOTICE", default_value_t = 0, value_name = "SECONDS",
          value_parser = clap::value_parser!(u16).range(0..=300))]
    pub drain_notice: u16,

    /// The most connections of clients at once; more wait in the system's queue. With RATE_LIMIT on
    /// and TRUST_PROXY off, one address may have a quarter of what the others leave. Unset: what
    /// the limit of open files leaves (it is raised as far as the system allows), at most 50000
    #[arg(long, env = "MAX_CONNECTIONS", value_name = "N", value_parser = connections())]
    pub max_connections: Option<usize>,

    /// The lab, where anybody can storm over thirty ways to sell a scarce thing, some of them
    /// broken. On when embedded and LISTEN_ADDR is a loopback address, else off: then its routes
    /// answer 404
    #[arg(long, env = "LAB", value_enum, value_name = "on|off")]
    pub lab: Option<Switch>,

    /// Only take orders; a `flash-sale worker` or another instance writes them to Postgres
    #[arg(long)]
    pub no_writer: bool,

    #[command(flatten)]
    pub traces: TraceSettings,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use proptest::prelude::*;
    use std::net::IpAddr;

    // No Debug, as the settings themselves: they hold secrets.
    #[derive(Parser)]
    struct AllSettings {
        #[command(flatten)]
        store: StoreSettings,
        #[command(flatten)]
        sale: SaleSettings,
        #[command(flatten)]
        serve: ServeSettings,
    }

    fn read(arguments: &[String]) -> Result<AllSettings, clap::Error> {
        let program = "flash-sale".to_owned();
        AllSettings::try_parse_from([program].iter().chain(arguments))
    }

    const FLAGS: [&str; 17] = [
        "--database-url",
        "--redis-url",
        "--redis-prefix",
        "--data-dir",
        "--redis-fsync",
        "--postgres-connections",
        "--rust-log",
        "--log-format",
        "--backlog-limit",
        "--batch-limit",
        "--listen-addr",
        "--token-secret",
        "--rate-limit",
        "--shared-limits",
        "--trust-proxy",
        "--lab",
        "--no-writer",
    ];

    proptest! {
        #[test]
        fn any_arguments_are_settings_or_refused(
            arguments in prop::collection::vec(".{0,12}", 0..6),
            flag in prop::sample::select(&FLAGS[..]),
            value in "on|off|always|json|[0-9]{1,25}|-[0-9]{1,9}|.{0,20}",
        ) {
            let _ = read(&arguments);
            for arguments in [vec![flag.to_owned(), value.clone()],
                vec![format!("{flag}={value}")]] {
                if let Ok(settings) = read(&arguments) {
                    prop_assert!((4..=500).contains(&settings.store.postgres_connections));
                    prop_assert!((1..=4096).contains(&settings.sale.batch_limit));
                    prop_assert!(settings.sale.backlog_limit >= 1);
                }
            }
        }

        #[test]
        fn settings_are_read_as_written(limit in 1i64.., batch in 1u16..=4096,
            connections in 4u32..=500, ip: IpAddr, port: u16) {
            let address = SocketAddr::new(ip, port);
            let arguments = [
                format!("--backlog-limit={limit}"),
                format!("--batch-limit={batch}"),
                format!("--postgres-connections={connections}"),
                format!("--listen-addr={address}"),
            ];
            let found = read(&arguments).expect("well-formed");
            prop_assert_eq!(
                (found.sale.backlog_limit, found.sale.batch_limit,
                    found.store.postgres_connections),
                (limit, batch, connections)
            );
            prop_assert_eq!(found.serve.listen_addr, address);
        }
    }
}
