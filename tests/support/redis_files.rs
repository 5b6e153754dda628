//! What a test does to the files of a Redis while it is away.

use super::{driver::Result, redis_servers::RedisProcess};
use std::path::{Path, PathBuf};
use std::{fs, io};

impl RedisProcess {
    fn data(&self) -> PathBuf {
        self.dir.join("appendonlydir")
    }

    pub fn empty(&self) -> io::Result<()> {
        fs::remove_dir_all(self.data())
    }

    /// The file that commands are appended to (Redis 7 keeps a base and increments), its length.
    pub fn last_increment(&self) -> Result<(PathBuf, u64)> {
        let number = |path: &PathBuf| -> Option<u64> {
            let name = path.file_name()?.to_str()?;
            name.strip_suffix(".incr.aof")?.rsplit('.').next()?.parse().ok()
        };
        let numbered = fs::read_dir(self.data())?.flatten().map(|file| file.path());
        let last = numbered.filter_map(|path| Some((number(&path)?, path))).max();
        let (_, last) = last.ok_or("no increment")?;
        let length = fs::metadata(&last)?.len();
        Ok((last, length))
    }

    /// Shortens that file, as a power cut shortens what was not on disk yet.
    pub fn cut(&self, length: u64) -> Result {
        let (last, _) = self.last_increment()?;
        Ok(fs::OpenOptions::new().write(true).open(last)?.set_len(length)?)
    }

    /// A copy of its files, which may be taken while it serves: Redis takes a cut tail.
    pub fn back_up(&self, to: &Path) -> io::Result<()> {
        fs::remove_dir_all(to).ok();
        copy_files(&self.data(), to)
    }

    pub fn restore(&self, from: &Path) -> io::Result<()> {
        self.empty()?;
        copy_files(from, &self.data())
    }
}

fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for file in fs::read_dir(from)? {
        let file = file?;
        fs::copy(file.path(), to.join(file.file_name()))?;
    }
    Ok(())
}
