//! Bounds repeated warnings: each callsite is logged a few times in an interval, and then one line
//! counts the suppressed ones.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, thread};
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata};
use tracing_subscriber::layer::{Context, Filter};

/// Lines of one callsite in each interval.
const SHOWN: u64 = 10;
const INTERVAL: Duration = Duration::from_secs(10);
const LONGEST_MESSAGE: usize = 200;

/// Counts warnings and errors by callsite, of which there is a fixed number.
#[derive(Clone, Default)]
pub(super) struct Repeats(Arc<Mutex<HashMap<Identifier, Place>>>);

struct Place {
    of: &'static Metadata<'static>,
    /// In this interval.
    seen: u64,
    /// Of the first suppressed line.
    message: Message,
}

#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}").chars().take(LONGEST_MESSAGE).collect();
        }
    }
}

impl Repeats {
    fn places(&self) -> MutexGuard<'_, HashMap<Identifier, Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs the counts of every interval, as long as the process lives.
    pub fn start(self) {
        let every_interval = move || {
            loop {
                thread::sleep(INTERVAL);
                self.sum_up();
            }
        };
        // Without the thread lines are still bounded, but not counted.
        let _ = thread::Builder::new().name("repeated warnings".to_owned()).spawn(every_interval);
    }

    fn count(&self, of: &'static Metadata<'static>) -> u64 {
        let mut places = self.places();
        let place = places.entry(of.callsite()).or_insert_with(|| Place {
            of,
            seen: 0,
            message: Message::default(),
        });
        place.seen += 1;
        place.seen
    }

    fn sum_up(&self) {
        let places = std::mem::take(&mut *self.places()); // let go before a line is written
        for place in places.into_values().filter(|place| place.seen > SHOWN) {
            let (of, times) = (place.of.target(), place.seen - SHOWN);
            let (line, seconds) = (place.of.line(), INTERVAL.as_secs());
            let message = place.message.0;
            tracing::warn!(of, line, "{message}: repeated {times} times in {seconds} s");
        }
    }
}

impl<S> Filter<S> for Repeats {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    /// Otherwise the combined filter would lose its level hint.
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::TRACE)
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let of = event.metadata();
        // The summary itself is bounded: one line for each callsite.
        if *of.level() > Level::WARN || of.target() == module_path!() {
            return true;
        }
        let seen = self.count(of);
        if seen == SHOWN + 1 {
            let mut message = Message::default();
            event.record(&mut message);
            if let Some(place) = self.places().get_mut(&of.callsite()) {
                place.message = message;
            }
        }
        seen <= SHOWN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{self, Write};
    use tracing_subscriber::{Layer, layer::SubscriberExt};

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("bytes").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_storm_of_one_line_is_summed_up_and_others_pass() {
        let (written, repeats) = (Written::default(), Repeats::default());
        let writer = written.clone();
        let lines =
            tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || writer.clone());
        let log = tracing_subscriber::registry().with(lines.with_filter(repeats.clone()));
        let storm = |times: u32| {
            for time in 0..times {
                tracing::warn!(time, "it storms");
                tracing::info!("told");
            }
        };
        tracing::subscriber::with_default(log, || {
            storm(1_000);
            tracing::error!("something else");
            repeats.sum_up();
            repeats.sum_up(); // nothing since
            storm(5);
        });
        let text = String::from_utf8(written.0.lock().expect("bytes").clone()).expect("text");
        let count = |words: &str| text.lines().filter(|line| line.contains(words)).count();
        assert_eq!(count("it storms time="), 15, "{text}");
        assert_eq!(count("it storms: repeated 990 times in 10 s"), 1, "{text}");
        assert_eq!((count("repeated"), count("something else")), (1, 1), "{text}");
        assert_eq!(count("told"), 1_005);
    }
}
