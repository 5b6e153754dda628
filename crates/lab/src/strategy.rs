//! The properties that each strategy declares.

use crate::lock_sources::SOURCES;
use crate::marks::{self, Excerpt, Source};
use crate::texts::{self, Text};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use std::iter;
use utoipa::ToSchema;

pub use crate::texts::{Language, Words};

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

/// How a sale can go wrong.
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
    /// At worst some units stay.
    pub const UNSOLD: Self = Self { oversells: Never, undersells: Possible, duplicates: Never };
    pub const NONE: Self = Self { oversells: Never, undersells: Never, duplicates: Never };
    /// Each can be shown.
    pub const POSSIBLE: Self =
        Self { oversells: Possible, undersells: Possible, duplicates: Possible };

    pub fn each(&self) -> [(Harm, Likelihood); 3] {
        [
            (Harm::Oversells, self.oversells),
            (Harm::Undersells, self.undersells),
            (Harm::Duplicates, self.duplicates),
        ]
    }
}

/// The promise of a strategy, on one node and on several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct Promise {
    /// On one node.
    #[serde(flatten)]
    pub one_node: Harms,
    pub across_nodes: Harms,
}

impl Promise {
    pub const SOUND: Self = Self::everywhere(Harms::NONE);

    /// One promise for one node and for several.
    pub const fn everywhere(harms: Harms) -> Self {
        Self { one_node: harms, across_nodes: harms }
    }

    pub fn on(&self, nodes: u32) -> &Harms {
        if nodes > 1 { &self.across_nodes } else { &self.one_node }
    }
}

/// The effect that a demonstration shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
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
    /// The strategy noted this while it sold (see `Bench::note`).
    Notes(#[serde(skip)] &'static str),
    /// Nothing goes wrong: the cure of the demonstration before.
    Holds,
}

// ---- strategies -------------------------------------------------------------------------------

/// A server that is needed besides Postgres and one Redis.
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
    pub kind: ArenaOptionKind,
}

impl OptionSpec {
    /// Its lesson, in the words of this strategy or lesson, else in those that all share.
    pub fn teaches(&self, id: &str, language: Language) -> &'static str {
        let own = texts::of(id, language).and_then(|text| text.item("Options", self.name));
        own.unwrap_or_else(|| texts::item("options", "Options", self.name, language))
    }
}

#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(untagged)]
pub enum ArenaOptionKind {
    Whole { default: i64, min: i64, max: i64 },
    Choice { default: &'static str, values: &'static [&'static str] },
}

impl ArenaOptionKind {
    pub fn default(&self) -> Value {
        match self {
            Self::Whole { default, .. } => (*default).into(),
            Self::Choice { default, .. } => (*default).into(),
        }
    }
}

/// A storm on a fresh arena, small enough to be over in a blink.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub struct Scenario {
    pub stock: u32,
    pub buyers: u32,
    pub concurrency: u32,
    pub nodes: u32,
    /// Of all buyers, how many click twice: 0 to 1.
    pub duplicate_share: f64,
    /// Name and value, as `--option k=v` takes them.
    #[serde(serialize_with = "as_map")]
    #[schema(value_type = Map<String, Value>)]
    pub options: &'static [(&'static str, &'static str)],
}

impl Scenario {
    /// 25 people want 5 things.
    pub const SMALL: Self = Self {
        stock: 5,
        buyers: 25,
        concurrency: 25,
        nodes: 1,
        duplicate_share: 0.0,
        options: &[],
    };

    pub const fn stock(self, stock: u32) -> Self {
        Self { stock, ..self }
    }

    /// So many buyers, all at once.
    pub const fn buyers(self, buyers: u32) -> Self {
        Self { buyers, concurrency: buyers, ..self }
    }

    pub const fn concurrency(self, concurrency: u32) -> Self {
        Self { concurrency, ..self }
    }

    pub const fn nodes(self, nodes: u32) -> Self {
        Self { nodes, ..self }
    }

    /// All click twice.
    pub const fn double_clicks(self) -> Self {
        Self { duplicate_share: 1.0, ..self }
    }

    pub const fn options(self, options: &'static [(&'static str, &'static str)]) -> Self {
        Self { options, ..self }
    }

    pub fn option_values(&self) -> Map<String, Value> {
        let options = self.options.iter();
        options.map(|(name, value)| ((*name).to_owned(), Value::from(*value))).collect()
    }

    /// Two people want one thing.
    pub const ONE_UNIT: Self = Self { stock: 1, ..Self::SMALL.buyers(2) };

    /// There is one for each of five people, who try the lock once and leave.
    pub const IMPATIENT: Self = Self { options: &[("wait_ms", "0")], ..Self::SMALL.buyers(5) };

