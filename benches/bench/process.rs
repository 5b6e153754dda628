//! The processes of a session: ended when they are dropped, whatever happens. Declare the
//! [`Workspace`] before the processes that use it.

#[path = "../../tests/support/launch.rs"]
mod launch;

use crate::Result;
use flash_sale::app::Stores;
use flash_sale::config::{Fsync, LogFormat, LogSettings, StoreSettings};
pub use launch::poll;
use launch::{Folder, entries, remove_leftovers, tail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use std::{net::SocketAddr, sync::mpsc};

/// A fresh cluster needs about a second.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// The program promises 10 s.
const ENDED_WITHIN: Duration = Duration::from_secs(15);
/// How much of a log is shown when something went wrong.
const LOG_LINES: usize = 20;

/// Cargo's build folder.
pub fn target_dir() -> PathBuf {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    scratch.parent().unwrap_or(scratch).to_path_buf()
}

/// Where the processes of a session work.
pub struct Workspace(Folder);

impl Workspace {
    /// In the build folder: on tmpfs an fsync would cost nothing.
    pub fn create() -> Result<Self> {
        let parent = target_dir().join("bench");
        remove_leftovers(&parent, "run-");
        let cannot = |error| format!("no folder in {}: {error}", parent.display());
        Ok(Self(Folder::create(&parent, "run-").map_err(cannot)?))
    }

    /// The last lines that each process wrote to stderr.
    pub fn print_logs(&self) {
        let is_log = |file: &PathBuf| file.extension().is_some_and(|it| it == "log");
        for file in entries(&self.0.0).filter(is_log) {
            eprintln!("--- {}\n{}", file.display(), tail(&file, LOG_LINES));
        }
    }

    /// Connections to the stores of the server of this name.
    pub async fn stores(&self, server: &str) -> Result<Stores> {
        let settings = StoreSettings {
            payment: Default::default(),
            database_direct_url: None,
            database_url: None,
            redis_url: None,
            redis_prefix: String::new(),
            data_dir: self.0.0.join(server),
            redis_fsync: Fsync::Always,
            postgres_connections: 4,
            logs: LogSettings { rust_log: "warn".to_owned(), log_format: LogFormat::Text },
        };
        Ok(Stores::join(&settings).await?)
    }
}

pub struct Process {
    child: Child,
    pub address: SocketAddr,
}

impl Process {
    /// The bare endpoint: this very binary with another task.
    pub fn bare(workspace: &Workspace, secret: &str) -> Result<Self> {
        let program = std::env::current_exe()?;
        Self::start("bare", &program, "bare", &[("TOKEN_SECRET", secret)], workspace)
    }

    /// `flash-sale serve` or another build of it, embedded, with its data in `workspace/name`.
    pub fn flash_sale(
        name: &str,
        program: Option<&Path>,
        workspace: &Workspace,
        settings: &[(&str, &str)],
    ) -> Result<Self> {
        let usual = Path::new(env!("CARGO_BIN_EXE_flash-sale"));
        let data_dir = workspace.0.0.join(name);
        let data_dir = data_dir.to_str().ok_or("the data folder's name is not UTF-8")?;
        let own = [("DATA_DIR", data_dir), ("LISTEN_ADDR", "127.0.0.1:0")];
        let settings = [&own, settings].concat();
        Self::start(name, program.unwrap_or(usual), "serve", &settings, workspace)
    }

    fn start(
        name: &str,
        program: &Path,
        task: &str,
        settings: &[(&str, &str)],
        workspace: &Workspace,
    ) -> Result<Self> {
        let Workspace(Folder(folder)) = workspace;
        let log = folder.join(format!("{name}.log"));
        let mut command = launch::command(program, folder);
        launch::end_with_this_process(&mut command, Signal::SIGTERM);
        command.arg(task).envs(settings.iter().copied());
        command.stdout(Stdio::piped()).stderr(File::create(&log)?);
        let child = command.spawn();
        let mut child = child.map_err(|error| format!("cannot start {name}: {error}"))?;
        let stdout = child.stdout.take();
        // From here on an early return ends the child.
        let mut process = Self { child, address: ([127, 0, 0, 1], 0).into() };
        let (found, address) = mpsc::channel();
        std::thread::spawn(move || {
            // To the end, so that the child never waits for a reader.
            for line in BufReader::new(stdout?).lines().map_while(Result::ok) {
                if let Some((_, address)) = line.split_once(" ready on http://") {
                    found.send(address.parse::<SocketAddr>()).ok();
                }
            }
            Some(())
        });
        let Ok(address) = address.recv_timeout(READY_WITHIN) else {
            let ended = process.child.try_wait()?;
            let said = fs::read_to_string(&log).unwrap_or_default();
            return Err(format!("{name} did not get ready ({ended:?}):\n{said}").into());
        };
        process.address = address?;
        Ok(process)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Not yet waited for, so the pid is still this child's.
        if !self.has_ended() {
            kill(Pid::from_raw(self.pid().cast_signed()), Signal::SIGTERM).ok();
        }
        let deadline = Instant::now() + ENDED_WITHIN;
        while !self.has_ended() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
