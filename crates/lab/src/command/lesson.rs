//! The lock theatre without a browser.

use super::{CommandError, OpenLab, Output, in_json, option};
use crate::{
    lessons::{
        self, LESSONS,
        lesson::Lesson,
        terminal::{self as drawing, Style},
    },
    strategy::Language,
    terminal::{complain, print},
};
use clap::{Args, Subcommand};
use serde_json::{Map, Value};
use std::{
    io::{self, IsTerminal},
    process::ExitCode,
};

#[derive(Subcommand)]
pub enum LessonCommand<S: Args> {
    /// Every lesson: the failure and the knobs
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Play one, for real, and print its timeline
    Play {
        #[arg(value_name = "ID", value_parser = lesson())]
        lesson: &'static Lesson,
        /// A knob of the lesson, like lease_ms=500; may be given several times
        #[arg(long, value_name = "NAME=VALUE", value_parser = option)]
        option: Vec<(String, String)>,
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        store: Box<S>,
    },
}

fn lesson() -> impl clap::builder::TypedValueParser<Value = &'static Lesson> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    PossibleValuesParser::new(LESSONS.iter().map(|lesson| lesson.id))
        .try_map(|id| lessons::find(&id).ok_or("no such lesson"))
}

/// `open` makes the lab, once it is known that one is needed.
pub async fn run<S: Args, E: From<CommandError>>(
    command: LessonCommand<S>,
    open: impl AsyncFnOnce(&S) -> Result<OpenLab, E>,
) -> Result<ExitCode, E> {
    match command {
        LessonCommand::List { output } => {
            let lessons = lessons::list(None, output.language());
            if output.json {
                print(&in_json(&lessons));
            } else {
                print(&drawing::list(&lessons, style(output.language())));
            }
            Ok(ExitCode::SUCCESS)
        }
        LessonCommand::Play { lesson, option, output, store } => {
            play(lesson, option, &output, async || open(&store).await).await
        }
    }
}

/// Exits 0 when it was played, whatever it showed; 2 if it could not be.
async fn play<E: From<CommandError>>(
    lesson: &'static Lesson,
    options: Vec<(String, String)>,
    output: &Output,
    open: impl AsyncFnOnce() -> Result<OpenLab, E>,
) -> Result<ExitCode, E> {
    let options: Map<String, Value> =
        options.into_iter().map(|(name, value)| (name, Value::from(value))).collect();
    // A slip of the hand is told before any server is started.
    if let Err(refusal) = lesson.read_options(&options) {
        complain!("flash-sale: {refusal}");
        return Ok(ExitCode::from(2));
    }
    let open = open().await?;
    let played = open.lab.theatre.play(lesson.id, &options, None).await;
    open.close().await;
    match played {
        Ok(timeline) if output.json => print(&in_json(&timeline.body(output.language()))),
        Ok(timeline) => print(&drawing::play(&timeline, style(output.language()))),
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
