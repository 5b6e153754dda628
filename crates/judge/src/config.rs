//! The settings of a run, and the switches of the command line.

use crate::adapter::Adapter;
use crate::faults;
use crate::server::READING;
use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser};
use std::time::Duration;

/// For the calls of all buyers before the storm.
pub const PREPARING: Duration = Duration::from_secs(600);

#[derive(Args, Clone, Debug)]
pub struct Config {
    #[arg(skip)]
    pub url: String,
    /// Units that are put on sale
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = count(1, 1_000_000))]
    pub stock: usize,
    /// People who ask
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = count(1, 200_000))]
    pub buyers: usize,
    /// Requests at a time
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = count(1, 2_000))]
    pub concurrency: usize,
    /// The share of the buyers who ask twice at once: every other with the same Idempotency-Key,
    /// the others for one order more than they may have
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, value_parser = share)]
    pub duplicates: f64,
    /// How often a buyer asks again, with the same key, after a lost answer or "come again"
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = count(0, 50))]
    pub retries: usize,
    /// The share of the requests that are sent and read a few bytes at a time
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    pub slow_client: f64,
    /// For one request
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub timeout: Duration,
    /// How long nothing may change before what is missing counts as missing [default: 5; with
    /// --kill 20]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub settle: Option<Duration>,
    /// For the storm
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub time_limit: Duration,
    /// Kills the server in the middle of the storm; run by `sh -c`
    #[arg(long, value_name = "COMMAND")]
    pub kill: Option<String>,
    /// Starts it again; the server is left running
    #[arg(long, value_name = "COMMAND", requires = "kill")]
    pub start: Option<String>,
    /// The server's routes and answers, if they are not those of the contract: docs/judge.md
    #[arg(long, value_name = "FILE.json", value_parser = adapter)]
    pub adapter: Option<Adapter>,
    /// Reads the stored orders from the database: order id, buyer
    #[arg(long, value_name = "postgres://… SELECT …")]
    pub orders_sql: Option<String>,
    /// Storm a server that is not on this machine. Only your own
    #[arg(long)]
    pub allow_remote: bool,
}

/// As the command line has it without any switch.
impl Default for Config {
    fn default() -> Self {
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            config: Config,
        }
        Line::parse_from(["judge"]).config
    }
}

impl Config {
    pub fn settle(&self) -> Duration {
        self.settle.unwrap_or(Duration::from_secs(if self.kill.is_some() { 20 } else { 5 }))
    }

    /// For the whole run, whatever the server does: each of its limits, so often.
    pub fn longest(&self) -> Duration {
        let adapter = self.adapter.as_ref();
        let prepares = adapter.is_some_and(|adapter| !adapter.buyer.is_empty());
        let setup = adapter.map_or(1, |adapter| adapter.setup.len()) as u32;
        let fault = faults::LIMIT * 2 + faults::GONE;
        (self.time_limit + self.settle()) * 2
            + self.timeout * (setup + 8)
            + READING * 4
            + Duration::from_secs(30)
            + PREPARING * u32::from(prepares)
            + fault * u32::from(self.kill.is_some())
    }
}

fn count(least: u64, most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(least..=most)
}

fn share(text: &str) -> Result<f64, &'static str> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or("must be from 0 to 1")
}

fn seconds(text: &str) -> Result<Duration, &'static str> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=3_600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or("must be from 0.01 to 3600")
}

fn adapter(file: &str) -> Result<Adapter, String> {
    let json = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    Adapter::parse(&json).map_err(|error| error.to_string())
}
