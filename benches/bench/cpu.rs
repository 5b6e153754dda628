//! Whose processor time: the program, its Redis, its Postgres, the generator.
//!
//! From `/proc/PID/stat`, so only on Linux; elsewhere there is no answer, and the report leaves the
//! columns empty. Time of children that have ended is in their parent's `cutime` and `cstime`, which
//! is where Postgres' backends go.

use std::{collections::HashMap, fs, ops::Sub};

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

/// What has been used so far by the server process `server`, what it has started, and this process.
pub fn used(server: u32) -> Option<Usage> {
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
        app: stats.get(&server)?.own,
        generator: stats.get(&std::process::id())?.own,
        ..Usage::default()
    };
    for (&pid, stat) in &stats {
        let total = stat.own + stat.ended_children;
        match child_of(server, pid, &stats) {
            Some(child) if child.name.starts_with("redis") => usage.redis += total,
            Some(child) if child.name.starts_with("postgres") => usage.postgres += total,
            _ => {}
        }
    }
    Some(usage)
}

/// The child of `server` that `pid` is or descends from.
fn child_of(server: u32, pid: u32, stats: &HashMap<u32, Stat>) -> Option<&Stat> {
    let mut at = pid;
    for _ in 0..16 {
        let stat = stats.get(&at)?;
        if stat.parent == server {
            return Some(stat);
        }
        at = stat.parent;
    }
    None
}

/// The most memory that a process has had resident, in bytes.
pub fn peak_memory(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
