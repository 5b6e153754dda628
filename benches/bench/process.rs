//! The processes of a session: ended when they are dropped, whatever happens. Declare the
//! [`Workspace`] before the processes that use it.

use crate::Error;
use flash_sale::{
    app::Stores,
    config::{Fsync, LogFormat, StoreSettings},
};
use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    net::SocketAddr,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

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

/// A folder that exists as long as this value.
pub struct Workspace {
    pub path: PathBuf,
}

impl Workspace {
    pub fn create(parent: Option<&Path>) -> Result<Self, Error> {
        let parent = parent.map_or_else(|| target_dir().join("bench"), Path::to_path_buf);
        remove_leftovers(&parent);
        let path = parent.join(format!("run-{}", std::process::id()));
        fs::create_dir_all(&path)
            .map_err(|error| format!("cannot create {}: {error}", path.display()))?;
        // The program reads `.env` from the nearest folder upwards: this one, which says nothing.
        fs::write(path.join(".env"), "")?;
        Ok(Self {
            path: path.canonicalize()?,
        })
    }

    /// The last lines that each process wrote to stderr.
    pub fn print_logs(&self) {
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let file = entry.path();
            let log = fs::read_to_string(&file).unwrap_or_default();
            if file.extension().is_some_and(|extension| extension == "log") && !log.is_empty() {
                let lines: Vec<&str> = log.lines().collect();
                let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
                eprintln!("--- {}\n{}", file.display(), last.join("\n"));
            }
        }
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        // Run by root, the program may have put a cluster elsewhere and left a link to it.
        for data in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            if let Ok(cluster) = fs::read_link(data.path().join("pg"))
                && let Some(home) = cluster
                    .parent()
                    .filter(|home| home.starts_with("/var/lib/flash-sale"))
            {
                remove(home);
            }
        }
        remove(&self.path);
    }
}

/// The folders of sessions that were killed before they could remove them.
fn remove_leftovers(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix("run-"));
        if let Some(pid) = pid.and_then(|pid| pid.parse().ok())
            && kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH)
        {
            drop(Workspace { path: entry.path() });
        }
    }
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path) {
        eprintln!("bench: cannot remove {}: {error}", path.display());
    }
}

/// Connections to the stores of the server that runs on `data_dir`, under keys of their own.
pub async fn stores(data_dir: &Path, redis_prefix: &str) -> Result<Stores, Error> {
    let settings = StoreSettings {
        database_direct_url: None,
        database_url: None,
        redis_url: None,
        redis_prefix: redis_prefix.to_owned(),
        data_dir: data_dir.to_path_buf(),
        redis_fsync: Fsync::Always,
        postgres_connections: 4,
        rust_log: "warn".to_owned(),
        log_format: LogFormat::Text,
    };
    Ok(Stores::join(&settings).await?)
}

pub struct Process {
    name: String,
    child: Child,
    pub address: SocketAddr,
}

impl Process {
    /// The bare endpoint: this very binary with another task.
    pub fn bare(workspace: &Workspace, secret: &str) -> Result<Self, Error> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("bare");
        Self::start("bare", command, &[("TOKEN_SECRET", secret)], workspace)
    }

    /// `flash-sale serve`, embedded (unless the settings say otherwise), with its data in
    /// `workspace/name`. `program`: another build of it.
    pub fn flash_sale(
        name: &str,
        program: Option<&Path>,
        workspace: &Workspace,
        settings: &[(&str, &str)],
    ) -> Result<Self, Error> {
        let usual = Path::new(env!("CARGO_BIN_EXE_flash-sale"));
        let mut command = Command::new(program.unwrap_or(usual));
        command.arg("serve");
        let data_dir = Self::data_dir(workspace, name);
        let data_dir = data_dir
            .to_str()
            .ok_or("the data folder's name is not UTF-8")?;
        let own = [("DATA_DIR", data_dir), ("LISTEN_ADDR", "127.0.0.1:0")];
        Self::start(name, command, &[&own, settings].concat(), workspace)
    }

    pub fn data_dir(workspace: &Workspace, name: &str) -> PathBuf {
        workspace.path.join(name)
    }

    fn start(
        name: &str,
        mut command: Command,
        settings: &[(&str, &str)],
        workspace: &Workspace,
    ) -> Result<Self, Error> {
        let log = workspace.path.join(format!("{name}.log"));
        // Nobody's settings but ours.
        command.env_clear();
        for kept in ["PATH", "HOME", "TMPDIR", "USER", "LANG", "LD_LIBRARY_PATH"] {
            if let Some(value) = std::env::var_os(kept) {
                command.env(kept, value);
            }
        }
        command
            .envs(settings.iter().copied())
            .current_dir(&workspace.path)
            .process_group(0) // Ctrl-C is ours to handle
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?);
        end_with_this_process(&mut command);
        let mut child = command
            .spawn()
            .map_err(|error| format!("cannot start {name}: {error}"))?;
        let stdout = child.stdout.take();
        // From here on an early return ends the child.
        let mut process = Self {
            name: name.to_owned(),
            child,
            address: ([127, 0, 0, 1], 0).into(),
        };
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
        match address.recv_timeout(READY_WITHIN) {
            Ok(address) => process.address = address?,
            Err(_) => {
                let ended = process
                    .child
                    .try_wait()?
                    .map(|status| format!(" ({status})"));
                let said = fs::read_to_string(&log).unwrap_or_default();
                let what = format!(
                    "{name} did not get ready{}:\n{said}",
                    ended.unwrap_or_default()
                );
                return Err(what.into());
            }
        }
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
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap_or(i32::MAX));
        for (signal, patience) in [
            (Signal::SIGTERM, ENDED_WITHIN),
            (Signal::SIGKILL, Duration::from_secs(5)),
        ] {
            // Not yet waited for, so the pid is still this child's.
            if self.has_ended() {
                return;
            }
            kill(pid, signal).ok();
            let deadline = Instant::now() + patience;
            while Instant::now() < deadline {
                if self.has_ended() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        eprintln!("bench: {} (pid {pid}) could not be ended", self.name);
    }
}

#[cfg(target_os = "linux")]
fn end_with_this_process(command: &mut Command) {
    // SAFETY: runs between fork and exec, where only async-signal-safe calls are allowed: it is one
    // system call and allocates nothing.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(|| Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?));
    }
}

#[cfg(not(target_os = "linux"))]
fn end_with_this_process(_: &mut Command) {}
