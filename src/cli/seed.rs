//! The demo catalogue.

use crate::app::AppError;
use crate::catalog::Catalog;
use crate::catalog::changes::NewSale;
use time::{Duration, OffsetDateTime};

/// Key, title, description, image, [price, original price, stock], minutes until the opening.
type Demo = (&'static str, &'static str, &'static str, &'static str, [i64; 3], Option<i64>);

#[rustfmt::skip]
const DEMO: [Demo; 4] = [
    ("demo-headphones", "Aurora headphones", "Noise cancelling, 40 hours on one charge.",
        "headphones", [7_900, 19_900, 500], None),
    ("demo-console", "Orbit game console",
        "Opens two minutes after the first start: watch the countdown.",
        "console", [24_900, 49_900, 100], Some(2)),
    ("demo-ten-phones", "Ten phones", "Ten phones for everybody: the classic. One each.",
        "phone", [100, 99_900, 10], None),
    ("demo-load", "Sneakers for a load test", "100,000 pairs, so that k6 has something to buy.",
        "sneakers", [4_900, 12_900, 100_000], None),
];

/// Creates the demo catalogue. Idempotent by the keys. Answers how many sales there are.
pub async fn seed(catalog: &Catalog) -> Result<usize, AppError> {
    let now = OffsetDateTime::now_utc();
    for (name, title, description, image, [price, original, stock], opens) in DEMO {
        let sale = NewSale {
            title: title.to_owned(),
            description: Some(description.to_owned()),
            image_url: Some(format!("/static/img/{image}.svg")),
            price_cents: price,
            original_price_cents: Some(original),
            stock,
            opens_at: opens.map(|minutes| now + Duration::minutes(minutes)),
            closes_at: Some(now + Duration::days(365)),
            payment_timeout_secs: Some(300),
            seed_key: Some(name),
            ..NewSale::default()
        };
        catalog.create_sale(sale).await?;
    }
    Ok(DEMO.len())
}
