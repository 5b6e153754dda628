//! The knobs of an arena: what each may be, and what turning it teaches.

use super::strategy::{OptionKind, OptionSpec, Strategy, Words};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, time::Duration};

/// The knobs that every strategy has.
pub const GENERAL: &[OptionSpec] =
    &[WORK_MS, INTERLEAVE, PAUSE_MS, CRASH_AT, CRASH_NODE, CRASH_AFTER, RESTART_MS];

/// The option of this name, a strategy's own or one that all have.
pub fn option_of(strategy: &Strategy, name: &str) -> Option<&'static OptionSpec> {
    let mut all = strategy.options.iter().chain(GENERAL);
    all.find(|option| option.name == name)
}

const WORK_MS: OptionSpec = OptionSpec {
    name: "work_ms",
    teaches: Words::new(
        "How long the decision takes between looking and writing. The longer, the more buyers come \
         in between, and the longer a lock's holder keeps the others waiting.",
        "从“看库存”到“写库存”之间要干多久的活。时间越长，中间插进来的人越多；如果拿着锁，别人等得也越久。",
    ),
    kind: OptionKind::Whole { default: 0, min: 0, max: 2_000 },
};

const INTERLEAVE: OptionSpec = OptionSpec {
    name: "interleave",
    teaches: Words::new(
        "on: two buyers are made to stand at the dangerous point at the same moment, so that what \
         can go wrong does so every time. off: they meet there only by chance, as in real life; \
         the bug is still there.",
        "on：强迫两个买家同时站在最危险的那一步，凡是可能出错的，每次都会出错。off：像现实中一样全凭运气碰上；漏洞并没有消失。",
    ),
    kind: OptionKind::Choice(&["on", "off"]),
};

const PAUSE_MS: OptionSpec = OptionSpec {
    name: "pause_ms",
    teaches: Words::new(
        "The first buyer who holds the lock (or stands where a lock would be) stops for so long, \
         as in a long garbage collection. A lock that ends by itself is gone when the buyer wakes \
         up.",
        "第一个拿到锁（或站在本该加锁处）的买家停顿这么久，好比一次漫长的 GC。会自动过期的锁，等他醒来时早已不是他的了。",
    ),
    kind: OptionKind::Whole { default: 0, min: 0, max: 5_000 },
};

const CRASH_AT: OptionSpec = OptionSpec {
    name: "crash_at",
    teaches: Words::new(
        "The node crash_node dies at this point of a purchase: nothing after it runs, and what it \
         had in memory is gone. Each strategy names its own points.",
        "节点 crash_node 在购买走到这一步时当场崩溃：后面的代码一行都不执行，内存里的东西全部消失。每种策略有自己的崩溃点。",
    ),
    // The values are the strategy's crash points.
    kind: OptionKind::Choice(&["never"]),
};

const CRASH_NODE: OptionSpec = OptionSpec {
    name: "crash_node",
    teaches: Words::new("Which node crashes.", "哪个节点崩溃。"),
    kind: OptionKind::Whole { default: 0, min: 0, max: 7 },
};

const CRASH_AFTER: OptionSpec = OptionSpec {
    name: "crash_after",
    teaches: Words::new(
        "The crash comes when the point is passed for this many-th time.",
        "第几次经过崩溃点时才崩溃。",
    ),
    kind: OptionKind::Whole { default: 1, min: 1, max: 10_000 },
};

const RESTART_MS: OptionSpec = OptionSpec {
    name: "restart_ms",
    teaches: Words::new(
        "How long the crashed node is down; purchases sent to it fail until then.",
        "崩溃的节点要停多久才恢复；在此之前发给它的购买请求都会失败。",
    ),
    kind: OptionKind::Whole { default: 50, min: 0, max: 10_000 },
};

/// The knob of the strategies that try again when somebody else was faster.
pub const fn retries(default: i64, teaches: Words) -> OptionSpec {
    OptionSpec {
        name: "retries",
        teaches,
        kind: OptionKind::Whole { default, min: 0, max: 10_000 },
    }
}

/// The knob of the strategies with a lock that ends by itself.
pub const fn lease_ms(default: i64) -> OptionSpec {
    OptionSpec {
        name: "lease_ms",
        teaches: Words::new(
            "How long the lock lasts by itself. Too short, and it ends while its holder still \
             works: two are inside. Too long, and a dead holder keeps everybody waiting.",
            "锁多久自动过期。太短，持有者还没干完锁就没了，里面会有两个人；太长，持有者死了以后大家都得干等。",
        ),
        kind: OptionKind::Whole { default, min: 10, max: 60_000 },
    }
}

