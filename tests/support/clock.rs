//! Wrong clocks: libfaketime turns the wall clock by the offset in a file, not the monotonic one.

use std::{fs, path::Path, path::PathBuf};

pub const LIBRARY_MISSING: &str = "libfaketime is not installed (Debian: apt-get install faketime)";

pub fn libfaketime() -> Option<PathBuf> {
    let mut folders = vec![PathBuf::from("/usr/lib64"), PathBuf::from("/usr/local/lib")];
    let multiarch = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    folders.extend(multiarch.map(|entry| entry.path()));
    let library = |folder: PathBuf| folder.join("faketime/libfaketimeMT.so.1");
    folders.into_iter().map(library).find(|path| path.exists())
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
