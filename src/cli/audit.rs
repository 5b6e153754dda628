//! `audit`: compares Redis with Postgres, and the books, for a person or as JSON.

use super::open;
use crate::app::AppError;
use crate::audit::Audit;
use crate::config::StoreSettings;
use crate::domain::SaleId;
use crate::error::ServiceError;
use crate::services::Services;
use ::payments::ledger::books::Books;
use clap::Args;
use lab::terminal::{complain, say};
use serde::Serialize;
use std::io;
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::{Instant, sleep};

#[derive(Args)]
pub struct AuditArgs {
    /// Only this sale
    #[arg(long, value_name = "ID")]
    sale: Option<SaleId>,
    /// Only the books: the provider's transactions, the payments and the orders
    #[arg(long, conflicts_with = "sale")]
    books: bool,
    /// Print the verdicts as a JSON array; the books as an object
    #[arg(long)]
    json: bool,
    /// Wait up to this many seconds for the backlog and the outbox to be empty, so that both
    /// sides can be compared
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    wait: u64,
    #[command(flatten)]
    store: StoreSettings,
}

pub async fn audit(args: AuditArgs) -> Result<ExitCode, AppError> {
    let opened = open::existing(&args.store).await?;
    let (services, wait) = (&opened.running.services, Duration::from_secs(args.wait));
    let (audits, mut unread) = match args.books {
        true => (Vec::new(), Vec::new()),
        false => audit_all(services, args.sale, wait).await,
    };
    let books = match args.sale {
        None => Some(services.payments.ledger.books_until(Instant::now() + wait).await),
        Some(_) => None,
    };
    opened.stores.redis.warn_unless_durable().await;
    opened.close().await;
    let is_shown = !audits.is_empty() || unread.is_empty();
    match (args.json, args.books, &books) {
        (true, true, Some(Ok(books))) => print_json(books)?,
        (true, false, _) if is_shown => print_json(&audits)?,
        (false, false, _) if is_shown => print(&audits, unread.len()),
        _ => {}
    }
    let books = books.transpose().unwrap_or_else(|error| {
        unread.push(ServiceError::from(error).to_string());
        None
    });
    for why in &unread {
        complain!("flash-sale: {why}");
    }
    if let (false, Some(books)) = (args.json, &books) {
        say!("{books}");
    }
    let books_are = |right: fn(&Books) -> bool| books.as_ref().is_none_or(right);
    let ok = audits.iter().all(|audit| audit.ok) && books_are(|books| books.ok);
    let compared = audits.iter().all(|audit| audit.quiescent) && books_are(|books| books.quiescent);
    Ok(match (ok, compared && unread.is_empty()) {
        (true, true) => ExitCode::SUCCESS,
        (false, _) => ExitCode::from(1),
        (true, false) => ExitCode::from(2), // not everything could be compared
    })
}

fn print_json(value: &impl Serialize) -> Result<(), AppError> {
    let text = serde_json::to_string_pretty(value).map_err(io::Error::other);
    say!("{}", text.map_err(AppError::io("print the audit"))?);
    Ok(())
}

/// The audits, and why others could not be made.
async fn audit_all(
    services: &Services,
    only: Option<SaleId>,
    wait: Duration,
) -> (Vec<Audit>, Vec<String>) {
    if let Err(error) = services.catalog.refresh_catalogue().await {
        return (Vec::new(), vec![error.to_string()]);
    }
    let known = services.catalog.cache.cached_sales();
    let known = || known.iter().map(|cached| cached.id).collect();
    let mut ids: Vec<SaleId> = only.map_or_else(known, |id| vec![id]);
    ids.sort();
    let deadline = Instant::now() + wait;
    let (mut audits, mut unread) = (Vec::new(), Vec::new());
    for id in ids {
        match audit_until(services, id, deadline).await {
            Ok(audit) => audits.push(audit),
            Err(error) => unread.push(format!("sale {id}: {error}")),
        }
    }
    (audits, unread)
}

/// Audits again until both sides could be compared. A store may be away meanwhile.
async fn audit_until(
    services: &Services,
    id: SaleId,
    deadline: Instant,
) -> Result<Audit, ServiceError> {
    loop {
        match services.auditor.audit(id).await {
            Err(ServiceError::Postgres(_) | ServiceError::Redis(_))
                if Instant::now() < deadline => {}
            Ok(audit) if !audit.quiescent && Instant::now() < deadline => {}
            audited => return audited,
        }
        sleep(Duration::from_millis(100)).await;
    }
}

fn print(audits: &[Audit], unread: usize) {
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
        let (sale, stock, backlog) = (audit.sale_id.to_string(), audit.stock, audit.backlog);
        let (remaining, live, paid) = (audit.remaining, audit.live, audit.paid);
        let (cancelled, expired, rejected) = (audit.cancelled, audit.expired, audit.rejected);
        say!(
            "{sale:>6} {stock:>9} {remaining:>9} {live:>9} {paid:>9} {cancelled:>9} {expired:>8} \
             {rejected:>8} {backlog:>9}  {verdict}"
        );
        for problem in &audit.problems {
            say!("       - {problem}");
        }
    }
    let broken = audits.iter().filter(|audit| !audit.ok).count();
    let under_way = audits.iter().filter(|audit| !audit.quiescent).count();
    let all = audits.len() + unread;
    match (broken, unread, under_way) {
        (0, 0, 0) => say!("audit: ok ({all} sales)"),
        (0, 0, _) => say!(
            "audit: not conclusive (orders of {under_way} sales are under way; try a longer --wait)"
        ),
        (0, ..) => say!("audit: not conclusive ({unread} of {all} sales could not be read)"),
        _ => say!("audit: BROKEN ({broken} of {all} sales)"),
    }
}
