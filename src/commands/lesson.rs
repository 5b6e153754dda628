//! The lock theatre without a browser.

use super::{
    lab::{Tongue, option, private_lab},
    start_logs,
};
use crate::{
    app::AppError,
    config::StoreSettings,
    lab::{
        lessons::{
            self, LESSONS, Lesson,
            terminal::{self, Style},
        },
        strategy::Language,
    },
};
use clap::Subcommand;
use serde_json::{Map, Value};
use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

#[derive(Subcommand)]
pub enum LessonCommand {
    /// Every lesson: the failure and the knobs
    List {
        /// The language of the texts
        #[arg(long, value_enum, default_value_t = Tongue::En)]
        lang: Tongue,
        /// Print JSON, as GET /api/v1/lab/lessons answers
        #[arg(long)]
        json: bool,
    },
    /// Play one, for real, and print its timeline
    Play {
        #[arg(value_name = "ID", value_parser = lesson())]
        lesson: &'static Lesson,
        /// A knob of the lesson, like lease_ms=500; may be given several times
        #[arg(long, value_name = "NAME=VALUE", value_parser = option)]
        option: Vec<(String, String)>,
        /// The language of the texts
        #[arg(long, value_enum, default_value_t = Tongue::En)]
        lang: Tongue,
        /// Print JSON, as POST /api/v1/lab/lessons/{id}/play answers
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        store: Box<StoreSettings>,
    },
}

fn lesson() -> impl clap::builder::TypedValueParser<Value = &'static Lesson> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    PossibleValuesParser::new(LESSONS.iter().map(|lesson| lesson.id))
        .try_map(|id| lessons::find(&id).ok_or("no such lesson"))
}

pub async fn run(command: LessonCommand) -> Result<ExitCode, AppError> {
    match command {
        LessonCommand::List { lang, json } => {
            let language = Language::from(lang);
            if json {
                print(&in_json(&lessons::list(None, language).await));
            } else {
                print(&terminal::list(LESSONS, style(language)));
            }
            Ok(ExitCode::SUCCESS)
        }
        LessonCommand::Play {
            lesson,
            option,
            lang,
            json,
            store,
        } => play(lesson, option, lang.into(), json, *store).await,
    }
}

/// Exits 0 when it was played, whatever it showed; 2 if it could not be.
async fn play(
    lesson: &'static Lesson,
    options: Vec<(String, String)>,
    language: Language,
    json: bool,
    store: StoreSettings,
) -> Result<ExitCode, AppError> {
    start_logs(&store);
    let options: Map<String, Value> = options
        .into_iter()
        .map(|(name, value)| (name, Value::from(value)))
        .collect();
    // A slip of the hand is told before any server is started.
    if let Err(refusal) = lessons::options::Settings::read(lesson.options, &options) {
        complain!("flash-sale: {refusal}");
        return Ok(ExitCode::from(2));
    }
    let (stores, lab) = private_lab(&store).await?;
    let played = lab.theatre.play(lesson.id, &options, None).await;
    lab.close().await;
    stores.close().await;
    match played {
        Ok(timeline) if json => print(&in_json(&timeline.body(language))),
        Ok(timeline) => print(&terminal::play(&timeline, style(language))),
        Err(error) => {
            complain!("flash-sale: {error}");
            return Ok(ExitCode::from(2));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn style(language: Language) -> Style {
    Style {
        language,
        colours: io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
    }
}

pub(super) fn in_json(value: &impl serde::Serialize) -> String {
    // Plain data: writing it cannot fail.
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

/// A reader that has had enough (`| head`) is not an error.
pub(super) fn print(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
