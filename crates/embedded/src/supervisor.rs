//! A child process that is kept alive until it is told to stop.
//!
//! ```text
//! Supervisor ──owns──▶ thread "embedded redis":  loop { prepare · spawn · wait · back off }
//!      │                   ▲
//!      └── State { pid, failures, stopping } ──┘   one mutex; a pid in it is never reused
//! ```
//!
//! One plain thread per child, which only waits. On Linux the child gets a signal from the kernel
//! when the *thread* that started it ends (`PR_SET_PDEATHSIG`), so that thread must live as long.
//!
//! Crashes:
//! - the child dies: it is restarted on the same socket, after 100 ms, then twice that, up to 2 s;
//! - this program dies, even by `kill -9`: on Linux the kernel sends `Program::immediate` to the
//!   child, elsewhere the child stays. The next start finds its pid in `Program::pid_file`, checks
//!   by its command line that it is this server, and ends it or waits for its end.

use crate::{
    error::{Doing, EmbeddedError, Result},
    process::{KILLED_WITHIN, Program, poll_until, wait_unreaped},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    error::Error,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitStatus,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

const FIRST_BACK_OFF: Duration = Duration::from_millis(100);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(2);
/// A child that lived this long was healthy: failures are counted anew.
const HEALTHY_AFTER: Duration = Duration::from_secs(10);
/// This many deaths in a row while starting are an error.
const ATTEMPTS_TO_START: u32 = 5;

const POLL: Duration = Duration::from_millis(5);
/// Without any answer (a busy disk delays the first); and during a recovery (a large log is
/// replayed).
const READY_WITHIN: Duration = Duration::from_secs(90);
const RECOVERED_WITHIN: Duration = Duration::from_secs(600);

/// The time for a graceful stop; the last signal is SIGKILL.
const GRACEFUL_WITHIN: Duration = Duration::from_secs(4);

/// What a probe of the server's socket found.
pub enum Readiness {
    NotYet,
    /// Up, but still replaying its log.
    Recovering,
    Ready,
}

pub struct Supervisor {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

struct Shared {
    program: Program,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Set under the lock, cleared together with reaping: safe to signal while the lock is held.
    pid: Option<Pid>,
    /// Until the server was ready once, `wait_ready` reports deaths instead of the log.
    was_ready: bool,
    /// Killed on purpose.
    was_killed: bool,
    /// Failed starts and deaths in a row.
    failures: u32,
    /// How the last child ended, or why it could not be started.
    last_end: Option<Result<ExitStatus>>,
    stopping: bool,
}

impl Supervisor {
    pub fn start(program: Program) -> Result<Supervisor> {
        let name = program.name;
        let shared = Arc::new(Shared { program, state: Mutex::default(), changed: Condvar::new() });
        let supervising = shared.clone();
        let thread = thread::Builder::new()
            .name(format!("embedded {name}"))
            .spawn(move || supervising.supervise_always())
            .doing("start the thread that watches", name)?;
        Ok(Supervisor { shared, thread })
    }

    /// `None` between a death and the restart.
    pub fn pid(&self) -> Option<u32> {
        let pid = self.shared.state().pid?;
        u32::try_from(pid.as_raw()).ok()
    }

    /// Kills the child, which is restarted; without an error in the log.
    pub fn kill(&self) {
        self.shared.state().was_killed = true;
        self.shared.signal(Signal::SIGKILL);
    }

    /// Polls until the current child answers. Fails early when the child keeps dying.
    pub async fn wait_ready<F: Future<Output = Readiness>>(
        &self,
        probe: impl Fn(Pid) -> F,
    ) -> Result<()> {
        let start = Instant::now();
        let mut silent_since = start;
        loop {
            let readiness = match self.shared.child()? {
                Some(pid) => probe(pid).await,
                None => Readiness::NotYet,
            };
            match readiness {
                Readiness::Ready => {
                    let mut state = self.shared.state();
                    state.was_ready = true;
                    state.failures = 0;
                    return Ok(());
                }
                Readiness::Recovering => silent_since = Instant::now(),
                Readiness::NotYet => {}
            }
            if silent_since.elapsed() > READY_WITHIN || start.elapsed() > RECOVERED_WITHIN {
                let program = &self.shared.program;
                return Err(EmbeddedError::NotReady {
                    server: program.name,
                    waited: start.elapsed(),
                    log: program.log.clone(),
                    tail: program.log_tail(),
                });
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Ends the child, normally within milliseconds, at most within about eight seconds: dropping
    /// the supervisor sends the harder signals.
    pub async fn stop(self) {
        let program = &self.shared.program;
        self.shared.begin_stop();
        self.shared.signal(program.graceful);
        let deadline = Instant::now() + GRACEFUL_WITHIN;
        while !self.thread.is_finished() && Instant::now() < deadline {
            tokio::time::sleep(POLL).await;
        }
        if !self.thread.is_finished() {
            tracing::warn!(server = program.name, "does not end; trying harder");
        }
    }
}

/// Dropped without `stop`, as by a failing test: ends the child, and blocks until then, so that the
/// owner can remove its files.
impl Drop for Supervisor {
    fn drop(&mut self) {
        let program = &self.shared.program;
        self.shared.begin_stop();
        for signal in [program.immediate, Signal::SIGKILL] {
            if self.thread.is_finished() {
                return;
            }
            self.shared.signal(signal);
            poll_until(KILLED_WITHIN, POLL, || self.thread.is_finished());
        }
        if !self.thread.is_finished() {
            tracing::error!(server = program.name, pid = self.pid(), "could not be ended");
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin_stop(&self) {
        self.state().stopping = true;
        self.changed.notify_all();
    }

    fn signal(&self, signal: Signal) {
        let state = self.state();
        if let Some(pid) = state.pid
            && let Err(error) = kill(pid, signal)
        {
            tracing::warn!(server = self.program.name, %pid, %signal, %error,
                "could not be signalled");
        }
    }

    /// The current child; an error if it died too often while starting. Later deaths are no error:
    /// processes of a killed server may need time to end.
    fn child(&self) -> Result<Option<Pid>> {
        let mut state = self.state();
        if !state.was_ready
            && state.failures >= ATTEMPTS_TO_START
            && let Some(end) = state.last_end.take()
        {
            return Err(EmbeddedError::KeepsEnding {
                server: self.program.name,
                status: end?,
                log: self.program.log.clone(),
                tail: self.program.log_tail(),
            });
        }
        Ok(state.pid)
    }

    /// A panic must not leave the server without its supervisor.
    fn supervise_always(&self) {
        while catch_unwind(AssertUnwindSafe(|| self.supervise())).is_err() {
            thread::sleep(FIRST_BACK_OFF);
        }
    }

    fn supervise(&self) {
        loop {
            let born = Instant::now();
            let end = self.run_once();
            let mut state = self.state();
            if state.stopping {
                return;
            }
            if born.elapsed() >= HEALTHY_AFTER {
                state.failures = 0;
            }
            let back_off = back_off(state.failures);
            state.failures = state.failures.saturating_add(1);
            let server = self.program.name;
            let reason = end.as_ref().map_or_else(with_source, ToString::to_string);
            if std::mem::take(&mut state.was_killed) || !state.was_ready {
                tracing::debug!(server, reason, ?back_off, "ended; starting it again");
            } else {
                let log = self.program.log_tail();
                tracing::error!(server, reason, ?back_off, log, "ended; starting it again");
            }
            state.last_end = Some(end);
            let goes_on = |state: &mut State| !state.stopping;
            drop(self.changed.wait_timeout_while(state, back_off, goes_on));
        }
    }

    /// From start to end of one child.
    fn run_once(&self) -> Result<ExitStatus> {
        let program = &self.program;
        program.end_leftovers()?;
        (program.before_start)()?;
        let mut command = program.command()?;
        let (mut child, pid) = {
            // The lock is held during the spawn: a stop sees the pid, or is seen here.
            let mut state = self.state();
            if state.stopping {
                return Err(EmbeddedError::ShuttingDown);
            }
            let child = command.spawn().doing("start", &program.path)?;
            let pid = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
            state.pid = Some(pid);
            (child, pid)
        };
        tracing::debug!(server = program.name, %pid, "started");
        if let Err(error) = fs::write(&program.pid_file, format!("{pid}\n")) {
            // Needed only by a start after a kill -9.
            tracing::warn!(server = program.name, file = %program.pid_file.display(), %error,
                "no pid file");
        }

        wait_unreaped(&mut child, pid);
        let mut state = self.state();
        let status = child.wait().doing("wait for", program.name);
        state.pid = None;
        drop(state);
        fs::remove_file(&program.pid_file).ok();
        status
    }
}

fn back_off(failures: u32) -> Duration {
    FIRST_BACK_OFF.saturating_mul(2_u32.saturating_pow(failures)).min(LONGEST_BACK_OFF)
}

/// An error with its source, on one line.
fn with_source(error: &EmbeddedError) -> String {
    let source = error.source().map(|source| format!(": {source}"));
    format!("{error}{}", source.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        ffi::OsString,
        path::PathBuf,
        sync::atomic::{AtomicU32, Ordering::Relaxed},
    };

    #[test]
    fn the_back_off_doubles_up_to_its_bound() {
        let waits: Vec<u128> =
            [0, 1, 2, 3, 4, 5, 40].map(|failures| back_off(failures).as_millis()).to_vec();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 2000, 2000]);
    }

    /// `sleep`, before whose nth start `before_start` is called with n, from 0.
    fn sleeper(
        name: &str,
        before_start: impl Fn(u32) -> Result<()> + Send + Sync + 'static,
    ) -> (Supervisor, PathBuf) {
        let folder = std::env::temp_dir().join(format!("fs-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let starts = AtomicU32::new(0);
        let program = Program {
            name: "sleep",
            path: PathBuf::from("sleep"),
            args: vec![OsString::from("600")],
            directory: folder.clone(),
            run_as: None,
            log: folder.join("log"),
            pid_file: folder.join("pid"),
            second_pid_file: None,
            markers: vec![String::from("no process has this")],
            graceful: Signal::SIGTERM,
            immediate: Signal::SIGTERM,
            before_start: Box::new(move || before_start(starts.fetch_add(1, Relaxed))),
        };
        (Supervisor::start(program).expect("a thread"), folder)
    }

    #[tokio::test]
    async fn a_supervisor_that_panics_goes_on() {
        let (supervisor, folder) = sleeper("supervisor", |nth| {
            assert_ne!(nth, 1, "a bug of the supervisor");
            Ok(())
        });
        let other_than = async |before: Option<u32>| {
            let deadline = Instant::now() + Duration::from_secs(20);
            while supervisor.pid().is_none() || supervisor.pid() == before {
                assert!(Instant::now() < deadline, "not started");
                tokio::time::sleep(POLL).await;
            }
            supervisor.pid()
        };
        let first = other_than(None).await;
        supervisor.kill();
        other_than(first).await;
        supervisor.stop().await;
        fs::remove_dir_all(&folder).expect("removed");
    }

    /// As Postgres, while the processes of a killed one still hold its shared memory.
    #[tokio::test]
    async fn a_server_that_was_ready_may_fail_to_start_for_a_while() {
        let (supervisor, folder) = sleeper("lingers", |nth| match nth {
            1..ATTEMPTS_TO_START => Err(EmbeddedError::ShuttingDown),
            _ => Ok(()),
        });
        let ready = async |_| Readiness::Ready;
        supervisor.wait_ready(ready).await.expect("it starts");
        let first = supervisor.pid();
        supervisor.kill();
        let another = async |pid: Pid| match u32::try_from(pid.as_raw()).ok() == first {
            true => Readiness::NotYet,
            false => Readiness::Ready,
        };
        let again = supervisor.wait_ready(another).await;
        again.expect("it starts again");
        supervisor.stop().await;
        fs::remove_dir_all(&folder).expect("removed");
    }
}
