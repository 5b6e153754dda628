//! The commands of the program, one function each. Exit codes: 0 done, 1 the answer is bad news
//! (an invariant is broken), 2 it could not be done.

use crate::{
    app::{self, AppError, Front, Role, Running, Stores},
    auth::{AdminToken, TokenSigner},
    bots::limits::WhenAway,
    config::{SaleSettings, ServeSettings, Sharing, StoreSettings, Switch, WorkerSettings},
    domain::{SaleId, UserId},
    http,
    lab::command::{self, OpenLab, lab::LabCommand, lesson::LessonCommand},
    postgres,
    sale::{Audit, NewSale, Shop, metrics::Metrics},
    telemetry::{self, traces},
    terminal::{complain, say},
    worker,
};
use clap::{Args, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    io::{self, BufWriter, IsTerminal, Read, Write},
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::net::TcpListener;

/// A flash-sale backend: browse a sale, hammer it with k6, learn how overselling is prevented.
///
/// Without any setting, `flash-sale serve` starts a private Postgres and a private Redis, makes a demo
/// catalogue, and serves it on http://127.0.0.1:8080. Settings are flags and environment variables of
/// the same name; a `.env` file is read.
#[derive(Parser)]
#[command(version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Serve the API, the pages and the order writer in one process
    Serve {
        #[command(flatten)]
        serve: Box<ServeSettings>,
        #[command(flatten)]
        sale: SaleSettings,
        #[command(flatten)]
        store: Box<StoreSettings>,
    },
    /// Run only the order writer, recovery, expiry and release loops
    Worker {
        #[command(flatten)]
        sale: SaleSettings,
        #[command(flatten)]
        store: Box<StoreSettings>,
        #[command(flatten)]
        worker: WorkerSettings,
    },
    /// Bring the schema up to date
    Migrate {
        #[command(flatten)]
        store: Box<StoreSettings>,
    },
    /// Create the demo catalogue; running it again changes nothing
    Seed {
        #[command(flatten)]
        store: Box<StoreSettings>,
    },
    /// Mint user tokens for load tests: a JSON array of {"user_id","token"}
    Tokens {
        #[command(flatten)]
        tokens: TokensArgs,
        #[command(flatten)]
        store: Box<StoreSettings>,
    },
    /// Judge every invariant from what Postgres and Redis hold. Exits 0 if all hold, 1 if one is
    /// broken, 2 if it could not look or orders were still under way
    Audit {
        /// Only this sale
        #[arg(long, value_name = "ID")]
        sale: Option<SaleId>,
        /// Print the verdicts as a JSON array
        #[arg(long)]
        json: bool,
        /// Wait up to this many seconds for the backlog and the outbox to be empty, so that both
        /// sides can be compared
        #[arg(long, value_name = "SECONDS", default_value_t = 10)]
        wait: u64,
        #[command(flatten)]
        store: Box<StoreSettings>,
    },
    /// Rebuild Redis from Postgres and what the order logs still hold
    Rebuild {
        /// Only this sale
        #[arg(long, value_name = "ID")]
        sale: Option<SaleId>,
        #[command(flatten)]
        store: Box<StoreSettings>,
    },
    /// The lab: every way to sell a scarce thing, the broken ones too
    Lab {
        #[command(subcommand)]
        command: LabCommand,
    },
    /// The lock theatre: every way a distributed lock fails, step by step
    Lesson {
        #[command(subcommand)]
        command: LessonCommand,
    },
    /// Print the OpenAPI document
    Openapi,
    /// Ask a running server whether it is ready; exits 0 or 1 (for container health checks)
    #[command(hide = true)]
    Health {
        #[arg(default_value = "http://127.0.0.1:8080/readyz")]
        url: String,
    },
}

