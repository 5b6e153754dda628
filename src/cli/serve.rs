//! `serve` and `worker`: the commands that run until a signal.

use super::seed;
use crate::access::bots::limits::WhenAway;
use crate::app::{self, AppError, Front, Role, Running, Stores};
use crate::auth::{AdminToken, TokenSigner};
use crate::config::{SaleSettings, ServeSettings, Sharing, StoreSettings, Switch, WorkerSettings};
use crate::telemetry::instruments::Metrics;
use crate::telemetry::{self, traces};
use crate::{http, postgres};
use clap::Args;
use lab::terminal::{complain, say};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::TcpListener;

/// Shorter admin tokens get a warning.
const EASY_TO_GUESS: usize = 16;

#[derive(Args)]
pub struct Serve {
    #[command(flatten)]
    serve: ServeSettings,
    #[command(flatten)]
    sale: SaleSettings,
    #[command(flatten)]
    store: StoreSettings,
}

#[derive(Args)]
pub struct Worker {
    #[command(flatten)]
    sale: SaleSettings,
    #[command(flatten)]
    store: StoreSettings,
    #[command(flatten)]
    worker: WorkerSettings,
}

pub async fn serve(Serve { serve, sale, store }: Serve) -> Result<(), AppError> {
    telemetry::start(&store.logs, Some(&serve.traces))?;
    telemetry::metrics(); // before the first measurement
    let descriptors = http::server::raise_descriptor_limit();
    // Signals are caught before the stores open, which can take minutes of recovery.
    let mut shutdown = Box::pin(shutdown_signal()?);
    let (listener, address) = listen(serve.listen_addr)?;
    let tokens = app::token_signer(serve.token_secret.as_deref(), &store)?;
    let admin = app::admin_token(serve.admin_token.as_deref(), &store)?;
    if matches!(&admin, Some((token, _)) if token.len() < EASY_TO_GUESS) {
        tracing::warn!(
            "ADMIN_TOKEN is short: an attacker who guesses it can do what an operator can"
        );
    }

    // The sandbox's pages are for browsers on this machine.
    let shop = (is_local(address) && !serve.trust_proxy.is_on()).then_some(address);
    let stores = tokio::select! {
        opened = Stores::open(&store, shop) => opened?,
        () = &mut shutdown => return Ok(()),
    };
    let served = async {
        postgres::migrate(&stores.postgres).await?;
        let lab = match lab_is_on(serve.lab, &stores, address) {
            true => Some(stores.lab(lab_dir(&stores, &store)).await?),
            false => None,
        };
        let role = match serve.no_writer {
            true => Role::ServerWithoutWriter,
            false => Role::Server,
        };
        let running = start(&stores, &sale, role)?;
        tokio::select! {
            prepared = prepare(&stores, &running) => prepared?,
            () = &mut shutdown => {
                running.stop().await;
                return Ok(());
            }
        }
        if let Some((token, true)) = &admin {
            let file = store.data_dir.join("admin_token");
            complain!("admin token (printed once, kept in {}): {token}", file.display());
        }
        if let Some(sandbox) = stores.sandbox_url() {
            tracing::info!("payments go to a sandbox at {sandbox}, which moves no money");
        }
        ready(&format!("flash-sale ready on http://{address}"));
        let front = Front {
            admin: admin.map(|(token, _)| AdminToken::new(&token)),
            lab,
            ..front(&serve, tokens, descriptors)
        };
        app::serve(running, listener, front, shutdown).await
    }
    .await;
    stores.close().await;
    traces::end().await;
    served
}

fn front(settings: &ServeSettings, tokens: TokenSigner, descriptors: usize) -> Front {
    let rate_limit = settings.rate_limit.is_on();
    // Shared limits need RATE_LIMIT.
    let shared_limits = match settings.shared_limits {
        Sharing::Open if rate_limit => Some(WhenAway::Open),
        Sharing::Closed if rate_limit => Some(WhenAway::Closed),
        _ => None,
    };
    let most = settings.max_connections;
    Front {
        tokens,
        admin: None,
        rate_limit,
        shared_limits,
        trust_proxy: settings.trust_proxy,
        drain_notice: Duration::from_secs(settings.drain_notice.into()),
        connections: http::ConnectionLimits::new(
            most.unwrap_or_else(|| http::ConnectionLimits::most_with(descriptors)),
            // Behind a proxy all connections have its address.
            rate_limit && !settings.trust_proxy.is_on(),
        ),
        lab: None,
    }
}

