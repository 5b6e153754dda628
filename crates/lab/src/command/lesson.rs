//! The lock theatre without a browser.

use super::{Asked, CommandError, OpenLab, Output, in_json, option, refused};
use crate::lessons::terminal::{self as drawing, Style};
use crate::lessons::{self, LESSONS, lesson::Lesson};
use crate::{Lab, strategy::Language, terminal::print};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use serde_json::{Map, Value};
use std::io::{self, IsTerminal};
use std::process::ExitCode;

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
        asked: Asked<S>,
    },
}

fn lesson() -> impl TypedValueParser<Value = &'static Lesson> {
    PossibleValuesParser::new(LESSONS.iter().map(|lesson| lesson.id))
        .try_map(|id| lessons::find(&id).ok_or("no such lesson"))
}

/// `open` makes the lab, once it is known that one is needed. Exits 0 when a lesson was played,
/// whatever it showed.
pub async fn run<S: Args, E: From<CommandError>>(
    command: LessonCommand<S>,
    open: impl AsyncFnOnce(&S) -> Result<OpenLab, E>,
) -> Result<ExitCode, E> {
    match command {
        LessonCommand::List { output } => {
            let lessons = lessons::list(None, output.lang);
            let words = || drawing::list(&lessons, style(output.lang));
            print(&if output.json { in_json(&lessons) } else { words().map_err(refused)? });
        }
        LessonCommand::Play { lesson, option, asked: Asked { output, store } } => {
            let options = option.into_iter().map(|(name, value)| (name, Value::from(value)));
            let options: Map<String, Value> = options.collect();
            // A slip of the hand is told before any server is started.
            lesson.read_options(&options).map_err(refused)?;
            let play = async |lab: &Lab| lab.theatre.play(lesson.id, &options, None).await;
            let timeline = open(&store).await?.with(play).await.map_err(refused)?;
            let (json, language) = (output.json, output.lang);
            let words = || drawing::play(&timeline, style(language)).map_err(refused);
            print(&if json { in_json(&timeline.body(language)) } else { words()? });
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