/// The knob of the strategies that wait for a lock.
pub const fn wait_ms(default: i64) -> OptionSpec {
    OptionSpec {
        name: "wait_ms",
        teaches: Words::new(
            "How long a buyer waits for the lock; 0 tries once. A buyer who gives up is turned \
             away although there may be stock left.",
            "买家最多等锁多久；0 表示只试一次。等不到就放弃的人，即使还有货也买不到。",
        ),
        kind: OptionKind::Whole { default, min: 0, max: 20_000 },
    }
}

/// A knob of one strategy only. `range`: default, least, most.
pub const fn whole(name: &'static str, range: (i64, i64, i64), teaches: Words) -> OptionSpec {
    let (default, min, max) = range;
    OptionSpec { name, teaches, kind: OptionKind::Whole { default, min, max } }
}

/// How many of the lock's Redis servers lose their data while the first buyer holds the lock.
pub const fn redis_node_loss(max: i64) -> OptionSpec {
    OptionSpec {
        name: "redis_node_loss",
        teaches: Words::new(
            "So many of the lock's Redis servers come back empty while the first buyer is inside \
             (a restart without its data, or a failover to a replica that never saw the lock).",
            "第一个买家还在锁里面时，有这么多台存锁的 Redis 丢了数据（重启后没恢复，或切换到了没收到这把锁的从库）。",
        ),
        kind: OptionKind::Whole { default: 0, min: 0, max },
    }
}

/// Why an option was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("options.{name}: {why}")]
pub struct BadOption {
    pub name: String,
    pub why: String,
}

/// The options of one arena: every knob of its strategy has a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options(BTreeMap<&'static str, Setting>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Setting {
    Whole(i64),
    Choice(&'static str),
}

impl Options {
    /// Reads what was asked for: numbers, or texts as a command line has them. Unknown names and
    /// values out of range are refused.
    pub fn read(
        strategy: &'static Strategy,
        asked: &Map<String, Value>,
    ) -> Result<Self, BadOption> {
        let own = strategy.options.iter();
        let mut settings: BTreeMap<_, _> =
            own.chain(GENERAL).map(|option| (option.name, default_of(option))).collect();
        for (name, value) in asked {
            let bad = |why: String| BadOption { name: name.chars().take(40).collect(), why };
            let option = option_of(strategy, name)
                .ok_or_else(|| bad(format!("{} has no such option", strategy.id)))?;
            let setting = if option.name == CRASH_AT.name {
                choice(value, ["never"].iter().chain(strategy.crash_points))
            } else {
                match option.kind {
                    OptionKind::Whole { min, max, .. } => read_whole(value, min, max),
                    OptionKind::Choice(values) => choice(value, values.iter()),
                }
            };
            settings.insert(option.name, setting.map_err(bad)?);
        }
        Ok(Self(settings))
    }

    /// The whole number of this name; 0 if the strategy has no such option.
    pub fn whole(&self, name: &str) -> i64 {
        match self.0.get(name) {
            Some(Setting::Whole(value)) => *value,
            _ => 0,
        }
    }

    /// The choice of this name; empty if the strategy has no such option.
    pub fn choice(&self, name: &str) -> &'static str {
        match self.0.get(name) {
            Some(Setting::Choice(value)) => value,
            _ => "",
        }
    }

    pub fn millis(&self, name: &str) -> Duration {
        Duration::from_millis(u64::try_from(self.whole(name)).unwrap_or(0))
    }

    pub fn to_json(&self) -> Map<String, Value> {
        let entries = self.0.iter().map(|(name, setting)| {
            let value = match setting {
                Setting::Whole(value) => Value::from(*value),
                Setting::Choice(value) => Value::from(*value),
            };
            ((*name).to_owned(), value)
        });
        entries.collect()
    }
}

fn default_of(option: &OptionSpec) -> Setting {
    match option.kind {
        OptionKind::Whole { default, .. } => Setting::Whole(default),
        OptionKind::Choice(values) => Setting::Choice(values.first().copied().unwrap_or("")),
    }
}

fn read_whole(value: &Value, min: i64, max: i64) -> Result<Setting, String> {
    let number = match value {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    number
        .filter(|number| (min..=max).contains(number))
        .map(Setting::Whole)
        .ok_or_else(|| format!("must be a whole number from {min} to {max}"))
}

fn choice<'a>(
    value: &Value,
    values: impl Iterator<Item = &'a &'static str> + Clone,
) -> Result<Setting, String> {
    let wanted = match value {
        Value::String(text) => text.as_str(),
        Value::Bool(true) => "on",
        Value::Bool(false) => "off",
        _ => "",
    };
    let found = values.clone().find(|value| **value == wanted);
    found.map(|value| Setting::Choice(value)).ok_or_else(|| {
        let all: Vec<&str> = values.copied().collect();
        format!("must be one of: {}", all.join(", "))
    })
}
