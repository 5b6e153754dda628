//! Wrong clocks: libfaketime turns the wall clock by the offset in a file, not the monotonic one.

use super::launch::entries;
use std::path::{Path, PathBuf};

pub const LIBRARY_MISSING: &str = "libfaketime is not installed (Debian: apt-get install faketime)";

pub fn libfaketime() -> Option<PathBuf> {
    let folders = ["/usr/lib64", "/usr/local/lib"].map(PathBuf::from).into_iter();
    let folders = folders.chain(entries(Path::new("/usr/lib")));
    folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1")).find(|path| path.exists())
}

/// The environment of a process whose clock reads its offset (`+1d`) from this file.
pub fn settings(offset: &Path) -> [(&'static str, String); 5] {
    let library = libfaketime().unwrap_or_default();
    [
        ("LD_PRELOAD", library.display().to_string()),
        ("FAKETIME_TIMESTAMP_FILE", offset.display().to_string()),
        ("FAKETIME_NO_CACHE", "1".to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ("DONT_FAKE_MONOTONIC", "1".to_owned()),
    ]
}
