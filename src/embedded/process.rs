//! A child process that is kept alive until it is told to stop.
//!
//! ```text
//! Supervisor ──owns──▶ thread "embedded redis":  loop { prepare · spawn · wait · back off }
//!      │                   ▲
//!      └── State { pid, failures, stopping } ──┘   one mutex; a pid in it is alive or at worst a zombie, never reused
//! ```
//!
//! One plain thread per child, for two reasons: it has nothing to do but wait, and on Linux the child asks the kernel
//! for a signal when the *thread* that started it ends (`PR_SET_PDEATHSIG`), so that thread must live exactly as long.
//!
//! What happens on a crash:
//! - the child dies: it is started again on the same socket, after 100 ms, then twice that, up to 2 s, for ever;
//! - this program dies, even by `kill -9`: on Linux the kernel passes `Program::immediate` to the child, which shuts
//!   down by itself. Elsewhere the child stays. Either way the next start finds its pid in `Program::pid_file`, makes
//!   sure by its command line that the pid still is that server, and ends it or waits until it has ended.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::error::{Doing, EmbeddedError};
use super::place::RunAs;

const FIRST_BACK_OFF: Duration = Duration::from_millis(100);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(2);
/// A child that lived this long was healthy: the next failure is a new story.
const HEALTHY_AFTER: Duration = Duration::from_secs(10);
/// While starting, this many deaths in a row are an error and not bad luck.
const ATTEMPTS_TO_START: u32 = 5;

const POLL: Duration = Duration::from_millis(5);
/// Without any answer; and while the server says that it is recovering (a large log is replayed).
const READY_WITHIN: Duration = Duration::from_secs(30);
const RECOVERED_WITHIN: Duration = Duration::from_secs(600);

/// Each step of a stop, and of ending a leftover, has a bound; the last signal cannot be refused.
const GRACEFUL_WITHIN: Duration = Duration::from_secs(4);
const IMMEDIATE_WITHIN: Duration = Duration::from_secs(1);
const KILLED_WITHIN: Duration = Duration::from_secs(2);
const LEFTOVER_WITHIN: Duration = Duration::from_secs(10);

const ROTATE_LOG_ABOVE: u64 = 10 * 1024 * 1024;
const TAIL_LINES: usize = 8;

/// What to run, and how to end it.
pub(super) struct Program {
    pub name: &'static str,
    pub path: PathBuf,
    pub args: Vec<OsString>,
    pub directory: PathBuf,
    pub run_as: Option<RunAs>,
    /// Takes the child's stdout and stderr.
    pub log: PathBuf,
    /// Written by the supervisor.
    pub pid_file: PathBuf,
    /// Written by the server itself, should ours be lost.
    pub second_pid_file: Option<PathBuf>,
    /// Found together only in the command line of this very server.
    pub markers: Vec<String>,
    /// Finish what is in hand, save, exit.
    pub graceful: Signal,
    /// Exit now; the next start recovers.
    pub immediate: Signal,
    /// Runs before every start, also before every restart, after leftovers have ended.
    pub prepare: Box<dyn Fn() -> Result<(), EmbeddedError> + Send + Sync>,
}

/// What a probe of the server's socket found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readiness {
    NotYet,
    /// Up, but still replaying its log.
    Recovering,
    Ready,
}

pub(super) struct Supervisor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    program: Program,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Set and cleared under the lock, cleared together with reaping: safe to signal while it is held.
    pid: Option<Pid>,
    /// Has the server ever been ready? Before that, `wait_ready` reports deaths, and the log need not.
    was_ready: bool,
    /// Somebody has asked for its death.
    was_killed: bool,
    /// Failed starts and deaths in a row.
    failures: u32,
    last_failure: Option<Failure>,
    stopping: bool,
}

enum Failure {
    /// The child ran, and ended like this.
    Ended(ExitStatus),
    NotStarted(EmbeddedError),
}