pub async fn work(args: Worker) -> Result<(), AppError> {
    let (store, settings) = (args.store, args.worker);
    telemetry::start(&store.logs, Some(&settings.traces))?;
    telemetry::metrics();
    let shutdown = shutdown_signal()?;
    let listening = settings.metrics_addr.map(listen).transpose()?;
    let (listener, address) = listening.unzip();
    let stores = Stores::join(&store).await?;
    postgres::migrate(&stores.postgres).await?;
    let running = start(&stores, &args.sale, Role::Worker)?;
    ready(&match &address {
        Some(address) => format!("flash-sale worker ready, metrics on http://{address}/metrics"),
        None => "flash-sale worker ready".to_owned(),
    });
    app::work(running, listener, shutdown).await;
    stores.close().await;
    traces::end().await;
    Ok(())
}

fn start(stores: &Stores, sale: &SaleSettings, role: Role) -> Result<Running, AppError> {
    let (postgres, redis, metrics) = (&stores.postgres, &stores.redis, Metrics::published());
    Ok(Running::start(postgres, redis, stores.payments.clone(), sale, role, metrics)?)
}

pub fn ready(line: &str) {
    say!("{line}");
    let _ = io::stdout().flush();
}

/// Listens; answers the actual address, for port 0.
fn listen(wanted: SocketAddr) -> Result<(TcpListener, SocketAddr), AppError> {
    let listener = http::server::listen(wanted);
    let listener = listener.map_err(AppError::io(format!("listen on {wanted} (LISTEN_ADDR)")))?;
    let address = listener.local_addr();
    let address = address.map_err(AppError::io("read the listening address"))?;
    Ok((listener, address))
}

fn is_local(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Whether there is a lab. Its locks and strategies need a single Redis server.
fn lab_is_on(wanted: Option<Switch>, stores: &Stores, address: SocketAddr) -> bool {
    if wanted.is_none() && stores.are_embedded() && !is_local(address) {
        tracing::warn!(
            "the lab is off: others can reach {address}, and it is open to anybody; LAB=on turns \
             it on"
        );
        return false;
    }
    let is_wanted = wanted.map_or(stores.are_embedded(), Switch::is_on);
    if is_wanted && !stores.redis.is_one_server() {
        tracing::warn!("the lab is off: {}", AppError::LabNeedsOneServer);
        return false;
    }
    is_wanted
}

/// The folder for the lab's own servers; only embedded programs have one.
fn lab_dir(stores: &Stores, store: &StoreSettings) -> Option<PathBuf> {
    stores.are_embedded().then(|| store.data_dir.join("lab"))
}

/// Waits for admission, and keeps the demo catalogue up on an embedded store.
async fn prepare(stores: &Stores, running: &Running) -> Result<(), AppError> {
    if stores.are_embedded() {
        running.admission_opened(Duration::from_secs(20)).await;
        seed::seed(&running.services.catalog).await?;
        seed::spawn(&running.services.catalog, running.tasks());
        return Ok(());
    }
    if !running.admission_opened(Duration::from_secs(5)).await {
        tracing::warn!("redis is not usable yet: purchases answer 503 until it is");
    }
    stores.redis.warn_unless_durable().await;
    Ok(())
}

/// Resolves at SIGTERM or SIGINT.
pub fn shutdown_signal() -> Result<impl Future<Output = ()> + Send + 'static, AppError> {
    use tokio::signal::unix::{SignalKind, signal};
    let catch = |kind| signal(kind).map_err(AppError::io("catch signals"));
    let mut terminate = catch(SignalKind::terminate())?;
    let mut interrupt = catch(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
