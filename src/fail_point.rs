//! Fail points: named places where a test makes the program fail.
//!
//! Without the feature `fault-injection` (tests only) they compile to nothing. With it,
//! `FAIL_POINTS` or [`FailPoints::set`] arms the points of one set of services:
//!
//! ```text
//! FAIL_POINTS="writer.committed=exit;admission.admitted=error*3;rebuild.redis_fenced=pause:500"
//!              point            action             times               milliseconds
//! ```
//!
//! | action | at the point |
//! |---|---|
//! | `error` | the step fails with [`Injected`], which callers treat as a lost server |
//! | `pause:MS` | the step waits so long or for [`FailPoints::resume`], and then goes on |
//! | `panic` | the task panics |
//! | `exit` | the process kills itself (SIGKILL): nothing is flushed, no destructor runs |
//!
//! An action happens once unless `*N` or `*always` says otherwise.

/// All points, in the order of an order's path. [`FailPoints::set`] refuses others.
#[rustfmt::skip]
pub const POINTS: &[&str] = &[
    // admission
    "admission.batched", "ids.leasing", "ids.leased", "admission.asking", "admission.admitted",
    "admission.answering",
    // the waiting room
    "room.joining", "room.advanced",
    // writing
    "writer.received", "writer.begun", "writer.rows_added", "writer.counted", "writer.committed",
    "writer.acknowledged", "writer.readmitting", "writer.readmitted", "writer.rejecting",
    "writer.rejected", "recovery.read",
    // transitions
    "pay.charged", "pay.marked", "cancel.marked", "expiry.due", "expiry.expired",
    // outbox
    "release.found", "release.returned", "release.settled",
    // operator
    "sale.stored", "sale.changed", "stock.claimed", "stock.taken",
    // eviction
    "eviction.deciding",
    // rebuild
    "rebuild.elected", "rebuild.redis_fenced", "rebuild.postgres_fenced", "rebuild.drained",
    "rebuild.recomputed", "rebuild.buyers_written", "rebuild.activated", "rebuild.approved",
];

pub use imp::FailPoints;

