//! Clocks: the instances live a day ahead and a day behind, and step back and forth. Redis and
//! Postgres keep the real time.

use super::Stage;
use crate::Error;
use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
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
    for number in 0..stage.cluster.instances.len() {
        fs::write(
            offset_file(&stage.cluster.folder.0, number),
            OFFSETS[number % 2],
        )?;
        start(stage, number, &library)?;
    }
    Ok(())
}

/// Starts an instance (again), under the clock of its file.
fn start(stage: &mut Stage<'_>, number: usize, library: &str) -> Result<(), Error> {
    let file = offset_file(&stage.cluster.folder.0, number);
    let file = file.to_str().ok_or("the folder's name is not UTF-8")?;
    let instance = &mut stage.cluster.instances[number];
    stage.strikes.kills += u64::from(instance.kill());
    instance.start(&[
        ("LD_PRELOAD", library),
        ("FAKETIME_TIMESTAMP_FILE", file),
        ("FAKETIME_NO_CACHE", "1"),
        // Timeouts are measured by the monotonic clock, which no operator can set.
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ("DONT_FAKE_MONOTONIC", "1"),
    ])
}

/// A clock steps, and its instance is asked what time it believes in.
pub async fn strike(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.wait(200..900).await;
    let number = stage.random.index(stage.cluster.instances.len());
    let offset = OFFSETS[stage.random.index(OFFSETS.len())];
    fs::write(offset_file(&stage.cluster.folder.0, number), offset)?;
    // Now and then a process is born into the wrong time. (It also shows its day again: the header
    // `Date` is cached until the clock passes it, so after a step back it stands still.)
    if stage.random.chance(0.25)
        && let Some(library) = library().as_deref().and_then(Path::to_str)
    {
        start(stage, number, library)?;
    }
    for instance in &stage.cluster.instances {
        if let Some(day) = day_at(instance.address).await {
            stage.reached.insert(day);
        }
    }
    Ok(())
}

/// The day in the header `Date` of an answer: "Sat, 21 Nov 2026 …". `None` if there is none.
async fn day_at(address: SocketAddr) -> Option<String> {
    let asked = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        let request = "GET /healthz HTTP/1.1\r\nHost: clock\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let date = answer
            .lines()
            .find_map(|line| line.strip_prefix("date: "))?;
        Some(
            date.split_whitespace()
                .take(4)
                .collect::<Vec<_>>()
                .join(" "),
        )
    };
    tokio::time::timeout(Duration::from_secs(2), asked)
        .await
        .ok()?
}

/// There must have been other days than the real one.
pub fn verify(stage: &mut Stage<'_>) {
    let days = format!("days believed in: {:?}", stage.reached);
    if stage.strikes.missing.is_none() && stage.reached.len() < 3 {
        stage.strikes.missing = Some(format!("too few {days}"));
    }
    stage.strikes.notes.push(days);
}
