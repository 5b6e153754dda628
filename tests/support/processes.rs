//! Processes of servers, as /proc knows them, and wrong clocks for them by libfaketime.

use super::launch::entries;
use nix::{sys::signal::Signal, unistd::Pid};
use std::fs;
use std::path::{Path, PathBuf};

pub fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).expect("pids are small"))
}

/// The state of a process (`T`: stopped), and its parent.
pub fn status_of(pid: u32) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold spaces; the state and the parent follow it.
    let mut rest = stat.rsplit_once(')')?.1.split_whitespace();
    Some((rest.next()?.to_owned(), rest.next()?.parse().ok()?))
}

/// The postmaster and its backends, which lead sessions, so process groups, of their own.
pub fn family(postmaster: u32) -> Vec<u32> {
    let pids = entries(Path::new("/proc"));
    let pids = pids.filter_map(|entry| entry.file_name()?.to_str()?.parse::<u32>().ok());
    let is_child = |pid: &u32| status_of(*pid).is_some_and(|(_, parent)| parent == postmaster);
    std::iter::once(postmaster).chain(pids.filter(is_child)).collect()
}

pub fn signal(pids: &[u32], signal: Signal) {
    for pid in pids {
        nix::sys::signal::kill(pid_of(*pid), signal).ok();
    }
}

pub const FAKETIME_MISSING: &str =
    "libfaketime is not installed (Debian: apt-get install faketime)";

pub fn libfaketime() -> Option<PathBuf> {
    let folders = ["/usr/lib64", "/usr/local/lib"].map(PathBuf::from).into_iter();
    let folders = folders.chain(entries(Path::new("/usr/lib")));
    folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1")).find(|path| path.exists())
}

/// The environment of a process whose wall clock, not the monotonic one, is off by what is in this
/// file (`+1d`).
pub fn clock_settings(offset: &Path) -> [(&'static str, String); 5] {
    let library = libfaketime().unwrap_or_default();
    [
        ("LD_PRELOAD", library.display().to_string()),
        ("FAKETIME_TIMESTAMP_FILE", offset.display().to_string()),
        ("FAKETIME_NO_CACHE", "1".to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ("DONT_FAKE_MONOTONIC", "1".to_owned()),
    ]
}