    /// One person clicks twice at the same moment.
    pub const DOUBLE_CLICK: Self =
        Self { buyers: 1, concurrency: 2, ..Self::SMALL }.double_clicks();
}

fn as_map<S: Serializer>(options: &[(&str, &str)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(options.iter().copied())
}

/// A harm, and the storm that makes it happen every time.
#[derive(Debug, Clone, Copy)]
pub struct Demonstration {
    /// Its key in the strategy's text.
    pub id: &'static str,
    pub shows: Harm,
    pub scenario: Scenario,
    /// The line that does it, or prevents it: its place among [`Strategy::marks`].
    pub mark: Option<usize>,
}

pub const fn show(id: &'static str, shows: Harm, scenario: Scenario) -> Demonstration {
    Demonstration { id, shows, scenario, mark: None }
}

impl Demonstration {
    /// Names its mark by the number, from 1: that of the strategy's text, and on through its locks.
    pub const fn at(self, number: usize) -> Self {
        Self { mark: Some(number - 1), ..self }
    }
}

/// One way to sell a scarce thing. Each stands in a file of its own, in one shape, so that two of
/// them diff to the idea that differs. Its words are in `texts/{en,zh}/ID.md`.
#[derive(Clone, Copy)]
pub struct Strategy {
    /// Its place in the registry, from 1.
    pub number: u8,
    pub id: &'static str,
    pub family: Family,
    pub promise: Promise,
    pub needs: &'static [Need],
    /// Its own knobs, besides those that every arena has (`options::GENERAL`).
    pub options: &'static [OptionSpec],
    /// Where a node can be made to crash, in the order in which a purchase comes by.
    pub crash_points: &'static [&'static str],
    pub demonstrations: &'static [Demonstration],
    /// The locks whose code decides, besides the purchase.
    pub locks: &'static [&'static str],
    /// Flawed variants of its lock: the lesson and the act that tell of one, and its source.
    pub variants: &'static [(&'static str, &'static str, Source)],
    /// Scripts that belong to the purchase.
    pub scripts: &'static [Source],
    /// Whether the load balancer has to send a buyer always to the same node.
    pub routes_by_buyer: bool,
    /// The whole file.
    pub code: Source,
}

impl Strategy {
    /// The defaults of a strategy's file; the registry sets number and code.
    pub const PLAIN: Self = Self {
        number: 0,
        id: "",
        family: Family::Nothing,
        promise: Promise::SOUND,
        needs: &[],
        options: &[],
        crash_points: &[],
        demonstrations: &[],
        locks: &[],
        variants: &[],
        scripts: &[],
        routes_by_buyer: false,
        code: Source { file: "", text: "" },
    };

    pub fn title(&self, language: Language) -> &'static str {
        texts::of(self.id, language).map_or(self.id, Text::title)
    }

    /// The idea in one sentence for a beginner.
    pub fn lead(&self, language: Language) -> &'static str {
        texts::of(self.id, language).map_or(self.id, Text::lead)
    }

    /// A section of its text.
    pub fn says(&self, section: &str, language: Language) -> &'static str {
        texts::of(self.id, language).and_then(|text| text.section(section)).unwrap_or(self.id)
    }

    pub fn teaches(&self, demonstration: &Demonstration, language: Language) -> &'static str {
        texts::item(self.id, "Demonstrations", demonstration.id, language)
    }

    /// The part of the file that sells; what it shares with others stands below.
    pub fn purchase_code(&self) -> String {
        let own = self.code.text.split("\npub const STRATEGY").next().unwrap_or("");
        let calls = |functions: &[&str]| functions.iter().any(|function| own.contains(function));
        let shared = [
            calls(&["under_lock("]).then_some(include_str!("under_lock.rs")),
            calls(&["read_check_write(", "naive_sale("]).then_some(include_str!("purchase.rs")),
        ];
        let shared: Vec<_> = shared.into_iter().flatten().map(without_imports).collect();
        let heading = (!shared.is_empty()).then_some("// shared by several strategies");
        let scripts = self.scripts.iter().map(|script| script.text.trim());
        let parts = iter::once(without_imports(own)).chain(heading).chain(shared).chain(scripts);
        parts.collect::<Vec<_>>().join("\n\n")
    }

    /// The marked lines: of its file, its scripts, its locks and their variants.
    pub fn marks(&self, language: Language) -> Vec<Excerpt> {
        let sources = iter::once(&self.code).chain(self.scripts);
        let mut found: Vec<Excerpt> = sources.copied().flat_map(marks::excerpts).collect();
        translate(&mut found, self.id, "Marks", language);
        for id in self.locks {
            let sources = SOURCES.iter().filter(|(of, _)| of == id).map(|(_, source)| *source);
            let mut of_lock: Vec<Excerpt> = sources.flat_map(marks::excerpts).collect();
            translate(&mut of_lock, "locks", id, language);
            found.extend(of_lock);
        }
        for (lesson, act, source) in self.variants {
            let words = texts::item(lesson, "Marks", act, language);
            let marked = marks::excerpts(*source).into_iter();
            found.extend(marked.map(|mark| Excerpt { words: words.to_owned(), ..mark }));
        }
        found
    }
}

/// The code after the last import.
fn without_imports(code: &str) -> &str {
    let imports = code.rfind("\nuse ").unwrap_or(0);
    code[imports..].split_once(";\n").map_or(code, |(_, behind)| behind).trim()
}

/// The marks' words in this language, where its text has them.
fn translate(marks: &mut [Excerpt], id: &str, section: &str, language: Language) {
    let Some(text) = texts::of(id, language) else { return };
    for (number, mark) in marks.iter_mut().enumerate() {
        if let Some(words) = text.item(section, &(number + 1).to_string()) {
            mark.words = words.to_owned();
        }
    }
}

/// A family of strategies.
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
