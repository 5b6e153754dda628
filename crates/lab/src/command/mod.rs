//! The lab without a browser: `flash-sale lab` and `flash-sale lesson`.

pub mod grade;
pub mod lab;
pub mod lesson;
pub mod new;

use super::{Lab, LabError, strategy::Language, terminal::width_of};
use clap::Args;
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

impl Output {
    fn language(&self) -> Language {
        self.lang
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

fn in_json(value: &impl serde::Serialize) -> String {
    // Plain data: writing it cannot fail.
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

/// Columns as wide as what is in them, these to the left, the others to the right. A row may end
/// early, with a cell of any length.
pub fn table<R: AsRef<[String]>>(rows: &[R], left: &[usize]) -> String {
    let columns = rows.first().map_or(0, |row| row.as_ref().len());
    let full = || rows.iter().map(AsRef::as_ref).filter(|row| row.len() == columns);
    let width = |at: usize| full().map(|row| width_of(&row[at])).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.as_ref().iter().enumerate().map(|(at, cell)| {
            let room = widths.get(at).copied().unwrap_or(0);
            let gap = " ".repeat(room.saturating_sub(width_of(cell)));
            if left.contains(&at) { format!("{cell}{gap}") } else { format!("{gap}{cell}") }
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
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

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let rows =
            ["id,n", "long one,7", "x"].map(|row| row.split(',').map(str::to_owned).collect());
        let rows: [Vec<String>; 3] = rows;
        assert_eq!(table(&rows, &[0]), "id        n\nlong one  7\nx\n");
    }
}
