//! The commands of the program. Exit codes: 0 done, 1 bad result (an invariant is broken), 2
//! failed.

mod audit;
mod health;
mod open;
mod sandbox_pay;
mod seed;
mod serve;
mod tokens;

use crate::app::{AppError, Stores};
use crate::config::StoreSettings;
use crate::domain::SaleId;
use crate::{http, postgres};
use clap::{Parser, Subcommand};
use judge::command::JudgeArgs;
use lab::command;
use lab::command::lab::LabCommand;
use lab::command::lesson::LessonCommand;
use lab::terminal::{complain, say};
use std::io;
use std::process::ExitCode;

/// A flash-sale backend: browse a sale, hammer it with k6, learn how overselling is prevented.
///
/// Without any setting, `flash-sale serve` starts a private Postgres and a private Redis, makes a
/// demo catalogue, and serves it on http://127.0.0.1:8080. Settings are flags and environment
/// variables of the same name; a `.env` file is read.
#[derive(Parser)]
#[command(version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Serve the API, the pages and the order writer in one process
    Serve(Box<serve::Serve>),
    /// Run only the order writer, recovery, expiry, releases, refunds and reconciliation
    Worker(Box<serve::Worker>),
    /// Bring the schema up to date
    Migrate(Box<StoreSettings>),
    /// Create the demo catalogue; running it again changes nothing
    Seed(Box<StoreSettings>),
    /// Mint user tokens for load tests: a JSON array of {"user_id","token"}
    Tokens(Box<tokens::Tokens>),
    /// Recompute the invariants I1 to I4 from what Postgres and Redis hold, and compare the books
    /// (I13). Exits 0 if all hold, 1 if one is broken, 2 if it could not read them or orders were
    /// still under way
    Audit(Box<audit::AuditArgs>),
    /// Rebuild Redis from Postgres and what the order logs still hold
    Rebuild {
        /// Only this sale
        #[arg(long, value_name = "ID")]
        sale: Option<SaleId>,
        #[command(flatten)]
        store: Box<StoreSettings>,
    },
    /// The lab: over thirty ways to sell a scarce thing, some of them broken
    Lab {
        #[command(subcommand)]
        command: LabCommand<StoreSettings>,
    },
    /// The lock theatre: thirteen failures of locks and payments, step by step
    Lesson {
        #[command(subcommand)]
        command: LessonCommand<StoreSettings>,
    },
    /// Storm anybody's flash sale over HTTP and prove what it did wrong. Exits 0 if it held, 1 if
    /// it is broken, 2 if it could not be judged
    Judge(Box<JudgeArgs>),
    /// A payment provider for tests: charges, refunds, a payment page, webhooks, and faults
    SandboxPay(Box<sandbox_pay::SandboxPay>),
    /// Print the OpenAPI document
    Openapi,
    /// Ask a running server whether it is ready; exits 0 or 1 (for container health checks)
    #[command(hide = true)]
    Health {
        #[arg(default_value = "http://127.0.0.1:8080/readyz")]
        url: String,
    },
}

/// Runs one command.
pub async fn run(cli: Cli) -> ExitCode {
    let done = |()| ExitCode::SUCCESS;
    let outcome = match cli.command {
        Command::Serve(args) => serve::serve(*args).await.map(done),
        Command::Worker(args) => serve::work(*args).await.map(done),
        Command::Migrate(store) => migrate(&store).await.map(done),
        Command::Seed(store) => seed(&store).await.map(done),
        Command::Tokens(args) => tokens::mint(&args).map(done),
        Command::Audit(args) => audit::audit(*args).await,
        Command::Rebuild { sale, store } => rebuild(sale, &store).await,
        Command::Lab { command } => command::lab::run(command, open::lab).await,
        Command::Lesson { command } => command::lesson::run(command, open::lab).await,
        Command::Judge(args) => return judge::command::judge(*args).await,
        Command::SandboxPay(args) => sandbox_pay::sandbox_pay(*args).await.map(done),
        Command::Openapi => print_openapi().map(done),
        Command::Health { url } => return health::health(&url),
    };
    outcome.unwrap_or_else(|error| {
        complain!("flash-sale: {error}");
        ExitCode::from(2)
    })
}

async fn migrate(store: &StoreSettings) -> Result<(), AppError> {
    open::start_logs(store);
    let stores = Stores::join(store).await?;
    let migrated = async {
        postgres::migrate(&stores.postgres).await?;
        lab::schema::migrate(stores.postgres.direct()).await
    };
    let migrated = migrated.await;
    stores.close().await;
    migrated?;
    say!("the schema is up to date");
    Ok(())
}

async fn seed(store: &StoreSettings) -> Result<(), AppError> {
    let opened = open::create(store).await?;
    let seeded = seed::seed(&opened.running.services.catalog).await;
    opened.close().await;
    say!("{} demo sales are there", seeded?);
    Ok(())
}

async fn rebuild(sale: Option<SaleId>, store: &StoreSettings) -> Result<ExitCode, AppError> {
    let opened = open::existing(store).await?;
    let rebuilt = opened.running.services.rebuild.by_hand(sale).await;
    opened.close().await;
    match (rebuilt?, sale) {
        (0, Some(id)) => {
            complain!("flash-sale: there is no sale {id}");
            return Ok(ExitCode::from(2));
        }
        (1, _) => say!("1 sale is rebuilt"),
        (count, _) => say!("{count} sales are rebuilt"),
    }
    Ok(ExitCode::SUCCESS)
}

fn print_openapi() -> Result<(), AppError> {
    let text = http::openapi().to_pretty_json().map_err(io::Error::other);
    say!("{}", text.map_err(AppError::io("print the OpenAPI document"))?);
    Ok(())
}
