//! Which lines ran: what the program traces on this thread, and whether that covers a mark.

use super::prelude::*;
use lab::marks::Excerpt;
use tracing::{Event, Subscriber, field, subscriber::DefaultGuard};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// File and line; a script has its name and no line.
pub type Lines<'a> = HashSet<(&'a str, u32)>;

/// The lines that were traced, by act of the play that ran: "" without one; and codes of problems.
#[derive(Clone, Default)]
pub struct Trace(Arc<Mutex<(Noted, HashMap<String, Lines<'static>>)>>);

impl Trace {
    /// Until the guard is dropped.
    pub fn here() -> (Self, DefaultGuard) {
        let trace = Self::default();
        let subscriber = || tracing_subscriber::registry().with(trace.clone());
        // With just one, tracing may ask a thread of another test: there are two.
        std::mem::forget(tracing::Dispatch::new(subscriber()));
        let guard = tracing::subscriber::set_default(subscriber());
        (trace, guard)
    }

    pub fn clear(&self) {
        *locked(&self.0) = Default::default();
    }

    pub fn lines(&self, of_act: &str) -> Lines<'static> {
        locked(&self.0).1.get(of_act).cloned().unwrap_or_default()
    }

    pub fn codes(&self) -> Vec<String> {
        locked(&self.0).0.codes.clone()
    }
}

#[derive(Default)]
struct Noted {
    act: String,
    codes: Vec<String>,
}

impl field::Visit for Noted {
    fn record_str(&mut self, field: &field::Field, value: &str) {
        match field.name() {
            "act" => value.clone_into(&mut self.act),
            "code" => self.codes.push(value.to_owned()),
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &field::Field, _: &dyn std::fmt::Debug) {}
}

impl<S: Subscriber> Layer<S> for Trace {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let (noted, traced) = &mut *locked(&self.0);
        event.record(noted);
        if let (Some(file), Some(line)) = (event.metadata().file(), event.metadata().line()) {
            traced.entry(noted.act.clone()).or_default().insert((file, line));
        }
    }
}

/// Whether the marked statement was reached: a line from it to the end of its block ran, or a call
/// right above it that goes on. Of a script it is only known that it ran.
pub fn ran_in(mark: &Excerpt, lines: &Lines) -> bool {
    if let Some((_, script)) = mark.file.rsplit_once("/scripts/") {
        return lines.contains(&(script, 0));
    }
    let shown: Vec<&str> = mark.code.lines().collect();
    let (above, block) = shown.split_at(mark.marked_line + 1 - mark.first_line);
    let indent = |line: &str| line.len() - line.trim_start().len();
    // The block of a match arm is its own.
    let depth = indent(block[0]) + usize::from(block[0].contains("=>"));
    let is_inside = |line: &&&str| line.is_empty() || indent(line) >= depth;
    let rest = block[1..].iter().take_while(is_inside).count();
    let is_mark = |line: &&&str| line.trim_start().starts_with("//= ");
    let marks = above.iter().rev().take_while(is_mark).count();
    let go_on = ["trace!(", ".note(", ".interleaving_point("];
    let goes_on = |line: &&&str| go_on.iter().any(|call| line.contains(call));
    let trace = above.iter().rev().nth(marks).filter(goes_on);
    let mut reached: Vec<usize> = (mark.marked_line + 1..=mark.marked_line + 1 + rest).collect();
    reached.extend(trace.map(|_| mark.marked_line - marks));
    reached.iter().any(|line| lines.contains(&(mark.file, *line as u32)))
}
