//! All evidence of a verdict: requests, answers and stored orders. As a file it is one JSON object
//! a line: `{"run":…}` first, then `{"request":…}` in any order, `{"stored":…}`.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    #[serde(default)]
    pub server: String,
    pub stock: usize,
    #[serde(default = "one")]
    pub per_user: usize,
    /// Whether requests carry their key: without it a server cannot know one again.
    #[serde(default = "yes")]
    pub keyed: bool,
}

fn one() -> usize {
    1
}

fn yes() -> bool {
    true
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Meaning {
    Sold,
    SoldOut,
    AlreadyOrdered,
    ComeAgain,
    /// Sent, and no answer came: it may have been done.
    Lost,
    /// No connection: the server knows nothing of it.
    NotSent,
    /// An answer that means nothing here: it may have been done.
    Unexpected,
}

impl Meaning {
    pub fn is_an_answer(self) -> bool {
        !matches!(self, Self::Lost | Self::NotSent | Self::Unexpected)
    }
}

/// How many answers of each meaning there were.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts(pub BTreeMap<Meaning, usize>);

impl Counts {
    pub fn add(&mut self, meaning: Meaning) {
        *self.0.entry(meaning).or_default() += 1;
    }

    pub fn of(&self, meaning: Meaning) -> usize {
        self.0.get(&meaning).copied().unwrap_or_default()
    }
}

/// A meaning, a phase or a kind as files and reports write it.
pub fn name_of(value: impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        _ => String::new(),
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    #[default]
    Storm,
    /// Units were left, so buyers without an order were sent again, a few at a time.
    Again,
    /// Units are still left: one buyer, alone, after everything has come to rest.
    LastCall,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    pub user: String,
    pub key: String,
    #[serde(default)]
    pub phase: Phase,
    /// Microseconds of one clock that never goes back.
    pub start_us: u64,
    pub end_us: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    pub means: Meaning,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order_id: Option<String>,
    /// Why there was no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    pub order_id: String,
    pub user: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stored {
    pub orders: Vec<Row>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    pub run: Run,
    pub requests: Vec<Request>,
    /// `None`: it could not be read.
    pub stored: Option<Stored>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Run(Run),
    Request(Request),
    Stored(Stored),
}

impl History {
    pub fn load(file: &Path) -> io::Result<Self> {
        let mut history = Self::default();
        let mut run = None;
        for (index, text) in BufReader::new(std::fs::File::open(file)?).lines().enumerate() {
            let text = text?;
            if text.trim().is_empty() {
                continue;
            }
            let bad = |why: String| {
                io::Error::new(io::ErrorKind::InvalidData, format!("line {}: {why}", index + 1))
            };
            match serde_json::from_str(&text).map_err(|error| bad(error.to_string()))? {
                Line::Run(Run { per_user: 0, .. }) => {
                    return Err(bad("per_user must be at least 1".to_owned()));
                }
                Line::Request(request) if request.end_us < request.start_us => {
                    return Err(bad("end_us is before start_us".to_owned()));
                }
                Line::Run(line) => run = Some(line),
                Line::Request(request) => history.requests.push(request),
                Line::Stored(stored) => history.stored = Some(stored),
            }
        }
        let missing = || io::Error::new(io::ErrorKind::InvalidData, "there is no line {\"run\":…}");
        history.run = run.ok_or_else(missing)?;
        Ok(history)
    }

    pub fn save(&self, file: &Path) -> io::Result<()> {
        let mut out = BufWriter::new(std::fs::File::create(file)?);
        let mut write = |line: &Line| -> io::Result<()> {
            serde_json::to_writer(&mut out, line)?;
            out.write_all(b"\n")
        };
        write(&Line::Run(self.run.clone()))?;
        self.requests.iter().try_for_each(|request| write(&Line::Request(request.clone())))?;
        self.stored.iter().try_for_each(|stored| write(&Line::Stored(stored.clone())))?;
        out.flush()
    }
}