impl Supervisor {
    pub fn start(program: Program) -> Result<Supervisor, EmbeddedError> {
        let name = program.name;
        let shared = Arc::new(Shared {
            program,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let thread = std::thread::Builder::new()
            .name(format!("embedded {name}"))
            .spawn({
                let shared = Arc::clone(&shared);
                move || shared.supervise_always()
            })
            .doing(|| format!("start the thread that watches {name}"))?;
        Ok(Supervisor {
            shared,
            thread: Some(thread),
        })
    }

    /// `None` between a death and the restart.
    pub fn pid(&self) -> Option<u32> {
        self.shared
            .state()
            .pid
            .and_then(|pid| u32::try_from(pid.as_raw()).ok())
    }

    /// Kills the child, which is then started again like after any other death, but without an error in the
    /// log: it was asked for.
    pub fn kill(&self) {
        self.shared.state().was_killed = true;
        self.shared.signal(Signal::SIGKILL);
    }

    /// Polls until the current child answers. Fails early when the child has never answered and keeps
    /// dying.
    pub async fn wait_ready(
        &self,
        probe: impl AsyncFn(Pid) -> Readiness,
    ) -> Result<(), EmbeddedError> {
        let program = &self.shared.program;
        let start = Instant::now();
        let mut silent_since = start;
        loop {
            let pid = {
                let mut state = self.shared.state();
                // Later deaths may last: the processes of a killed server take their time to end.
                if !state.was_ready && state.failures >= ATTEMPTS_TO_START {
                    match state.last_failure.take() {
                        Some(Failure::NotStarted(error)) => return Err(error),
                        Some(Failure::Ended(status)) => {
                            return Err(EmbeddedError::KeepsEnding {
                                server: program.name,
                                attempts: state.failures,
                                status,
                                log: program.log.clone(),
                                tail: log_tail(&program.log),
                            });
                        }
                        None => {}
                    }
                }
                state.pid
            };
            let readiness = match pid {
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
                return Err(EmbeddedError::NotReady {
                    server: program.name,
                    waited: start.elapsed(),
                    log: program.log.clone(),
                    tail: log_tail(&program.log),
                });
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Ends the child within about seven seconds, normally within milliseconds.
    pub async fn stop(&mut self) {
        let program = &self.shared.program;
        self.shared.begin_stop();
        let steps = [
            (program.graceful, GRACEFUL_WITHIN),
            (program.immediate, IMMEDIATE_WITHIN),
            (Signal::SIGKILL, KILLED_WITHIN),
        ];
        for (signal, patience) in steps {
            self.shared.signal(signal);
            let deadline = Instant::now() + patience;
            while !self.has_ended() && Instant::now() < deadline {
                tokio::time::sleep(POLL).await;
            }
            if self.has_ended() {
                return;
            }
            tracing::warn!(server = program.name, %signal, "does not end; trying harder");
        }
        tracing::error!(
            server = program.name,
            pid = self.pid(),
            "could not be ended"
        );
    }

    fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

/// Dropped without `stop`, as by a failing test: end the child as if this program had been killed. Blocks for as long
/// as that takes, usually some milliseconds, so that whoever drops us can then remove the files.
impl Drop for Supervisor {
    fn drop(&mut self) {
        self.shared.begin_stop();
        for signal in [self.shared.program.immediate, Signal::SIGKILL] {
            if self.has_ended() {
                break;
            }
            self.shared.signal(signal);
            let deadline = Instant::now() + KILLED_WITHIN;
            while !self.has_ended() && Instant::now() < deadline {
                std::thread::sleep(POLL);
            }
        }
        if self.has_ended()
            && let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(server = self.shared.program.name, "the supervisor panicked");
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
            tracing::warn!(server = self.program.name, %pid, %signal, %error, "could not be signalled");
        }
    }

    /// A panic must not leave the server without its supervisor.
    fn supervise_always(&self) {
        while catch_unwind(AssertUnwindSafe(|| self.supervise())).is_err() {
            std::thread::sleep(FIRST_BACK_OFF);
        }
    }

    fn supervise(&self) {
        let name = self.program.name;
        loop {
            let born = Instant::now();
            let outcome = self.run_once();
            let mut state = self.state();
            if state.stopping {
                return;
            }
            if born.elapsed() >= HEALTHY_AFTER {
                state.failures = 0;
            }
            let back_off = back_off(state.failures);
            state.failures = state.failures.saturating_add(1);
            let (failure, description) = match outcome {
                Ok(status) => (Failure::Ended(status), status.to_string()),
                Err(error) => {
                    let description = describe(&error);
                    (Failure::NotStarted(error), description)
                }
            };
            state.last_failure = Some(failure);
            if std::mem::take(&mut state.was_killed) {
                tracing::debug!(server = name, ?back_off, "was killed; starting it again");
            } else if state.was_ready {
                let tail = log_tail(&self.program.log);
                tracing::error!(
                    server = name,
                    reason = description,
                    ?back_off,
                    log = tail,
                    "ended by itself; starting it again"
                );
            } else {
                tracing::debug!(
                    server = name,
                    reason = description,
                    ?back_off,
                    "ended while starting; trying again"
                );
            }
            let (state, _) = self
                .changed
                .wait_timeout_while(state, back_off, |state| !state.stopping)
                .unwrap_or_else(PoisonError::into_inner);
            if state.stopping {
                return;
            }
        }
    }

    /// From start to end of one child.
    fn run_once(&self) -> Result<ExitStatus, EmbeddedError> {
        let program = &self.program;
        for pid_file in std::iter::once(&program.pid_file).chain(&program.second_pid_file) {
            end_leftover(program, pid_file)?;
        }
        (program.prepare)()?;
        let log = open_log(&program.log)?;
        let log_too = log
            .try_clone()
            .doing(|| format!("open {}", program.log.display()))?;
        let mut command = command(
            &program.path,
            &program.directory,
            program.run_as,
            program.immediate,
        );
        command
            .args(&program.args)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(log_too);

        let (mut child, pid) = {
            // The lock is held across the spawn: a stop either sees the pid, or is seen here.
            let mut state = self.state();
            if state.stopping {
                return Err(EmbeddedError::ShuttingDown);
            }
            let child = command
                .spawn()
                .doing(|| format!("start {}", program.path.display()))?;
            let pid = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
            state.pid = Some(pid);
            (child, pid)
        };
        tracing::debug!(server = program.name, %pid, "started");
        if let Err(error) = fs::write(&program.pid_file, format!("{pid}\n")) {
            // Only a later start after a kill -9 would miss it.
            tracing::warn!(server = program.name, file = %program.pid_file.display(), %error, "no pid file");
        }

        wait_unreaped(&mut child, pid);
        let mut state = self.state();
        let status = child.wait().doing(|| format!("wait for {}", program.name));
        state.pid = None;
        drop(state);
        fs::remove_file(&program.pid_file).ok();
        status
    }
}

/// A command in its own process group (the terminal's Ctrl-C is ours to handle: requests drain first), without this
/// program's `PG*` variables, as the given user with no further groups, and tied to the life of the calling thread.
pub(super) fn command(
    path: &Path,
    directory: &Path,
    run_as: Option<RunAs>,
    on_parent_death: Signal,
) -> Command {
    let mut command = Command::new(path);
    command
        .current_dir(directory)
        .process_group(0)
        .env("LC_ALL", "C");
    for (variable, _) in std::env::vars_os() {
        if variable.as_encoded_bytes().starts_with(b"PG") {
            command.env_remove(variable);
        }
    }
    if let Some(user) = run_as {
        // The standard library clears the supplementary groups when root gives a uid.
        command.uid(user.uid).gid(user.gid);
    }
    tie_to_this_thread(&mut command, on_parent_death);
    command
}

#[cfg(target_os = "linux")]
fn tie_to_this_thread(command: &mut Command, signal: Signal) {
    let parent = nix::unistd::getpid();
    let tie = move || {
        nix::sys::prctl::set_pdeathsig(signal)?;
        // The parent may have died before the line above: then no signal will come.
        if nix::unistd::getppid() != parent {
            return Err(io::Error::from(nix::errno::Errno::ECHILD));
        }
        Ok(())
    };
    // SAFETY: runs between fork and exec, where only async-signal-safe calls are allowed: two system calls are made
    // and nothing is allocated. It runs after the change of user, which would have cleared the setting.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(tie);
    }
}

#[cfg(not(target_os = "linux"))]
fn tie_to_this_thread(_: &mut Command, _: Signal) {}

/// Blocks until the child has ended but leaves it a zombie, so that its pid cannot be reused before `State` forgets it.
#[cfg(target_os = "linux")]
fn wait_unreaped(_: &mut Child, pid: Pid) {
    use nix::errno::Errno;
    use nix::sys::wait::{Id, WaitPidFlag, waitid};
    while let Err(Errno::EINTR) = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT)
    {
    }
}

/// Without `waitid`: reaps outside the lock, so that a signal sent in the very same microsecond may miss.
#[cfg(not(target_os = "linux"))]
fn wait_unreaped(child: &mut Child, _: Pid) {
    child.wait().ok();
}

fn back_off(failures: u32) -> Duration {
    FIRST_BACK_OFF
        .saturating_mul(2_u32.saturating_pow(failures))
        .min(LONGEST_BACK_OFF)
}

/// Ends the server that an earlier run left behind: the process in the first line of `pid_file`, if it is still that.
/// The caller holds the data lock, so no living flash-sale needs it.
pub(super) fn end_leftover(program: &Program, pid_file: &Path) -> Result<(), EmbeddedError> {
    let Some(pid) = read_pid(pid_file) else {
        return Ok(());
    };
    let is_ours = || {
        command_line(pid)
            .is_some_and(|line| program.markers.iter().all(|marker| line.contains(marker)))
    };
    if !is_ours() {
        return Ok(());
    }
    tracing::info!(server = program.name, %pid, "ending what an earlier run left behind");
    let steps = [
        // On Linux it is already on its way down and merely told again.
        (program.graceful, LEFTOVER_WITHIN),
        (program.immediate, KILLED_WITHIN),
        (Signal::SIGKILL, KILLED_WITHIN),
    ];
    for (signal, patience) in steps {
        kill(pid, signal).ok();
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if !is_ours() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    Err(EmbeddedError::LeftoverRemains {
        server: program.name,
        pid: pid.as_raw(),
    })
}

/// The pid in the first line of a file, as our own pid files and `postmaster.pid` have it.
pub(super) fn read_pid(file: &Path) -> Option<Pid> {
    let pid: i32 = fs::read_to_string(file)
        .ok()?
        .lines()
        .next()?
        .trim()
        .parse()
        .ok()?;
    (pid > 1).then(|| Pid::from_raw(pid))
}

/// The command line of a living process; `None` once it has ended, zombies included.
pub(super) fn command_line(pid: Pid) -> Option<String> {
    #[cfg(target_os = "linux")]
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    #[cfg(not(target_os = "linux"))]
    let line = Command::new("ps")
        .args(["-ww", "-o", "command=", "-p", &pid.to_string()])
        .output()
        .ok()?
        .stdout;
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    let line = line.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

/// Appends; a log that has grown too large makes room, and one older log is kept.
fn open_log(path: &Path) -> Result<File, EmbeddedError> {
    if fs::metadata(path).is_ok_and(|metadata| metadata.len() > ROTATE_LOG_ABOVE) {
        let mut old = path.as_os_str().to_owned();
        old.push(".1");
        fs::rename(path, &old).doing(|| format!("rotate {}", path.display()))?;
    }
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .doing(|| format!("open {}", path.display()))
}

/// The last lines of a log, for an error message; nothing if it cannot be read.
fn log_tail(path: &Path) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(4096)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    last_lines(&read().unwrap_or_default(), TAIL_LINES)
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// An error with its sources, on one line.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_back_off_doubles_up_to_its_bound() {
        let waits: Vec<u128> = [0, 1, 2, 3, 4, 5, 40]
            .map(|failures| back_off(failures).as_millis())
            .to_vec();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 2000, 2000]);
    }

    #[test]
    fn the_tail_is_the_last_lines() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
        assert_eq!(last_lines("a", 2), "a");
        assert_eq!(last_lines("", 2), "");
    }

    /// `sleep`, before whose nth start `prepare` is called with n, from 0.
    fn sleeper(
        name: &str,
        prepare: impl Fn(u32) -> Result<(), EmbeddedError> + Send + Sync + 'static,
    ) -> (Supervisor, PathBuf) {
        let folder = std::env::temp_dir().join(format!("fs-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let starts = std::sync::atomic::AtomicU32::new(0);
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
            prepare: Box::new(move || {
                prepare(starts.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
            }),
        };
        (Supervisor::start(program).expect("a thread"), folder)
    }

    #[tokio::test]
    async fn a_supervisor_that_panics_goes_on() {
        let (mut supervisor, folder) = sleeper("supervisor", |nth| {
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
        let (mut supervisor, folder) = sleeper("lingers", |nth| match nth {
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
        supervisor
            .wait_ready(another)
            .await
            .expect("it starts again");
        supervisor.stop().await;
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn a_living_process_has_a_command_line_and_a_dead_one_has_none() {
        assert!(command_line(nix::unistd::getpid()).is_some());
        let mut child = Command::new("true").spawn().expect("true starts");
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
        child.wait().expect("true ends");
        assert_eq!(command_line(pid), None);
    }
}
