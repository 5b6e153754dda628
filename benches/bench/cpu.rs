//! Whose processor time, from `/proc/PID/stat`, so only on Linux. Time of ended children, as
//! Postgres' backends are, is in their parent's `cutime` and `cstime`.

use serde::Serialize;
use std::{collections::HashMap, fs};

/// The unit of these files is 1/100 s on every Linux that a program sees (USER_HZ).
const MICROSECONDS_PER_TICK: f64 = 10_000.0;

/// Microseconds of processor time.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Usage {
    pub app: f64,
    pub redis: f64,
    pub postgres: f64,
}

/// What this server has used since `earlier`, for each of `requests`.
pub fn since(earlier: Option<Usage>, server: u32, requests: usize) -> Option<Usage> {
    let (now, then) = (used(server)?, earlier?);
    let each = |now: f64, then: f64| (now - then) / requests.max(1) as f64;
    Some(Usage {
        app: each(now.app, then.app),
        redis: each(now.redis, then.redis),
        postgres: each(now.postgres, then.postgres),
    })
}

struct Stat {
    name: String,
    parent: u32,
    own: f64,
    ended_children: f64,
}

fn parse(stat: &str) -> Option<Stat> {
    // The name is in parentheses and may contain anything, parentheses too.
    let (before, after) = stat.rsplit_once(')')?;
    let name = before.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = after.split_ascii_whitespace().collect();
    let ticks = |field: usize| fields.get(field)?.parse::<f64>().ok();
    Some(Stat {
        name,
        parent: fields.get(1)?.parse().ok()?,
        own: (ticks(11)? + ticks(12)?) * MICROSECONDS_PER_TICK,
        ended_children: (ticks(13)? + ticks(14)?) * MICROSECONDS_PER_TICK,
    })
}

/// What has been used so far by this server and what it has started.
pub fn used(server: u32) -> Option<Usage> {
    let mut stats = HashMap::new();
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        // A process may end between the two.
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        if let (Some(pid), Some(stat)) = (pid, parse(&stat)) {
            stats.insert(pid, stat);
        }
    }
    let descends = |stat: &&Stat| {
        let mut line = std::iter::successors(Some(*stat), |stat| stats.get(&stat.parent)).take(16);
        line.any(|ancestor| ancestor.parent == server)
    };
    let of = |program: &str| {
        let all = stats.values().filter(|stat| stat.name.starts_with(program)).filter(descends);
        all.map(|stat| stat.own + stat.ended_children).sum()
    };
    Some(Usage { app: stats.get(&server)?.own, redis: of("redis"), postgres: of("postgres") })
}
