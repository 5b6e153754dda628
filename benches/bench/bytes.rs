//! What a buyer leaves in Redis.

use crate::report::{Bound, Section, thousands};
use crate::stage::{Stage, quiescent_audit};
use crate::{Options, Result, process::Workspace};
use flash_sale::app::Stores;
use redis::{AsyncCommands, cmd};
use serde_json::json;

const BUYERS_WEIGHED: usize = 100_000;
const MOST_BYTES: f64 = 120.0;

pub async fn run(options: &Options, workspace: &Workspace) -> Result<Section> {
    let mut stage = Stage::new(options, workspace)?;
    let target = stage.serve("bytes", "everysec", "off")?;
    let stores = workspace.stores("bytes").await?;
    let count = options.scaled(BUYERS_WEIGHED).min(BUYERS_WEIGHED);
    let headings = ["", "buyers", "bytes a buyer", "keys", "entries left in the log"];
    let mut section = Section::new("bytes", "What a buyer leaves in Redis", &headings);
    let mut figures = Vec::new();
    for (title, with_keys) in [("without an Idempotency-Key", false), ("with one", true)] {
        let sale = target.client.create_sale("weighed", count).await?;
        let tokens = stage.tokens(count);
        stage.sell_to("bytes", &target, &sale, &tokens, with_keys).await?;
        quiescent_audit(&target, &sale).await?;
        let (bytes, keys, entries) = weigh(&stores, &sale).await?;
        let each = bytes as f64 / count as f64;
        section.row([
            title.to_owned(),
            thousands(count as f64),
            format!("{each:.1}"),
            thousands(keys as f64),
            entries.to_string(),
        ]);
        if entries > 0 {
            stage.fail("bytes", format!("{entries} log entries are left although all is written"));
        }
        if !with_keys {
            section.goal("Redis bytes a buyer, without a key", Bound::AtMost(MOST_BYTES), each);
            section.goal("log entries left", Bound::AtMost(0.0), entries as f64);
        }
        figures.push(json!({"idempotency_key": with_keys, "buyers": count, "bytes": bytes}));
    }
    stores.close().await;
    section.note(
        "The sum of MEMORY USAGE (SAMPLES 0) over all keys of the sale, its state and the empty \
         log included.",
    );
    section.failures = stage.finish([target].iter_mut());
    section.figures = json!(figures);
    Ok(section)
}

/// The bytes of a sale's keys, how many keys there are, and how many entries its log has.
async fn weigh(stores: &Stores, sale: &str) -> Result<(u64, usize, u64)> {
    let mut connection = stores.redis.pooled().await?;
    // Nobody else is on this server.
    let keys: Vec<String> = connection.keys(format!("{{sale:{sale}}}*")).await?;
    let mut bytes = 0;
    for key in &keys {
        let mut weigh = cmd("MEMORY");
        weigh.arg("USAGE").arg(key).arg("SAMPLES").arg(0);
        bytes += weigh.query_async::<u64>(&mut connection).await?;
    }
    Ok((bytes, keys.len(), connection.xlen(format!("{{sale:{sale}}}:log")).await?))
}