#[derive(Args)]
pub struct TokensArgs {
    /// How many users
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    users: u64,
    /// Write here instead of to stdout
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// How long they are valid
    #[arg(long, value_name = "HOURS", default_value_t = 24 * 7, value_parser = clap::value_parser!(u32).range(1..=87_600))]
    hours: u32,
    /// The secret of the server they are for. When embedded, the one in DATA_DIR
    #[arg(
        long,
        env = "TOKEN_SECRET",
        hide_env_values = true,
        value_name = "SECRET"
    )]
    token_secret: Option<String>,
}

/// Runs one command and says how it went.
pub async fn run(cli: Cli) -> ExitCode {
    let outcome = match cli.command {
        Command::Serve { serve, sale, store } => serve_command(*serve, sale, *store).await,
        Command::Worker {
            sale,
            store,
            worker,
        } => worker_command(sale, *store, worker).await,
        Command::Migrate { store } => migrate(*store).await,
        Command::Seed { store } => seed_command(*store).await,
        Command::Tokens { tokens, store } => mint_tokens(&tokens, &store),
        Command::Audit {
            sale,
            json,
            wait,
            store,
        } => audit(sale, json, wait, *store).await,
        Command::Rebuild { sale, store } => rebuild(sale, *store).await,
        Command::Lab { command } => command::lab::run(command, open_lab).await,
        Command::Lesson { command } => command::lesson::run(command, open_lab).await,
        Command::Openapi => print_openapi(),
        Command::Health { url } => return health(&url),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            complain!("flash-sale: {error}");
            ExitCode::from(2)
        }
    }
}

/// A token of fewer characters is worth a word in the log.
const EASY_TO_GUESS: usize = 16;

fn start_logs(store: &StoreSettings) {
    // Only the settings of traces can be wrong.
    let _ = telemetry::start(store, None);
}

async fn serve_command(
    settings: ServeSettings,
    sale: SaleSettings,
    store: StoreSettings,
) -> Result<ExitCode, AppError> {
    telemetry::start(&store, Some(&settings.traces))?;
    telemetry::metrics(); // before the first measurement
    let descriptors = http::server::raise_descriptor_limit();
    // Caught from the start: opening the stores can take minutes when they have much to recover.
    let mut shutdown = Box::pin(shutdown_signal()?);
    let (listener, address) = listen(settings.listen_addr)?;
    let tokens =
        TokenSigner::new(app::token_secret(settings.token_secret.as_deref(), &store)?.as_bytes())?;
    let admin = app::admin_token(settings.admin_token.as_deref(), &store)?;
    if admin
        .as_ref()
        .is_some_and(|(token, _)| token.len() < EASY_TO_GUESS)
    {
        tracing::warn!("ADMIN_TOKEN is short: whoever guesses it can do what an operator can");
    }

    let stores = tokio::select! {
        opened = Stores::open(&store) => opened?,
        () = &mut shutdown => return Ok(ExitCode::SUCCESS),
    };
    let served = async {
        let lab =
            lab_is_on(settings.lab, &stores, address).then(|| stores.lab(lab_dir(&stores, &store)));
        postgres::migrate(&stores.postgres).await?;
        let role = if settings.no_writer {
            Role::ServerWithoutWriter
        } else {
            Role::Server
        };
        let running = Running::start(
            &stores.postgres,
            &stores.redis,
            &sale,
            role,
            Metrics::published(),
        )?;
        tokio::select! {
            prepared = prepare(&stores, &running) => prepared?,
            () = &mut shutdown => {
                running.stop().await;
                return Ok(());
            }
        }
        if let Some((token, true)) = &admin {
            complain!(
                "admin token (printed once, kept in {}): {token}",
                store.data_dir.join("admin_token").display()
            );
        }
        say!("flash-sale ready on http://{address}");
        let _ = io::stdout().flush();
        let front = Front {
            tokens,
            admin: admin.map(|(token, _)| AdminToken::new(&token)),
            rate_limit: settings.rate_limit.is_on(),
            shared_limits: shared_limits(&settings),
            trust_proxy: settings.trust_proxy,
            drain_notice: Duration::from_secs(settings.drain_notice.into()),
            connections: http::ConnectionLimits::new(
                settings
                    .max_connections
                    .unwrap_or_else(|| http::ConnectionLimits::most_with(descriptors)),
                // Behind a proxy all connections come from the proxy's address.
                settings.rate_limit.is_on() && !settings.trust_proxy.is_on(),
            ),
            lab,
        };
        app::serve(running, listener, front, shutdown).await
    }
    .await;
    stores.close().await;
    traces::end().await;
    served.map(|()| ExitCode::SUCCESS)
}

