//! Programs, leftovers of an earlier run, and process information.

use crate::{
    error::{Doing, EmbeddedError, Result},
    place::{Home, RunAs},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    iter,
    os::unix::{fs::OpenOptionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The time limit after SIGKILL, and of a shutdown without saving.
pub const KILLED_WITHIN: Duration = Duration::from_secs(2);
/// The time for a leftover to save its data.
const LEFTOVER_WITHIN: Duration = Duration::from_secs(10);

const ROTATE_LOG_ABOVE: u64 = 10 * 1024 * 1024;
const TAIL_LINES: usize = 8;

/// A program to run, and how to end it.
pub struct Program {
    pub name: &'static str,
    pub path: PathBuf,
    pub args: Vec<OsString>,
    pub directory: PathBuf,
    pub run_as: Option<RunAs>,
    /// For the child's stdout and stderr.
    pub log: PathBuf,
    /// Written by the supervisor.
    pub pid_file: PathBuf,
    /// Written by the server itself, in case ours is lost.
    pub second_pid_file: Option<PathBuf>,
    /// Together they identify the command line of this server.
    pub markers: Vec<String>,
    /// Finish work, save, exit.
    pub graceful: Signal,
    /// Exit now; the next start recovers.
    pub immediate: Signal,
    /// Runs before every start and restart, after leftovers have ended.
    pub before_start: Box<dyn Fn() -> Result<()> + Send + Sync>,
}

impl Program {
    /// A server that works in its data folder and saves on SIGTERM.
    pub fn new(name: &'static str, path: PathBuf, home: &Home) -> Program {
        Program {
            name,
            path,
            args: Vec::new(),
            directory: home.data.clone(),
            run_as: home.run_as,
            log: home.file("log"),
            pid_file: home.file("pid"),
            second_pid_file: None,
            markers: Vec::new(),
            graceful: Signal::SIGTERM,
            immediate: Signal::SIGTERM,
            before_start: Box::new(|| Ok(())),
        }
    }

    pub fn command(&self) -> Result<Command> {
        let log = self.open_log()?;
        let log_too = log.try_clone().doing("open", &self.log)?;
        let mut command = command(&self.path, &self.directory, self.run_as, self.immediate);
        command.args(&self.args).stdout(log).stderr(log_too);
        Ok(command)
    }

    /// Ends a server of an earlier run, if a pid file names one that still runs. The caller holds
    /// the data lock, so no other program needs it.
    pub fn end_leftovers(&self) -> Result<()> {
        let pid_files = iter::once(&self.pid_file).chain(&self.second_pid_file);
        for pid in pid_files.filter_map(|file| read_pid(file)) {
            let is_ours = |line: String| self.markers.iter().all(|marker| line.contains(marker));
            let has_ended = || !command_line(pid).is_some_and(is_ours);
            if has_ended() {
                continue;
            }
            tracing::info!(server = self.name, %pid, "ending what an earlier run left behind");
            let steps = [
                // On Linux it is ending already.
                (self.graceful, LEFTOVER_WITHIN),
                (self.immediate, KILLED_WITHIN),
                (Signal::SIGKILL, KILLED_WITHIN),
            ];
            let ends = |(signal, grace)| {
                kill(pid, signal).ok();
                poll_until(grace, Duration::from_millis(10), has_ended)
            };
            if !steps.into_iter().any(ends) {
                return Err(EmbeddedError::LeftoverRemains {
                    server: self.name,
                    pid: pid.as_raw(),
                });
            }
        }
        Ok(())
    }

    /// Appends; a large log is renamed, and one older log is kept.
    fn open_log(&self) -> Result<File> {
        let path = &self.log;
        if fs::metadata(path).is_ok_and(|metadata| metadata.len() > ROTATE_LOG_ABOVE) {
            let mut old = path.as_os_str().to_owned();
            old.push(".1");
            fs::rename(path, &old).doing("rotate", path)?;
        }
        let log = File::options().create(true).append(true).mode(0o600).open(path);
        log.doing("open", path)
    }

    /// The last lines of the log, for an error message; nothing if it cannot be read.
    pub fn log_tail(&self) -> String {
        let read = || -> io::Result<String> {
            let mut file = File::open(&self.log)?;
            // A shorter log is read from its beginning.
            file.seek(SeekFrom::End(-4096)).ok();
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        last_lines(&read().unwrap_or_default(), TAIL_LINES)
    }
}

/// A command in its own process group (Ctrl-C is handled by this program), without input, `PG*`
/// variables and further groups, tied to the life of the calling thread.
pub fn command(path: &Path, dir: &Path, run_as: Option<RunAs>, at_our_death: Signal) -> Command {
    let mut command = Command::new(path);
    command.current_dir(dir).process_group(0).stdin(Stdio::null()).env("LC_ALL", "C");
    for (variable, _) in std::env::vars_os() {
        if variable.as_encoded_bytes().starts_with(b"PG") {
            command.env_remove(variable);
        }
    }
    if let Some(user) = run_as {
        // The standard library clears supplementary groups when root sets a uid.
        command.uid(user.uid).gid(user.gid);
    }
    tie_to_this_thread(&mut command, at_our_death);
    command
}

#[cfg(target_os = "linux")]
fn tie_to_this_thread(command: &mut Command, signal: Signal) {
    let parent = nix::unistd::getpid();
    let tie = move || {
        nix::sys::prctl::set_pdeathsig(signal)?;
        // If the parent died before the line above, no signal will come.
        if nix::unistd::getppid() != parent {
            return Err(io::Error::from(nix::errno::Errno::ECHILD));
        }
        Ok(())
    };
    // SAFETY: runs between fork and exec, where only async-signal-safe calls are allowed: two
    // system calls are made and nothing is allocated. It runs after the change of user, which would
    // have cleared the setting.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(tie);
    }
}

#[cfg(not(target_os = "linux"))]
fn tie_to_this_thread(_: &mut Command, _: Signal) {}

/// Blocks until the child has ended, but leaves a zombie, so that its pid is not reused before
/// `State` forgets it.
#[cfg(target_os = "linux")]
pub fn wait_unreaped(_: &mut Child, pid: Pid) {
    use nix::{
        errno::Errno,
        sys::wait::{Id, WaitPidFlag, waitid},
    };
    let ended_and_kept = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
    while let Err(Errno::EINTR) = waitid(Id::Pid(pid), ended_and_kept) {}
}

/// Without `waitid` it reaps outside the lock: a concurrent signal may hit a reused pid.
#[cfg(not(target_os = "linux"))]
pub fn wait_unreaped(child: &mut Child, _: Pid) {
    child.wait().ok();
}

/// Polls a condition until it holds or `within` is over; answers whether it held.
pub fn poll_until(within: Duration, pause: Duration, holds: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + within;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(pause);
    }
}

/// The pid in the first line of a pid file.
pub fn read_pid(file: &Path) -> Option<Pid> {
    let content = fs::read_to_string(file).ok()?;
    let pid = content.lines().next()?.trim().parse().ok()?;
    (pid > 1).then(|| Pid::from_raw(pid))
}

/// The command line of a living process; `None` once it has ended, zombies included.
pub fn command_line(pid: Pid) -> Option<String> {
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

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Runs file and process work off the async threads.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(EmbeddedError::ShuttingDown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_last_lines() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
        assert_eq!(last_lines("a", 2), "a");
        assert_eq!(last_lines("", 2), "");
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
