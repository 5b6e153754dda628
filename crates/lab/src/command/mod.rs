//! The lab without a browser: `flash-sale lab` and `flash-sale lesson`.

pub mod lab;
pub mod lesson;

use super::{Lab, LabError, strategy::Language};
use clap::ValueEnum;
use std::{io, pin::Pin};

/// A lab of one command alone.
pub struct OpenLab {
    pub lab: Lab,
    /// What is to be closed after the lab.
    pub stores: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl OpenLab {
    async fn close(self) {
        self.lab.close().await;
        self.stores.await;
    }
}

/// Why a command could not be done.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("{0}")]
    Lab(#[from] LabError),
    #[error("cannot {action}: {source}")]
    Io { action: String, source: io::Error },
}

/// The language of the texts.
#[derive(Clone, Copy, ValueEnum)]
pub enum LanguageArg {
    En,
    Zh,
}

impl From<LanguageArg> for Language {
    fn from(language: LanguageArg) -> Self {
        match language {
            LanguageArg::En => Self::En,
            LanguageArg::Zh => Self::Zh,
        }
    }
}

/// NAME=VALUE
fn option(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("must be NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn in_json(value: &impl serde::Serialize) -> String {
    // Plain data: writing it cannot fail.
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}
