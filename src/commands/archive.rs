//! `flash-sale archive`: the orders of sales that are long over go to the archive.

use super::open_what_is_there;
use crate::{
    app::AppError,
    config::StoreSettings,
    domain::SaleId,
    sale::{
        Shop,
        archive::{BATCH, Candidate, LEAST_AGE},
    },
};
use clap::Args;
use indicatif::ProgressBar;
use std::{
    io::{self, IsTerminal},
    process::ExitCode,
    time::Duration,
};

#[derive(Args)]
pub struct ArchiveArgs {
    /// Only sales that ended at least this long ago, like 30d, 12w or 48h; at least 25h
    #[arg(long, value_name = "AGE", default_value = "30d", value_parser = age)]
    older_than: Duration,
    /// Only this sale
    #[arg(long, value_name = "ID")]
    sale: Option<SaleId>,
    /// Say what would be moved, and move nothing
    #[arg(long)]
    dry_run: bool,
    /// The most orders of one transaction
    #[arg(long, value_name = "ORDERS", default_value_t = BATCH,
          value_parser = clap::value_parser!(u32).range(1..=BATCH as i64).map(|orders| orders as usize))]
    batch: usize,
}

use clap::builder::TypedValueParser;

/// A whole number and its unit.
fn age(text: &str) -> Result<Duration, String> {
    let form = || "expected a number of hours, days or weeks, like 48h, 30d or 12w".to_owned();
    let unit = text.chars().next_back().ok_or_else(form)?;
    let hours = match unit {
        'h' => 1,
        'd' => 24,
        'w' => 7 * 24,
        _ => return Err(form()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| form())?;
    let seconds = number.checked_mul(hours * 3_600).ok_or_else(form)?;
    // Beyond a thousand years Postgres would not know the date.
    let age = Duration::from_secs(seconds);
    if age < LEAST_AGE {
        return Err("redis keeps a sale for a day after its end: at least 25h".to_owned());
    }
    if seconds > 1_000 * 365 * 86_400 {
        return Err("at most 1000 years".to_owned());
    }
    Ok(age)
}

pub(super) async fn archive(args: ArchiveArgs, store: StoreSettings) -> Result<ExitCode, AppError> {
    let (stores, running) = open_what_is_there(&store).await?;
    let archived = archive_all(&running.shop, &args).await;
    running.stop().await;
    stores.close().await;
    let (moved, skipped) = archived?;
    let verb = if args.dry_run {
        "would be moved"
    } else {
        "moved"
    };
    say!("{moved} orders {verb}, {skipped} sales left");
    Ok(ExitCode::SUCCESS)
}

/// Answers how many orders were moved, and how many sales could not be.
async fn archive_all(shop: &Shop, args: &ArchiveArgs) -> Result<(u64, usize), AppError> {
    let candidates = shop.archive_candidates(args.older_than, args.sale).await?;
    let (mut total, mut left) = (0, 0);
    for candidate in candidates {
        let Candidate {
            sale,
            title,
            orders,
            obstacle,
        } = candidate;
        if let Some(obstacle) = obstacle {
            say!("sale {sale} ({title}): left, {obstacle}");
            left += 1;
            continue;
        }
        if args.dry_run {
            say!("sale {sale} ({title}): {orders} orders");
            total += orders.unsigned_abs();
            continue;
        }
        let progress = if io::stderr().is_terminal() {
            ProgressBar::new(orders.unsigned_abs())
        } else {
            ProgressBar::hidden()
        };
        let moved = shop
            .archive_sale(sale, args.older_than, args.batch, |count| {
                progress.inc(count);
            })
            .await;
        progress.finish_and_clear();
        match moved? {
            Some(moved) => {
                say!("sale {sale} ({title}): {moved} orders moved");
                total += moved;
            }
            None => {
                say!("sale {sale} ({title}): left, something of it is open");
                left += 1;
            }
        }
    }
    Ok((total, left))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ages_are_read_as_written() {
        assert_eq!(age("25h"), Ok(Duration::from_secs(25 * 3_600)));
        assert_eq!(age("30d"), Ok(Duration::from_secs(30 * 86_400)));
        assert_eq!(age("2w"), Ok(Duration::from_secs(14 * 86_400)));
        for refused in [
            "",
            "d",
            "30",
            "24h",
            "0d",
            "-3d",
            "1.5d",
            "30 d",
            "3天",
            "99999999999999999999d",
            "400000d",
        ] {
            age(refused).expect_err(refused);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_an_age_or_refused(text in ".{0,12}|[0-9]{1,25}[hdw]") {
            if let Ok(age) = age(&text) {
                prop_assert!(age >= LEAST_AGE);
            }
        }
    }
}
