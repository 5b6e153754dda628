//! What a buyer leaves in Redis.

use crate::{
    Error, Options,
    load::Requests,
    process::{self, Process, Workspace},
    section::{Bound, Section, thousands},
    stage::{Sell, Stage, quiescent_audit},
};
use flash_sale::app::Stores;
use redis::{AsyncCommands, cmd};
use serde_json::json;
use std::sync::Arc;

const BUYERS_WEIGHED: usize = 100_000;
const MOST_BYTES: f64 = 120.0;

pub async fn run(options: &Options, workspace: &Workspace) -> Result<Section, Error> {
    let mut stage = Stage::new(options, workspace)?;
    let target = stage.serve("bytes", &[("REDIS_FSYNC", "everysec"), ("LAB", "off")])?;
    let stores = process::stores(&Process::data_dir(workspace, "bytes"), "").await?;
    let count = options.scaled(BUYERS_WEIGHED).min(BUYERS_WEIGHED);
    let headings = [
        "",
        "buyers",
        "bytes a buyer",
        "keys",
        "entries left in the log",
    ];
    let mut section = Section::new("bytes", "What a buyer leaves in Redis", &headings);
    let mut figures = Vec::new();
    for (title, keys) in [("without an Idempotency-Key", false), ("with one", true)] {
        let sale = target.client.create_sale("weighed", count).await?;
        let users = stage.users(count);
        let requests = Requests::purchases(target.address(), &sale, &users, keys);
        stage
            .sell(Sell {
                name: "bytes",
                target: &target,
                sale: &sale,
                requests: Arc::new(requests),
                count,
                connections: usize::from(options.connections),
                schedule: None,
                follower: None,
            })
            .await?;
        quiescent_audit(&target, &sale).await?;
        let weight = weigh(&stores, &sale).await?;
        let each = weight.bytes as f64 / count as f64;
        section.row([
            title.to_owned(),
            thousands(count as f64),
            format!("{each:.1}"),
            thousands(weight.keys as f64),
            weight.log_entries.to_string(),
        ]);
        if weight.log_entries > 0 {
            let what = format!(
                "{} log entries are left although all is written",
                weight.log_entries
            );
            stage.fail("bytes", &what);
        }
        if !keys {
            section.goal(
                "Redis bytes a buyer, without a key",
                Bound::AtMost(MOST_BYTES),
                each,
            );
            let left = weight.log_entries as f64;
            section.goal("log entries left", Bound::AtMost(0.0), left);
        }
        figures.push(json!({
            "idempotency_key": keys,
            "buyers": count,
            "bytes": weight.bytes,
            "bytes_a_buyer": each,
            "keys": weight.keys,
            "log_entries": weight.log_entries,
        }));
    }
    stores.close().await;
    section.note("The sum of MEMORY USAGE (SAMPLES 0) over all keys of the sale, its state and the empty log included.");
    stage.check_alive([target].iter_mut());
    section.failures = stage.failures;
    section.figures = json!(figures);
    Ok(section)
}

struct Weight {
    bytes: u64,
    keys: usize,
    log_entries: u64,
}

async fn weigh(stores: &Stores, sale: &str) -> Result<Weight, Error> {
    let mut connection = stores.redis.pooled().await?;
    // Nobody else is on this server.
    let keys: Vec<String> = connection.keys(format!("{{sale:{sale}}}*")).await?;
    let mut bytes = 0;
    for key in &keys {
        let mut weigh = cmd("MEMORY");
        weigh.arg("USAGE").arg(key).arg("SAMPLES").arg(0);
        let weight: u64 = weigh.query_async(&mut connection).await?;
        bytes += weight;
    }
    Ok(Weight {
        bytes,
        keys: keys.len(),
        log_entries: connection.xlen(format!("{{sale:{sale}}}:log")).await?,
    })
}
