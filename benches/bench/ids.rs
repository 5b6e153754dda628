//! The id generator: blocks leased from a real Redis, and the arithmetic alone.

use crate::{Error, process};
use flash_sale::{
    app::Stores,
    sale::ids::{self, IdGenerator},
};
use std::{collections::HashSet, hint::black_box, path::Path, time::Instant};

/// As many as a full batch of buyers asks for.
const BATCH: usize = 512;

pub struct Ids {
    pub leased_per_second: f64,
    pub encoded_per_second: f64,
    pub unique: bool,
}

/// Takes `count` ids from the Redis of the server that runs on `data_dir`, under a prefix of its own.
pub async fn measure(data_dir: &Path, count: usize) -> Result<Ids, Error> {
    let stores = process::stores(data_dir, "bench:").await?;
    let taken = take(&stores, count).await;
    stores.close().await;
    let (leased_per_second, unique) = taken?;
    Ok(Ids {
        leased_per_second,
        encoded_per_second: encode(count * 10),
        unique,
    })
}

async fn take(stores: &Stores, count: usize) -> Result<(f64, bool), Error> {
    let generator = IdGenerator::new(
        stores.redis.clone(),
        stores.postgres.clone(),
        flash_sale::fail_point::FailPoints::default(),
    );
    let mut connection = stores.redis.pooled().await?;
    let mut all = Vec::with_capacity(count + BATCH);
    // The first lease asks Postgres for a floor.
    generator.take(&mut connection, BATCH, &mut all).await?;
    let mut batch = Vec::with_capacity(BATCH);
    let began = Instant::now();
    while all.len() < count {
        batch.clear();
        generator.take(&mut connection, BATCH, &mut batch).await?;
        all.extend_from_slice(&batch);
    }
    let per_second = count as f64 / began.elapsed().as_secs_f64();
    let distinct: HashSet<_> = all.iter().collect();
    Ok((per_second, distinct.len() == all.len()))
}

fn encode(count: usize) -> f64 {
    let second = time::OffsetDateTime::now_utc().unix_timestamp();
    let began = Instant::now();
    for sequence in 0..count {
        let id = ids::encode(black_box(second), black_box(sequence as u32));
        black_box(id.map(ids::decode));
    }
    count as f64 / began.elapsed().as_secs_f64()
}
