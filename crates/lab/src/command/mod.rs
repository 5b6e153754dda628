//! The lab without a browser: `flash-sale lab` and `flash-sale lesson`.

pub mod export;
pub mod grade;
pub mod lab;
pub mod lesson;
pub mod new;
pub mod recorder;

use crate::{service::Lab, strategy::Language, templates};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use std::{borrow::Cow, fmt::Display, pin::Pin};

/// Name and content of a file of the pages.
pub type PageFile = (Cow<'static, str>, Cow<'static, [u8]>);

/// A lab of one command alone.
pub struct OpenLab {
    pub lab: Lab,
    /// Closes the stores, after the lab.
    pub stores: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// The pages and all their files.
    pub pages: fn() -> Vec<PageFile>,
}

impl OpenLab {
    /// Works in the lab, and closes it. An interrupt ends the program once the arenas are removed.
    async fn with<T>(self, work: impl AsyncFnOnce(&Lab) -> T) -> T {
        let done = tokio::select! {
            done = work(&self.lab) => Some(done),
            _ = tokio::signal::ctrl_c() => None,
        };
        if done.is_none() {
            self.lab.delete_open().await;
        }
        self.lab.close().await;
        self.stores.await;
        done.unwrap_or_else(|| std::process::exit(130))
    }
}

/// Why a command could not be done.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CommandError(String);

fn refused(why: impl Display) -> CommandError {
    CommandError(why.to_string())
}

/// How to say it.
#[derive(Args)]
pub struct Output {
    /// The language of the texts
    #[arg(long, value_name = "en|zh", default_value = "en", value_parser = language)]
    lang: Language,
    /// Print JSON, as the API answers
    #[arg(long)]
    json: bool,
}

/// How to say it, and where the stores are.
#[derive(Args)]
pub struct Asked<S: Args> {
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    store: Box<S>,
}

impl Output {
    /// In JSON, or laid out by this template.
    fn shown(&self, body: &impl serde::Serialize, template: &str) -> Result<String, CommandError> {
        if self.json {
            return Ok(in_json(body));
        }
        let words = templates::render(template, self.lang, body).map_err(refused)?;
        Ok(format!("{}\n", words.trim_end()))
    }
}

fn language(text: &str) -> Result<Language, String> {
    serde_json::from_value(text.into()).map_err(|_| "must be en or zh".to_owned())
}

/// NAME=VALUE
fn option(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("must be NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// A progress bar, on a terminal only.
fn progress(length: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length as u64).with_style(style)
}

fn in_json(value: &impl serde::Serialize) -> String {
    // Plain data: writing it cannot fail.
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_languages_are_read_or_refused() {
        assert_eq!(option("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(option("a").is_err());
        assert_eq!(language("zh"), Ok(Language::Zh));
        assert!(language("fr").is_err());
    }
}
