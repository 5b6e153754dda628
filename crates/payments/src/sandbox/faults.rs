//! What the sandbox does wrong when told to, by flags and by `PUT /v1/faults`.

use clap::Args;
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use uuid::Uuid;

/// A part of the whole, from 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "f64")]
pub struct Share(f64);

impl Share {
    /// Draws: true for this share of all calls.
    pub fn happens(self) -> bool {
        random() < self.0
    }
}

impl TryFrom<f64> for Share {
    type Error = &'static str;

    fn try_from(share: f64) -> Result<Self, Self::Error> {
        let is_share = (0.0..=1.0).contains(&share);
        is_share.then_some(Self(share)).ok_or("a share is from 0 to 1")
    }
}

impl FromStr for Share {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<f64>().map_err(|_| "a share is a number from 0 to 1")?.try_into()
    }
}

/// At least 0, below 1.
pub fn random() -> f64 {
    let [a, b, c, d, ..] = *Uuid::new_v4().as_bytes();
    f64::from(u32::from_be_bytes([a, b, c, d])) / (f64::from(u32::MAX) + 1.0)
}

/// Shares are from 0 to 1. Without any, the sandbox does everything right.
#[derive(Debug, Clone, Copy, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[command(next_help_heading = "Faults (shares are from 0 to 1; GET and PUT /v1/faults, too)")]
pub struct Faults {
    /// Answer each call so much later
    #[arg(long, value_name = "MS", default_value_t)]
    pub answer_late_ms: u64,
    /// The share of events whose webhook is never sent
    #[arg(long, value_name = "SHARE", default_value = "0")]
    pub webhook_lose: Share,
    /// The share of events whose webhook is sent twice
    #[arg(long, value_name = "SHARE", default_value = "0")]
    pub webhook_double: Share,
    /// Send each webhook so much later
    #[arg(long, value_name = "MS", default_value_t)]
    pub webhook_delay_ms: u64,
    /// The share of events whose webhook waits for that of the next event, at most five seconds
    #[arg(long, value_name = "SHARE", default_value = "0")]
    pub webhook_reorder: Share,
    /// The share of charges that are declined
    #[arg(long, value_name = "SHARE", default_value = "0")]
    pub decline: Share,
    /// The share of charges and refunds that are made, and then not answered
    #[arg(long, value_name = "SHARE", default_value = "0")]
    pub charge_and_no_answer: Share,
    /// Be away: break every connection, do nothing, send no webhooks
    #[arg(long)]
    pub away: bool,
}
