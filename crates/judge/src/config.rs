//! What to do to which server: the settings of a run, and the switches of the command line.

use crate::adapter::Adapter;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use std::time::Duration;

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
    /// The share of the buyers who ask twice at once, every other with the same Idempotency-Key
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
    /// --kill or --start 20]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub settle: Option<Duration>,
    /// For the storm
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub time_limit: Duration,
    /// Kills the server in the middle of the storm; run by `sh -c`
    #[arg(long, value_name = "COMMAND")]
    pub kill: Option<String>,
    /// Starts it again; the server is left running
    #[arg(long, value_name = "COMMAND")]
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

impl Config {
    pub fn settle(&self) -> Duration {
        let is_faulty = self.kill.is_some() || self.start.is_some();
        self.settle.unwrap_or(Duration::from_secs(if is_faulty { 20 } else { 5 }))
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
