//! Whose processor time, from `/proc/PID/stat`, so only on Linux. Time of ended children, as
//! Postgres' backends are, is in their parent's `cutime` and `cstime`.

use std::{
    collections::HashMap,
    fs,
    ops::{Div, Sub},
};

/// The unit of these files is 1/100 s on every Linux that a program sees (USER_HZ).
const MICROSECONDS_PER_TICK: f64 = 10_000.0;

/// Microseconds of processor time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    pub app: f64,
    pub redis: f64,
    pub postgres: f64,
    pub generator: f64,
}

impl Sub for Usage {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            app: self.app - earlier.app,
            redis: self.redis - earlier.redis,
            postgres: self.postgres - earlier.postgres,
            generator: self.generator - earlier.generator,
        }
    }
}

impl Div<f64> for Usage {
    type Output = Self;

    fn div(self, by: f64) -> Self {
        Self {
            app: self.app / by,
            redis: self.redis / by,
            postgres: self.postgres / by,
            generator: self.generator / by,
        }
    }
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

/// What has been used so far by these server processes, what they have started, and this process.
pub fn used(servers: &[u32]) -> Option<Usage> {
    let mut stats = HashMap::new();
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        // A process may end between the two.
        if let Some(stat) = fs::read_to_string(entry.path().join("stat"))
            .ok()
            .as_deref()
            .and_then(parse)
        {
            stats.insert(pid, stat);
        }
    }
    let mut usage = Usage {
        app: servers
            .iter()
            .map(|server| stats.get(server).map(|stat| stat.own))
            .sum::<Option<f64>>()?,
        generator: stats.get(&std::process::id())?.own,
        ..Usage::default()
    };
    for (&pid, stat) in &stats {
        let total = stat.own + stat.ended_children;
        match child_of(servers, pid, &stats) {
            Some(child) if child.name.starts_with("redis") => usage.redis += total,
            Some(child) if child.name.starts_with("postgres") => usage.postgres += total,
            _ => {}
        }
    }
    Some(usage)
}

/// The child of a server that `pid` is or descends from.
fn child_of<'a>(servers: &[u32], pid: u32, stats: &'a HashMap<u32, Stat>) -> Option<&'a Stat> {
    let mut at = pid;
    for _ in 0..16 {
        let stat = stats.get(&at)?;
        if servers.contains(&stat.parent) {
            return Some(stat);
        }
        at = stat.parent;
    }
    None
}

/// The most memory that a process has had resident, in bytes.
pub fn peak_memory(pid: u32) -> Option<u64> {
    memory(pid, "VmHWM:")
}

/// The memory that a process has resident now, in bytes.
pub fn resident_memory(pid: u32) -> Option<u64> {
    memory(pid, "VmRSS:")
}

fn memory(pid: u32, field: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
