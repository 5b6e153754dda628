//! A sale in several buckets: that they lend each other what they have, that a loan may break off anywhere, and
//! that the sale may be divided further while it sells. What holds for every sale is tested where it belongs, for
//! one bucket and for several ([`crate::support::in_buckets`]).

mod borrowing;
mod loans;
mod operating;
mod raising;

use crate::support::app::TestApp;
use flash_sale::{
    domain::{Bucket, SaleId, UserId},
    redis::Keys,
};

fn id_of(sale: &str) -> SaleId {
    sale.parse().expect("an id")
}

/// Somebody whose bucket this is.
fn user_in(bucket: Bucket) -> UserId {
    use flash_sale::domain::bucket::index_of;
    std::iter::repeat_with(UserId::random)
        .find(|user| index_of(*user, bucket.part.of) == bucket.part.index)
        .expect("an endless search")
}

/// A number in each bucket's state.
async fn in_each(app: &TestApp, sale: &str, buckets: u16, field: &str) -> Vec<Option<i64>> {
    let (keys, mut redis) = (Keys::new(&app.prefix), app.redis().await);
    let mut pipeline = redis::Pipeline::new();
    for bucket in Bucket::all(id_of(sale), buckets) {
        pipeline.hget(keys.state(bucket), field);
    }
    pipeline.query_async(&mut redis).await.expect("HGET")
}
