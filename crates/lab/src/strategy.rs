//! The vocabulary of the lab: what a strategy says of itself.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

// ---- texts ------------------------------------------------------------------------------------

/// One text in both languages. It stands beside the code that it explains.
#[derive(Debug, Clone, Copy)]
pub struct Words {
    pub en: &'static str,
    pub zh: &'static str,
}

/// A language that a reader can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    #[default]
    En,
    Zh,
}

impl Words {
    pub const fn new(en: &'static str, zh: &'static str) -> Self {
        Self { en, zh }
    }

    pub fn say(self, language: Language) -> &'static str {
        match language {
            Language::En => self.en,
            Language::Zh => self.zh,
        }
    }
}

// ---- promises ---------------------------------------------------------------------------------

/// How likely a harm is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Likelihood {
    /// Under no interleaving, with no option.
    Never,
    /// Some demonstration of the strategy makes it happen.
    Possible,
    /// An ordinary storm makes it happen.
    Expected,
}

pub use Likelihood::{Expected, Never, Possible};

/// What can go wrong with a sale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct Harms {
    /// More orders than units.
    pub oversells: Likelihood,
    /// Units are left although somebody wanted them.
    pub undersells: Likelihood,
    /// Somebody has more orders than allowed.
    pub duplicates: Likelihood,
}

impl Harms {
    pub const NONE: Self = Self { oversells: Never, undersells: Never, duplicates: Never };

    pub fn each(&self) -> [(Harm, Likelihood); 3] {
        [
            (Harm::Oversells, self.oversells),
            (Harm::Undersells, self.undersells),
            (Harm::Duplicates, self.duplicates),
        ]
    }
}

/// What a strategy promises, on one node and on several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promise {
    pub one_node: Harms,
    pub across_nodes: Harms,
}

impl Promise {
    pub const SOUND: Self = Self { one_node: Harms::NONE, across_nodes: Harms::NONE };

    pub fn on(&self, nodes: u32) -> &Harms {
        if nodes > 1 { &self.across_nodes } else { &self.one_node }
    }
}

/// What a demonstration shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Harm {
    Oversells,
    Undersells,
    Duplicates,
    /// Buyers were told "sold" and have no order.
    Loses,
    /// Buyers were turned away although they might have bought.
    Contends,
    /// Purchases ended in an error.
    Fails,
    /// The strategy noted this while it sold (see `Stand::note`).
    Notes(&'static str),
    /// Nothing goes wrong: the cure of the demonstration before.
    Holds,
}

// ---- what a strategy is -----------------------------------------------------------------------

/// What has to be there besides Postgres and one Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// This many more Redis servers, independent of each other.
    RedisNodes(usize),
    ZooKeeper,
}

impl Need {
    pub fn name(self) -> String {
        match self {
            Self::RedisNodes(count) => format!("redis-nodes-{count}"),
            Self::ZooKeeper => "zookeeper".to_owned(),
        }
    }
}

/// A knob of an arena.
#[derive(Debug, Clone, Copy)]
pub struct OptionSpec {
    pub name: &'static str,
    /// What turning it teaches.
    pub teaches: Words,
    pub kind: OptionKind,
}

#[derive(Debug, Clone, Copy)]
pub enum OptionKind {
    Whole {
        default: i64,
        min: i64,
        max: i64,
    },
    /// The first value is the default.
    Choice(&'static [&'static str]),
}

/// What may be said, and what it is if nothing is.
impl std::fmt::Display for OptionKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whole { default, min, max } => write!(f, "{min} to {max}, {default}"),
            Self::Choice(values) => f.write_str(&values.join(" | ")),
        }
    }
}

/// A storm on a fresh arena, small enough to be over in a blink.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    pub stock: u32,
    pub buyers: u32,
    pub concurrency: u32,
    pub nodes: u32,
    /// Of a hundred buyers, how many click twice.
    pub duplicates_percent: u32,
    pub per_user_limit: u32,
    /// Name and value, as `--option k=v` takes them.
    pub options: &'static [(&'static str, &'static str)],
}

impl Scenario {
    /// 25 people want 5 things.
    pub const SMALL: Self = Self {
        stock: 5,
        buyers: 25,
        concurrency: 25,
        nodes: 1,
        duplicates_percent: 0,
        per_user_limit: 1,
        options: &[],
    };

    /// One person clicks twice at the same moment.
    pub const DOUBLE_CLICK: Self =
        Self { stock: 5, buyers: 1, concurrency: 2, duplicates_percent: 100, ..Self::SMALL };
}

/// A harm, and the storm that makes it happen every time.
#[derive(Debug, Clone, Copy)]
pub struct Demonstration {
    pub shows: Harm,
    pub teaches: Words,
    pub scenario: Scenario,
}

/// One way to sell a scarce thing. Each stands in a file of its own, in one shape, so that two of
/// them diff to the idea that differs.
pub struct Strategy {
    /// Its row in the list; the registry is in this order.
    pub number: u8,
    pub id: &'static str,
    pub family: Family,
    pub title: Words,
    pub idea: Words,
    /// The article, paper or manual it comes from, and what that gets right or misses.
    pub source: Words,
    pub fails: Words,
    pub break_it: Words,
    pub instead: Words,
    pub promise: Promise,
    pub needs: &'static [Need],
    /// Its own knobs, besides those that every arena has (`options::GENERAL`).
    pub options: &'static [OptionSpec],
    /// Where a node can be made to crash, in the order in which a purchase comes by.
    pub crash_points: &'static [&'static str],
    pub demonstrations: &'static [Demonstration],
    /// Whether the load balancer has to send a buyer always to the same node.
    pub routes_by_buyer: bool,
    /// The whole file; what is shown starts at [`PURCHASE_MARK`].
    pub code: &'static str,
}

/// The line of a strategy's file after which the purchase begins.
pub const PURCHASE_MARK: &str = "// --- the purchase";

impl Strategy {
    /// The part of the file that sells.
    pub fn purchase_code(&self) -> &'static str {
        self.code.rfind(PURCHASE_MARK).map_or(self.code, |at| &self.code[at..]).trim()
    }
}

/// What strategies have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// Without any protection.
    Nothing,
    /// A lock in the memory of one process.
    InProcess,
    /// Rows, constraints and isolation levels of Postgres.
    Database,
    /// A lock that all nodes share.
    DistributedLock,
    /// Redis decides by a counter or a script.
    RedisCounter,
    /// Somebody else writes the order.
    Queue,
    /// The stock is split.
    Split,
}