/// Listens; with port 0 the address has the one that was free.
fn listen(wanted: SocketAddr) -> Result<(TcpListener, SocketAddr), AppError> {
    let failed = |action: String| |source| AppError::Io { action, source };
    let listener = http::server::listen(wanted).map_err(failed(format!("listen on {wanted}")))?;
    let address = listener.local_addr();
    let address = address.map_err(failed("read the listening address".into()))?;
    Ok((listener, address))
}

/// Whether instances count together. Without limits there is nothing to count.
fn shared_limits(settings: &ServeSettings) -> Option<WhenAway> {
    if !settings.rate_limit.is_on() {
        return None;
    }
    match settings.shared_limits {
        Sharing::Off => None,
        Sharing::Open => Some(WhenAway::Open),
        Sharing::Closed => Some(WhenAway::Closed),
    }
}

/// Whether there is a lab. Its locks and strategies are about one server, and not about where keys are.
fn lab_is_on(wanted: Option<Switch>, stores: &Stores, address: SocketAddr) -> bool {
    let is_local = address.ip().to_canonical().is_loopback();
    if wanted.is_none() && stores.are_embedded() && !is_local {
        tracing::warn!(
            "the lab is off: others can reach {address}, and it is open to anybody; LAB=on turns it on"
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

/// Where the lab may start more servers: only a program that runs its own has a place for them.
fn lab_dir(stores: &Stores, store: &StoreSettings) -> Option<PathBuf> {
    stores.are_embedded().then(|| store.data_dir.join("lab"))
}

/// Waits until there is something to serve.
async fn prepare(stores: &Stores, running: &Running) -> Result<(), AppError> {
    if stores.are_embedded() {
        running.gate_opened(Duration::from_secs(20)).await;
        seed(&running.shop).await?;
    } else if !running.gate_opened(Duration::from_secs(5)).await {
        tracing::warn!("redis is not usable yet: purchases answer 503 until it is");
    }
    Ok(())
}

async fn worker_command(
    sale: SaleSettings,
    store: StoreSettings,
    settings: WorkerSettings,
) -> Result<ExitCode, AppError> {
    telemetry::start(&store, Some(&settings.traces))?;
    telemetry::metrics();
    let shutdown = shutdown_signal()?;
    let listening = settings.metrics_addr.map(listen).transpose()?;
    let (listener, address) = listening.unzip();
    let stores = Stores::join(&store).await?;
    postgres::migrate(&stores.postgres).await?;
    let running = Running::start(
        &stores.postgres,
        &stores.redis,
        &sale,
        Role::Worker,
        Metrics::published(),
    )?;
    match &address {
        Some(address) => {
            say!("flash-sale worker ready, metrics on http://{address}/metrics");
        }
        None => say!("flash-sale worker ready"),
    }
    let _ = io::stdout().flush();
    app::work(running, listener, shutdown).await;
    stores.close().await;
    traces::end().await;
    Ok(ExitCode::SUCCESS)
}

/// Resolves at SIGTERM or SIGINT.
fn shutdown_signal() -> Result<impl Future<Output = ()> + Send + 'static, AppError> {
    use tokio::signal::unix::{SignalKind, signal};
    let catch = |kind| {
        signal(kind).map_err(|source| AppError::Io {
            action: "catch signals".into(),
            source,
        })
    };
    let (mut terminate, mut interrupt) = (
        catch(SignalKind::terminate())?,
        catch(SignalKind::interrupt())?,
    );
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

async fn migrate(store: StoreSettings) -> Result<ExitCode, AppError> {
    start_logs(&store);
    let stores = Stores::join(&store).await?;
    let migrated = postgres::migrate(&stores.postgres).await;
    stores.close().await;
    migrated?;
    say!("the schema is up to date");
    Ok(ExitCode::SUCCESS)
}

async fn seed_command(store: StoreSettings) -> Result<ExitCode, AppError> {
    let (stores, running) = open_for_command(&store).await?;
    let seeded = seed(&running.shop).await;
    running.stop().await;
    stores.close().await;
    say!("{} demo sales are there", seeded?);
    Ok(ExitCode::SUCCESS)
}

/// The stores of a command that creates what it needs.
async fn open_for_command(store: &StoreSettings) -> Result<(Stores, Running), AppError> {
    start_logs(store);
    act_on(open_stores(store).await?)
}

/// The stores of a command that judges or repairs what is there, and must not take an empty place for it: not a
/// folder where no server ever ran, and not a schema that this version has to bring up to date first. (An empty Redis it
/// cannot tell from one that lost everything.)
async fn open_what_is_there(store: &StoreSettings) -> Result<(Stores, Running), AppError> {
    start_logs(store);
    let is_embedded = store.database_url.is_none() && store.redis_url.is_none();
    if is_embedded && !store.data_dir.join("pg").exists() {
        let folder = store.data_dir.display().to_string();
        return Err(AppError::NoSaleHere(folder));
    }
    let stores = Stores::join(store).await?;
    if let Err(error) = postgres::check_schema(&stores.postgres).await {
        stores.close().await;
        return Err(error.into());
    }
    act_on(stores)
}

fn act_on(stores: Stores) -> Result<(Stores, Running), AppError> {
    let sale = SaleSettings {
        backlog_limit: 1_000_000,
        batch_limit: 512,
        fail_points: String::new(),
    };
    let running = Running::start(
        &stores.postgres,
        &stores.redis,
        &sale,
        Role::Command,
        Metrics::unpublished(),
    )?;
    Ok((stores, running))
}

/// The stores, with the schema up to date.
async fn open_stores(store: &StoreSettings) -> Result<Stores, AppError> {
    let stores = Stores::join(store).await?;
    postgres::migrate(&stores.postgres).await?;
    Ok(stores)
}

/// A lab of a command alone.
async fn open_lab(store: &StoreSettings) -> Result<OpenLab, AppError> {
    start_logs(store);
    let stores = open_stores(store).await?;
    if !stores.redis.is_one_server() {
        stores.close().await;
        return Err(AppError::LabNeedsOneServer);
    }
    // A server that runs on the same folder has its own servers for its own lab.
    let folder = if stores.are_embedded() {
        "lab"
    } else {
        "lab-run"
    };
    let is_private = store.database_url.is_none();
    let lab = stores.lab(is_private.then(|| store.data_dir.join(folder)));
    Ok(OpenLab {
        lab,
        stores: Box::pin(stores.close()),
    })
}

/// The demo catalogue. Idempotent: each sale carries a name. Answers how many there are.
pub async fn seed(shop: &Arc<Shop>) -> Result<usize, AppError> {
    let now = OffsetDateTime::now_utc();
    let demo =
        |seed_key, title: &str, description: &str, image: &str, price, original, stock| NewSale {
            title: title.to_owned(),
            description: Some(description.to_owned()),
            image_url: Some(format!("/static/img/{image}.svg")),
            price_cents: price,
            original_price_cents: Some(original),
            stock,
            closes_at: Some(now + time::Duration::days(365)),
            payment_timeout_secs: Some(300),
            seed_key: Some(seed_key),
            ..NewSale::default()
        };
    let catalogue = [
        demo(
            "demo-headphones",
            "Aurora headphones",
            "Noise cancelling, 40 hours on one charge.",
            "headphones",
            7_900,
            19_900,
            500,
        ),
        NewSale {
            opens_at: Some(now + time::Duration::minutes(2)),
            ..demo(
                "demo-console",
                "Orbit game console",
                "Opens two minutes after the first start: watch the countdown.",
                "console",
                24_900,
                49_900,
                100,
            )
        },
        demo(
            "demo-ten-phones",
            "Ten phones",
            "Ten phones for everybody: the classic. One each.",
            "phone",
            100,
            99_900,
            10,
        ),
        demo(
            "demo-load",
            "Sneakers for a load test",
            "100,000 pairs, so that k6 has something to buy.",
            "sneakers",
            4_900,
            12_900,
            100_000,
        ),
    ];
    let count = catalogue.len();
    for sale in catalogue {
        shop.create_sale(sale).await?;
    }
    Ok(count)
}

fn mint_tokens(args: &TokensArgs, store: &StoreSettings) -> Result<ExitCode, AppError> {
    let signer =
        TokenSigner::new(app::token_secret(args.token_secret.as_deref(), store)?.as_bytes())?;
    let expires_at = OffsetDateTime::now_utc() + time::Duration::hours(i64::from(args.hours));
    let sink: Box<dyn Write> = match &args.out {
        Some(file) => Box::new(std::fs::File::create(file).map_err(|source| AppError::Io {
            action: format!("write {}", file.display()),
            source,
        })?),
        None => Box::new(io::stdout().lock()),
    };
    let progress = if io::stderr().is_terminal() {
        ProgressBar::new(args.users)
    } else {
        ProgressBar::hidden()
    };
    if let Ok(style) =
        ProgressStyle::with_template("{wide_bar} {human_pos}/{human_len} tokens, {per_sec}")
    {
        progress.set_style(style);
    }
    let written = write_tokens(
        BufWriter::with_capacity(1 << 20, sink),
        args.users,
        &signer,
        expires_at,
        &progress,
    );
    progress.finish_and_clear();
    match written {
        // A reader that has had enough (`| head`) is not an error.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(source) => Err(AppError::Io {
            action: "write tokens".into(),
            source,
        }),
        Ok(()) => {
            if args.out.is_some() {
                let until = expires_at.replace_nanosecond(0).unwrap_or(expires_at);
                let until = until.format(&Rfc3339).unwrap_or_default();
                complain!("tokens: {}, valid until {until}", args.users);
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Streams the array, so that a million users need no memory.
fn write_tokens(
    mut out: impl Write,
    users: u64,
    signer: &TokenSigner,
    expires_at: OffsetDateTime,
    progress: &ProgressBar,
) -> io::Result<()> {
    out.write_all(b"[")?;
    for number in 0..users {
        let user = UserId::random();
        let separator = if number == 0 { "" } else { ",\n" };
        let token = signer.mint(user, "load", expires_at);
        // Neither needs escaping: a UUID and a JWT.
        write!(
            out,
            "{separator}{{\"user_id\":\"{user}\",\"token\":\"{token}\"}}"
        )?;
        if number % 1_024 == 0 {
            progress.set_position(number);
        }
    }
    out.write_all(b"]\n")?;
    out.flush()
}

async fn audit(
    sale: Option<SaleId>,
    json: bool,
    wait: u64,
    store: StoreSettings,
) -> Result<ExitCode, AppError> {
    let (stores, running) = open_what_is_there(&store).await?;
    let audits = audit_all(&running.shop, sale, Duration::from_secs(wait)).await;
    running.stop().await;
    stores.close().await;
    let audits = audits?;
    let ok = audits.iter().all(|audit| audit.ok);
    if json {
        let text = serde_json::to_string_pretty(&audits).map_err(|error| AppError::Io {
            action: "print the audit".into(),
            source: io::Error::other(error),
        })?;
        say!("{text}");
    } else {
        print_audits(&audits);
    }
    let compared = audits.iter().all(|audit| audit.quiescent);
    Ok(match (ok, compared) {
        (true, true) => ExitCode::SUCCESS,
        (false, _) => ExitCode::from(1),
        (true, false) => ExitCode::from(2), // could not look at everything
    })
}

async fn audit_all(
    shop: &Arc<Shop>,
    only: Option<SaleId>,
    patience: Duration,
) -> Result<Vec<Audit>, AppError> {
    shop.refresh_catalogue().await?;
    let mut ids: Vec<SaleId> = match only {
        Some(id) => vec![id],
        None => shop
            .board
            .listings()
            .iter()
            .map(|listing| listing.id)
            .collect(),
    };
    ids.sort();
    let deadline = tokio::time::Instant::now() + patience;
    let mut audits = Vec::new();
    for id in ids {
        loop {
            let audit = shop.audit(id).await?;
            if audit.quiescent || tokio::time::Instant::now() >= deadline {
                audits.push(audit);
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(audits)
}

fn print_audits(audits: &[Audit]) {
    say!(
        "{:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>9}  verdict",
        "sale",
        "stock",
        "remaining",
        "live",
        "paid",
        "cancelled",
        "expired",
        "rejected",
        "backlog"
    );
    for audit in audits {
        let verdict = match (audit.ok, audit.quiescent) {
            (true, true) => "ok",
            (true, false) => "ok so far (orders are under way: I3 and I4 not compared)",
            (false, _) => "BROKEN",
        };
        say!(
            "{:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>9}  {verdict}",
            audit.sale_id.to_string(),
            audit.stock,
            audit.remaining,
            audit.live,
            audit.paid,
            audit.cancelled,
            audit.expired,
            audit.rejected,
            audit.backlog
        );
        for problem in &audit.problems {
            say!("       - {problem}");
        }
    }
    let broken = audits.iter().filter(|audit| !audit.ok).count();
    let under_way = audits.iter().filter(|audit| !audit.quiescent).count();
    if broken == 0 && under_way == 0 {
        say!("audit: ok ({} sales)", audits.len());
    } else if broken == 0 {
        say!(
            "audit: not conclusive (orders of {under_way} sales are under way; try a longer --wait)"
        );
    } else {
        say!("audit: BROKEN ({broken} of {} sales)", audits.len());
    }
}

async fn rebuild(sale: Option<SaleId>, store: StoreSettings) -> Result<ExitCode, AppError> {
    let (stores, running) = open_what_is_there(&store).await?;
    let rebuilt = worker::rebuild::by_hand(&running.shop, sale).await;
    running.stop().await;
    stores.close().await;
    match (rebuilt?, sale) {
        (0, Some(id)) => {
            complain!("flash-sale: there is no sale {id}");
            Ok(ExitCode::from(2))
        }
        (count, _) => {
            let plural = if count == 1 { "sale is" } else { "sales are" };
            say!("{count} {plural} rebuilt");
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn print_openapi() -> Result<ExitCode, AppError> {
    let text = http::openapi()
        .to_pretty_json()
        .map_err(|error| AppError::Io {
            action: "print the OpenAPI document".into(),
            source: io::Error::other(error),
        })?;
    say!("{text}");
    Ok(ExitCode::SUCCESS)
}

/// A plain GET by hand: a container image needs no curl, and one request no HTTP client.
fn health(url: &str) -> ExitCode {
    match status_of(url) {
        Ok(200) => ExitCode::SUCCESS,
        Ok(status) => {
            complain!("{url} answered {status}");
            ExitCode::FAILURE
        }
        Err(error) => {
            complain!("{url}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn status_of(url: &str) -> io::Result<u16> {
    let malformed = || {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            "expected http://host:port/path",
        )
    };
    let rest = url.strip_prefix("http://").ok_or_else(malformed)?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let address = host.to_socket_addrs()?.next().ok_or_else(malformed)?;
    let limit = Duration::from_secs(3);
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    write!(
        stream,
        "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    )?;
    let mut head = [0; 12]; // "HTTP/1.1 200"
    stream.read_exact(&mut head)?;
    std::str::from_utf8(&head[9..])
        .ok()
        .and_then(|status| status.parse().ok())
        .ok_or_else(malformed)
}
