//! The demo catalogue.

use crate::app::AppError;
use crate::catalog::Catalog;
use crate::catalog::changes::NewSale;
use crate::domain::SaleState;
use std::sync::Arc;
use std::time::Duration;
use tasks::Tasks;

/// Key, title, description, image, [price, original price, stock], minutes until it opens and ends.
type Demo = (&'static str, &'static str, &'static str, &'static str, [i64; 3], [u64; 2]);

#[rustfmt::skip]
const DEMO: [Demo; 4] = [
    ("demo-headphones", "Aurora headphones", "Noise cancelling, 40 hours on one charge.",
        "headphones", [7_900, 19_900, 500], [0, 90]),
    ("demo-console", "Orbit game console",
        "Opens two minutes after it was put up: watch the countdown.",
        "console", [24_900, 49_900, 100], [2, 12 * 60]),
    ("demo-ten-phones", "Ten phones", "Ten phones for everybody: the classic. One each.",
        "phone", [100, 99_900, 10], [0, 12 * 60]),
    ("demo-load", "Sneakers for a load test", "100,000 pairs, so that k6 has something to buy.",
        "sneakers", [4_900, 12_900, 100_000], [0, 24 * 60]),
];

/// How soon a demo sale that has ended is followed.
const PAUSE: Duration = Duration::from_secs(10);

/// Creates the demo catalogue; a sale that has ended is followed by the next of its kind.
/// Idempotent by the keys. Answers how many sales are on.
pub async fn seed(catalog: &Catalog) -> Result<usize, AppError> {
    for (name, title, description, image, [price, original, stock], [opens, ends]) in DEMO {
        let (last, turns) = catalog.last_seeded(&format!("{name}-")).await?;
        if let Some(id) = last
            && catalog.sale(id).await?.state != SaleState::Ended
        {
            continue;
        }
        let now = catalog.now();
        let sale = NewSale {
            title: title.to_owned(),
            description: Some(description.to_owned()),
            image_url: Some(format!("/static/img/{image}.svg")),
            price_cents: price,
            original_price_cents: Some(original),
            stock,
            opens_at: (opens > 0).then(|| now + Duration::from_secs(60 * opens)),
            closes_at: Some(now + Duration::from_secs(60 * ends)),
            payment_timeout_secs: Some(300),
            seed_key: Some(format!("{name}-{}", turns + 1)),
            ..NewSale::default()
        };
        catalog.create_sale(sale).await?;
    }
    Ok(DEMO.len())
}

/// Keeps the demo catalogue going for as long as the program runs.
pub fn spawn(catalog: &Arc<Catalog>, tasks: &Tasks) {
    tasks.spawn("demo catalogue", catalog, |catalog, task| async move {
        let mut periodic = task.every(PAUSE);
        while periodic.tick(seed(&catalog)).await {}
    });
}