/// An injected failure. Without the feature this type has no value.
#[derive(Debug, thiserror::Error)]
#[cfg(feature = "fault-injection")]
#[error("injected at {0}")]
pub struct Injected(&'static str);
#[derive(Debug, thiserror::Error)]
#[cfg(not(feature = "fault-injection"))]
pub enum Injected {}

/// For steps whose only error is sqlx's.
impl From<Injected> for sqlx::Error {
    fn from(error: Injected) -> Self {
        Self::AnyDriverError(Box::new(error))
    }
}

/// An invalid text for [`FailPoints::set`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("fail point {0}")]
pub struct Unknown(pub String);

#[cfg(not(feature = "fault-injection"))]
mod imp {
    use super::{Injected, Unknown};

    /// No fail points. With a private field, so that both builds construct and clone it alike.
    #[derive(Debug, Clone, Default)]
    pub struct FailPoints(());

    impl FailPoints {
        /// Refuses all but an empty text.
        pub fn set(&self, text: &str) -> Result<(), Unknown> {
            if text.is_empty() {
                return Ok(());
            }
            Err(Unknown(format!(
                "{text}: this build has none (cargo build --features fault-injection)"
            )))
        }

        #[inline(always)]
        pub async fn at(&self, _point: &'static str) -> Result<(), Injected> {
            Ok(())
        }
    }
}

#[cfg(feature = "fault-injection")]
mod imp {
    use super::{Injected, POINTS, Unknown};
    use std::collections::HashMap;
    use std::sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    };
    use std::time::Duration;

    /// The points of one set of services. Clones share them.
    #[derive(Debug, Clone, Default)]
    pub struct FailPoints(Arc<State>);

    #[derive(Debug, Default)]
    struct State {
        /// Whether any point was ever armed: the only cost of unarmed points.
        armed: AtomicBool,
        points: Mutex<Points>,
        resumed: tokio::sync::Notify,
    }

    #[derive(Debug, Default)]
    struct Points {
        armed: HashMap<String, Armed>,
        fired: HashMap<&'static str, u64>,
    }

    #[derive(Debug, Clone, Copy)]
    struct Armed {
        action: Action,
        left: u64,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Action {
        Error,
        Pause(Duration),
        Panic,
        Exit,
    }

    fn parse(text: &str) -> Result<(String, Armed), Unknown> {
        let unknown = |what: &str| Unknown(format!("{text:?}: {what}"));
        let (point, rest) = text.split_once('=').ok_or_else(|| unknown("write point=action"))?;
        if !POINTS.contains(&point) {
            return Err(unknown("there is no such point"));
        }
        let (action, times) = rest.split_once('*').unwrap_or((rest, "1"));
        let left = match times {
            "always" => u64::MAX,
            times => times.parse().map_err(|_| unknown("write *N or *always behind the action"))?,
        };
        let (name, value) = action.split_once(':').unwrap_or((action, ""));
        let action = match (name, value) {
            ("error", "") => Action::Error,
            ("panic", "") => Action::Panic,
            ("exit", "") => Action::Exit,
            ("pause", ms) => Action::Pause(Duration::from_millis(
                ms.parse().map_err(|_| unknown("write pause:MILLISECONDS"))?,
            )),
            _ => return Err(unknown("error, pause:MS, panic or exit")),
        };
        Ok((point.to_owned(), Armed { action, left }))
    }

    impl FailPoints {
        /// Arms points, beside those that are armed already.
        pub fn set(&self, text: &str) -> Result<(), Unknown> {
            let parts = text.split(';').map(str::trim);
            let parts = parts.filter(|part| !part.is_empty());
            let parsed: Vec<_> = parts.map(parse).collect::<Result<_, _>>()?;
            self.points().armed.extend(parsed);
            self.0.armed.store(true, Relaxed);
            Ok(())
        }

        /// Disarms all points.
        pub fn clear(&self) {
            self.points().armed.clear();
        }

        /// Ends the pauses under way.
        pub fn resume(&self) {
            self.0.resumed.notify_waiters();
        }

        /// How often this point has fired.
        pub fn fired(&self, point: &str) -> u64 {
            self.points().fired.get(point).copied().unwrap_or(0)
        }

        /// Fails here, if the point is armed.
        pub async fn at(&self, point: &'static str) -> Result<(), Injected> {
            debug_assert!(POINTS.contains(&point), "{point} is not in the list");
            // Made before the point counts as fired: a test that sees it fire may resume it.
            let resumed = self.0.resumed.notified();
            match self.fire(point) {
                None => Ok(()),
                Some(Action::Error) => Err(Injected(point)),
                Some(Action::Pause(time)) => {
                    let _ = tokio::time::timeout(time, resumed).await;
                    Ok(())
                }
                Some(Action::Panic) => panic!("injected at {point}"),
                Some(Action::Exit) => {
                    let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
                    unreachable!("SIGKILL does not return")
                }
            }
        }

        fn fire(&self, point: &'static str) -> Option<Action> {
            if !self.0.armed.load(Relaxed) {
                return None;
            }
            let mut points = self.points();
            let armed = points.armed.get_mut(point)?;
            armed.left = armed.left.checked_sub(1)?;
            let action = armed.action;
            *points.fired.entry(point).or_default() += 1;
            drop(points);
            // Not a warning: tests count these lines, and repeated warnings are summed up.
            tracing::info!(point, ?action, "fail point");
            Some(action)
        }

        fn points(&self) -> std::sync::MutexGuard<'_, Points> {
            self.0.points.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use proptest::prelude::*;
        use std::{fs, path::Path};

        #[tokio::test]
        async fn a_point_fires_as_often_as_it_was_told() {
            let points = FailPoints::default();
            points.set("admission.admitted=error*2; writer.begun=pause:1").expect("well-formed");
            for expected in [true, true, false] {
                assert_eq!(points.at("admission.admitted").await.is_err(), expected);
            }
            assert!(points.at("writer.begun").await.is_ok());
            assert!(points.at("admission.asking").await.is_ok());
            assert_eq!((points.fired("admission.admitted"), points.fired("writer.begun")), (2, 1));
        }

        #[tokio::test]
        async fn a_pause_ends_when_it_is_resumed() {
            let points = FailPoints::default();
            points.set("writer.begun=pause:600000").expect("well-formed");
            let paused = tokio::spawn({
                let points = points.clone();
                async move { points.at("writer.begun").await }
            });
            while points.fired("writer.begun") == 0 {
                tokio::task::yield_now().await;
            }
            assert!(!paused.is_finished());
            points.resume();
            assert!(paused.await.expect("no panic").is_ok());
        }

        #[test]
        fn nonsense_is_refused() {
            let points = FailPoints::default();
            for text in [
                "admission.admitted",
                "nowhere=error",
                "admission.admitted=explode",
                "admission.admitted=on",
                "admission.admitted=pause:soon",
                "admission.admitted=error*often",
            ] {
                assert!(points.set(text).is_err(), "{text}");
            }
        }

        proptest! {
            #[test]
            fn any_text_arms_something_or_is_refused(
                point in prop::sample::select(POINTS),
                text in "[a-z.=*:;0-9 ]{0,40}|.{0,40}",
                action in "error|panic|exit|on|pause:[0-9]{0,30}|[a-z:]{0,9}",
                times in "|[*][0-9]{0,30}|[*]always|[*].{0,5}",
            ) {
                let points = FailPoints::default();
                let _ = points.set(&text);
                let _ = points.set(&format!("{point}={text}"));
                let _ = points.set(&format!("{point}={action}{times};{text}"));
            }

            #[test]
            fn what_is_well_formed_is_armed(point in prop::sample::select(POINTS),
                times in 0u64..5, ms: u64) {
                for action in ["error".to_owned(), "panic".to_owned(), format!("pause:{ms}")] {
                    let points = FailPoints::default();
                    prop_assert_eq!(points.set(&format!("{point}={action}*{times}")), Ok(()));
                    prop_assert_eq!(points.points().armed[point].left, times);
                }
            }
        }

        /// The lists above and the places in the code are the same.
        #[test]
        fn every_point_stands_in_the_code_and_in_the_list() {
            fn sources(folder: &Path, text: &mut String) {
                for entry in fs::read_dir(folder).expect("src").flatten() {
                    let path = entry.path();
                    if path.is_dir() {
                        sources(&path, text);
                    } else if path.extension().is_some_and(|ext| ext == "rs")
                        && path.file_name().is_some_and(|name| name != "fail_point.rs")
                    {
                        text.push_str(&fs::read_to_string(&path).expect("a source file"));
                    }
                }
            }
            let mut text = String::new();
            sources(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), &mut text);
            for point in POINTS {
                assert!(text.contains(&format!(".at(\"{point}\")")), "{point} is nowhere");
            }
        }
    }
}
