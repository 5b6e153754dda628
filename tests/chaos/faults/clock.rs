//! Clocks: the instances live a day ahead and a day behind, and step back and forth. Redis and
//! Postgres keep the real time.

use super::Stage;
use crate::Error;
use std::{
    fs,
    path::{Path, PathBuf},
};

const OFFSETS: [&str; 4] = ["+1d", "-1d", "+0", "+90s"];

/// The library of the package faketime, if it is installed.
fn library() -> Option<PathBuf> {
    let name = "faketime/libfaketimeMT.so.1";
    let mut folders = vec![PathBuf::from("/usr/lib64"), PathBuf::from("/usr/local/lib")];
    let multiarch = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    folders.extend(multiarch.map(|entry| entry.path()));
    folders
        .into_iter()
        .map(|folder| folder.join(name))
        .find(|path| path.exists())
}

fn offset_file(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("clock-{number}"))
}

/// Starts every instance again with a clock that reads its offset from a file.
pub async fn prepare(stage: &mut Stage<'_>) -> Result<(), Error> {
    let Some(library) = library() else {
        stage.strikes.missing = Some(
            "libfaketime is not installed (Debian: apt-get install faketime), so no clock was changed"
                .to_owned(),
        );
        return Ok(());
    };
    let library = library
        .to_str()
        .ok_or("the library's path is not UTF-8")?
        .to_owned();
    let folder = stage.cluster.folder.0.clone();
    for (number, instance) in stage.cluster.instances.iter_mut().enumerate() {
        let file = offset_file(&folder, number);
        fs::write(&file, OFFSETS[number % 2])?;
        let file = file
            .to_str()
            .ok_or("the folder's name is not UTF-8")?
            .to_owned();
        instance.kill();
        instance.start(&[
            ("LD_PRELOAD", &library),
            ("FAKETIME_TIMESTAMP_FILE", &file),
            ("FAKETIME_NO_CACHE", "1"),
            // Timeouts are measured by the monotonic clock, which no operator can set.
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
            ("DONT_FAKE_MONOTONIC", "1"),
        ])?;
    }
    Ok(())
}

/// A clock steps.
pub async fn strike(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.wait(200..900).await;
    let number = stage.random.index(stage.cluster.instances.len());
    let offset = OFFSETS[stage.random.index(OFFSETS.len())];
    fs::write(offset_file(&stage.cluster.folder.0, number), offset)?;
    Ok(())
}

/// An instance's log carries the time that it believed in: there must be other days in it.
pub fn verify(stage: &mut Stage<'_>) {
    if stage.strikes.missing.is_some() {
        return;
    }
    let today = time::OffsetDateTime::now_utc().date();
    let days = [today.previous_day(), today.next_day()].map(|day| day.unwrap_or(today).to_string());
    let seen = |day: &String| {
        let mut logs = stage.cluster.instances.iter().map(|one| one.log());
        logs.any(|log| {
            fs::read_to_string(log)
                .unwrap_or_default()
                .contains(day.as_str())
        })
    };
    let missing: Vec<&String> = days.iter().filter(|day| !seen(day)).collect();
    if !missing.is_empty() {
        stage.strikes.missing = Some(format!("no instance believed in {missing:?}"));
    }
}
