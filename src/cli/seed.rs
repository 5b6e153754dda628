//! The demo catalogue.

use crate::app::AppError;
use crate::catalog::Catalog;
use crate::catalog::changes::NewSale;
use crate::domain::SaleState;
use time::{Duration, OffsetDateTime};

/// Key, title, description, image, [price, original price, stock], minutes until it opens and ends.
type Demo = (&'static str, &'static str, &'static str, &'static str, [i64; 3], [i64; 2]);

#[rustfmt::skip]
const DEMO: [Demo; 4] = [
    ("demo-headphones", "Aurora headphones", "Noise cancelling, 40 hours on one charge.",
        "headphones", [7_900, 19_900, 500], [0, 45]),
    ("demo-console", "Orbit game console",
        "Opens two minutes after it was put up: watch the countdown.",
        "console", [24_900, 49_900, 100], [2, 24 * 60]),
    ("demo-ten-phones", "Ten phones", "Ten phones for everybody: the classic. One each.",
        "phone", [100, 99_900, 10], [0, 12 * 60]),
    ("demo-load", "Sneakers for a load test", "100,000 pairs, so that k6 has something to buy.",
        "sneakers", [4_900, 12_900, 100_000], [0, 24 * 60]),
];

/// Creates the demo catalogue; a sale that has ended is followed by the next of its kind.
/// Idempotent by the keys. Answers how many sales are on.
pub async fn seed(catalog: &Catalog) -> Result<usize, AppError> {
    let now = OffsetDateTime::now_utc();
    for (name, title, description, image, [price, original, stock], [opens, ends]) in DEMO {
        for turn in 1.. {
            let sale = NewSale {
                title: title.to_owned(),
                description: Some(description.to_owned()),
                image_url: Some(format!("/static/img/{image}.svg")),
                price_cents: price,
                original_price_cents: Some(original),
                stock,
                opens_at: (opens > 0).then(|| now + Duration::minutes(opens)),
                closes_at: Some(now + Duration::minutes(ends)),
                payment_timeout_secs: Some(300),
                seed_key: Some(format!("{name}-{turn}")),
                ..NewSale::default()
            };
            if catalog.create_sale(sale).await?.state != SaleState::Ended {
                break;
            }
        }
    }
    Ok(DEMO.len())
}
