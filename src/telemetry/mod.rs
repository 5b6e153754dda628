//! Logs, metrics, and traces.

pub mod instruments;
mod repeats;
#[cfg_attr(not(feature = "otel"), path = "no_traces.rs")]
pub mod traces;

use crate::config::{LogFormat, LogSettings, TraceSettings};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use repeats::Repeats;
use std::io::{self, IsTerminal};
use std::sync::OnceLock;
use tracing_subscriber::filter::FilterExt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// Starts logging to stderr, and exporting traces. The first call counts.
pub fn start(
    settings: &LogSettings,
    traces: Option<&TraceSettings>,
) -> Result<(), traces::TraceError> {
    // Postgres notes at every start that the schema exists, and ZooKeeper's client complains about
    // a starting server. `RUST_LOG` may ask for both.
    let quiet = "sqlx::postgres::notice=warn,zookeeper_client=error";
    let filter = EnvFilter::try_new(format!("{quiet},{},otel=off", settings.rust_log))
        .unwrap_or_else(|_| EnvFilter::new("info,otel=off"));
    // No colours in files.
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let logs = tracing_subscriber::fmt::layer()
        .with_ansi(colours)
        // A line that cannot be written is lost: reporting that on stderr would panic.
        .log_internal_errors(false)
        .with_writer(io::stderr);
    let repeats = Repeats::default();
    let filter = filter.and(repeats.clone());
    let logs = match settings.log_format {
        LogFormat::Text => logs.with_filter(filter).boxed(),
        LogFormat::Json => logs.json().with_filter(filter).boxed(),
    };
    let mut layers = vec![logs];
    if let Some(traces) = traces {
        layers.extend(traces::layer(traces)?);
    }
    let logs = tracing_subscriber::registry().with(layers);
    // A second call (several servers in one test process) keeps the first.
    if logs.try_init().is_ok() {
        repeats.start();
    }
    Ok(())
}

/// Seconds, from a fast purchase to what a client waits at most.
const SECONDS: [f64; 14] =
    [0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];
const BATCH_SIZES: [f64; 10] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

/// The process' metrics recorder, installed on first use. The handle renders them as Prometheus
/// text.
pub fn metrics() -> PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE
        .get_or_init(|| {
            let seconds = Matcher::Suffix("_seconds".to_owned());
            let sizes = Matcher::Full("flash_sale_admission_batch_size".to_owned());
            let builder = PrometheusBuilder::new().set_buckets_for_metric(seconds, &SECONDS);
            let builder =
                builder.and_then(|builder| builder.set_buckets_for_metric(sizes, &BATCH_SIZES));
            // Only empty buckets are refused.
            let builder = builder.unwrap_or_else(|_| PrometheusBuilder::new());
            let recorder = builder.build_recorder();
            let handle = recorder.handle();
            // A test's recorder stays; ours then renders nothing.
            let _ = metrics::set_global_recorder(recorder);
            handle
        })
        .clone()
}
