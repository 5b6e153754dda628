//! The sandbox's memory: a file with a JSON document a line, only appended to. Lines that come
//! while the disk is busy are synchronised together.

use nix::fcntl::{Flock, FlockArg};
use serde::{Serialize, de::DeserializeOwned};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use tokio::sync::watch;

pub struct Journal {
    /// `None` only while it closes.
    lines: Option<Sender<Vec<u8>>>,
    appended: AtomicU64,
    durable: watch::Receiver<u64>,
    writer: Option<JoinHandle<()>>,
}

/// The disk did not take a line. Whether it will be there after a restart is not known.
#[derive(Debug, thiserror::Error)]
#[error("the sandbox's file cannot be written")]
pub struct Broken;

impl Journal {
    /// Opens or creates the file; answers its entries, too. A last line without its end is cut off:
    /// a crash tore it, and nobody was told of it.
    pub fn open<T: DeserializeOwned>(path: &Path) -> io::Result<(Self, Vec<T>)> {
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).create(true).mode(0o600).open(path)?;
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, _)| io::Error::other("another sandbox uses it"))?;
        let text = std::fs::read(path)?;
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        if whole < text.len() {
            tracing::warn!(bytes = text.len() - whole, "the last line was torn by a crash; cut");
            file.set_len(whole as u64)?;
        }
        let lines = text[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let read = |(at, line)| {
            serde_json::from_slice(line)
                .map_err(|error| io::Error::other(format!("line {}: {error}", at + 1)))
        };
        let entries = lines.enumerate().map(read).collect::<io::Result<Vec<T>>>()?;
        file.sync_all()?;
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            File::open(folder)?.sync_all()?; // the file's name
        }
        let (lines, incoming) = channel();
        let (progress, durable) = watch::channel(0);
        let write = move || write(&file, &incoming, &progress);
        let writer = std::thread::Builder::new().name("sandbox-journal".to_owned()).spawn(write)?;
        let journal =
            Self { lines: Some(lines), appended: 0.into(), durable, writer: Some(writer) };
        Ok((journal, entries))
    }

    /// Appends an entry. Callers in an order have to append in it.
    pub fn append(&self, entry: &impl Serialize) {
        let Ok(mut line) = serde_json::to_vec(entry) else {
            return; // the entries are plain data
        };
        line.push(b'\n');
        // It fails only if the writer has ended: then `durable` says so.
        let _ = self.lines.as_ref().map(|lines| lines.send(line));
        self.appended.fetch_add(1, SeqCst);
    }

    /// Waits until everything that is appended now is on disk.
    pub async fn durable(&self) -> Result<(), Broken> {
        let appended = self.appended.load(SeqCst);
        let mut durable = self.durable.clone();
        let reached = durable.wait_for(|durable| *durable >= appended).await;
        reached.map(drop).map_err(|_| Broken)
    }
}

fn write(mut file: &File, incoming: &Receiver<Vec<u8>>, progress: &watch::Sender<u64>) {
    while let Ok(mut lines) = incoming.recv() {
        let mut count = 1;
        while let Ok(line) = incoming.try_recv() {
            lines.extend(line);
            count += 1;
        }
        if let Err(error) = file.write_all(&lines).and_then(|()| file.sync_data()) {
            // Half a line may be there, which the next start must be able to cut off: no more.
            tracing::error!(%error, "the sandbox's file cannot be written: it answers no more");
            return;
        }
        progress.send_modify(|durable| *durable += count);
    }
}

impl Drop for Journal {
    /// What is appended is written, and the file is free again.
    fn drop(&mut self) {
        self.lines.take();
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}
