//! Processes of servers, as /proc knows them.

use super::launch::entries;
use nix::{sys::signal::Signal, unistd::Pid};
use std::{fs, path::Path};

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
