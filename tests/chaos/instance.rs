//! One process of the program, killed, stopped and started again, always on the same port.

use crate::support::{launch, prelude::*, processes, stores::Result};
use std::{os::unix::process::ExitStatusExt, process::ExitStatus};

/// What a process is told to be: its first arguments.
pub type Role = &'static [&'static str];
pub const SERVER: Role = &["serve"];
pub const TAKER: Role = &["serve", "--no-writer"];
pub const WORKER: Role = &["worker"];

pub type Settings = Vec<(&'static str, String)>;

pub struct Instance {
    pub number: u8,
    pub address: SocketAddr,
    settings: Settings,
    pub arguments: Vec<String>,
    folder: PathBuf,
    child: Option<Child>,
    pub started: Instant,
    log_before: usize,
    pub ended_by_itself: Option<ExitStatus>,
}

impl Instance {
    pub fn new(number: u8, role: Role, folder: PathBuf, settings: Settings) -> Self {
        Self {
            number,
            address: (Ipv4Addr::LOCALHOST, free_port()).into(),
            settings,
            arguments: role.iter().copied().map(str::to_owned).collect(),
            folder,
            child: None,
            started: Instant::now(),
            log_before: 0,
            ended_by_itself: None,
        }
    }

    pub fn serves(&self) -> bool {
        self.arguments[0] == "serve"
    }

    pub fn log(&self) -> PathBuf {
        self.folder.join(format!("app-{}.log", self.number))
    }

    pub fn start(&mut self, extra: &[(&str, &str)]) -> Result {
        if self.is_running() {
            return Ok(());
        }
        let log = self.log();
        let output = fs::OpenOptions::new().create(true).append(true).open(&log);
        let output = output.map_err(|error| format!("cannot open {}: {error}", log.display()))?;
        self.log_before = usize::try_from(output.metadata()?.len())?;
        let errors = output.try_clone()?;
        let mut command = launch::command(env!("CARGO_BIN_EXE_flash-sale"), &self.folder);
        launch::end_with_this_process(&mut command, Signal::SIGKILL);
        command
            .args(&self.arguments)
            .env("NO_COLOR", "1") // the logs are searched
            .env("LISTEN_ADDR", self.address.to_string())
            .envs(self.settings.iter().cloned())
            .envs(extra.iter().copied())
            .stdout(output)
            .stderr(errors);
        let cannot = |error| format!("cannot start instance {}: {error}", self.number);
        self.child = Some(command.spawn().map_err(cannot)?);
        self.started = Instant::now();
        Ok(())
    }

    /// Whether there is a process, stopped ones included. Notices one that has ended by itself.
    pub fn is_running(&mut self) -> bool {
        let Some(child) = &mut self.child else { return false };
        let Ok(ended) = child.try_wait() else { return false };
        if ended.is_some() {
            (self.child, self.ended_by_itself) = (None, ended);
        }
        ended.is_none()
    }

    pub fn pids(&self) -> Vec<u32> {
        self.child.iter().map(Child::id).collect()
    }

    /// Not once it was ready; before that at once, or if it says that Postgres is away.
    pub fn may_have_ended(&self) -> bool {
        let log = fs::read(self.log()).unwrap_or_default();
        let said = String::from_utf8_lossy(log.get(self.log_before..).unwrap_or_default());
        let mut lines = said.lines().filter(|line| line.starts_with("flash-sale"));
        let was_ready = lines.clone().any(|line| line.contains(" ready"));
        let names_postgres = lines.any(|line| line.contains("cannot bring the schema up to date"));
        !was_ready && (names_postgres || self.started.elapsed() < Duration::from_secs(10))
    }

    /// Not yet waited for, so the pid is still this child's; it may be a zombie, which is no error.
    pub fn signal(&self, signal: Signal) {
        processes::signal(&self.pids(), signal);
    }

    pub fn kill(&mut self) -> bool {
        self.signal(Signal::SIGKILL);
        let status = self.child.take().and_then(|mut child| child.wait().ok());
        let Some(status) = status else { return false };
        let was_killed = status.signal() == Some(Signal::SIGKILL as i32);
        if !was_killed {
            self.ended_by_itself = Some(status);
        }
        was_killed
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.kill();
    }
}
