//! How tests and benchmarks (by its path) start programs with no settings but their own.

use nix::sys::signal::{Signal, kill};
use nix::{errno::Errno, unistd::Pid};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{env, ffi::OsStr, fs, io, os::unix::process::CommandExt};

pub fn command(program: impl AsRef<OsStr>, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().current_dir(folder).stdin(Stdio::null());
    for kept in ["PATH", "HOME", "TMPDIR", "USER", "LANG", "LD_LIBRARY_PATH"] {
        command.envs(env::var_os(kept).map(|value| (kept, value)));
    }
    command
}

/// It gets this signal when this process ends, however that ends; Ctrl-C is this one's to handle.
#[cfg_attr(not(target_os = "linux"), allow(unused_variables))]
pub fn end_with_this_process(command: &mut Command, signal: Signal) {
    command.process_group(0);
    // SAFETY: between fork and exec only async-signal-safe calls are allowed: one system call.
    #[cfg(target_os = "linux")]
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(move || Ok(nix::sys::prctl::set_pdeathsig(signal)?));
    }
}

pub struct Folder(pub PathBuf);

impl Folder {
    pub fn create(parent: &Path, prefix: &str) -> io::Result<Self> {
        let path = name_in(parent, prefix);
        fs::create_dir_all(&path)?;
        // The program reads `.env` from the nearest folder upwards: this one, which is empty.
        fs::write(path.join(".env"), "")?;
        Ok(Self(path.canonicalize()?))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        entries(&self.0).for_each(|data| remove_data(&data));
        // Postgres may still be writing its last file; what remains is removed by the next run.
        fs::remove_dir_all(&self.0).ok();
    }
}

pub fn name_in(parent: &Path, prefix: &str) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let (process, number) = (std::process::id(), NUMBER.fetch_add(1, Relaxed));
    parent.join(format!("{prefix}{process}-{number}"))
}

pub fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// With the cluster that it may link to: run by root, it is where its user can enter.
pub fn remove_data(dir: &Path) {
    if let Some(home) = fs::read_link(dir.join("pg")).ok().as_deref().and_then(Path::parent) {
        let _ = fs::remove_dir_all(home);
        home.parent().map(fs::remove_dir);
    }
    let _ = fs::remove_dir_all(dir);
}

/// Removes the folders of processes that were killed before they could.
pub fn remove_leftovers(parent: &Path, prefix: &str) {
    for folder in entries(parent) {
        let name = folder.file_name().and_then(|name| name.to_str()?.strip_prefix(prefix));
        let pid = name.and_then(|name| name.split('-').next()?.parse().ok());
        if pid.is_some_and(|pid| kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH)) {
            drop(Folder(folder));
        }
    }
}

/// With pauses of so many milliseconds; `None` if there is nothing after `limit`.
pub async fn poll<T, E>(
    limit: Duration,
    pause: u64,
    mut look: impl AsyncFnMut() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    let deadline = Instant::now() + limit;
    loop {
        let found = look().await?;
        if found.is_some() || Instant::now() > deadline {
            return Ok(found);
        }
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
}

pub fn tail(log: &Path, count: usize) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
