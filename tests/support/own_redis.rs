//! A Redis that a test takes away, changes on disk and gives back at the same address.

use super::{connect_redis, driver::Result};
use embedded::{RedisServer, RedisSettings};
use redis::aio::MultiplexedConnection;
use std::path::{Path, PathBuf};
use std::{fs, io};

pub struct OwnRedis {
    pub dir: PathBuf,
    settings: RedisSettings,
    /// `None` while it is away.
    server: Option<RedisServer>,
}

impl OwnRedis {
    pub async fn start(dir: PathBuf, settings: RedisSettings) -> Result<Self> {
        let server = Some(RedisServer::start(&dir, settings.clone()).await?);
        Ok(Self { dir, settings, server })
    }

    /// `kill -9`, and its supervisor ends before it has started another.
    pub async fn take_down(&mut self) -> Result {
        let server = self.server.take().ok_or("redis is not running")?;
        server.kill();
        server.stop().await;
        Ok(())
    }

    pub async fn start_again(&mut self) -> Result {
        self.server = Some(RedisServer::start(&self.dir, self.settings.clone()).await?);
        Ok(())
    }

    pub fn server(&self) -> Result<&RedisServer> {
        Ok(self.server.as_ref().ok_or("redis is not running")?)
    }

    pub fn url(&self) -> String {
        self.server.as_ref().map_or(String::new(), RedisServer::url)
    }

    pub fn socket(&self) -> PathBuf {
        self.server().map(RedisServer::socket).unwrap_or_default()
    }

    pub async fn connection(&self) -> Result<MultiplexedConnection> {
        Ok(connect_redis(&self.server()?.url()).await?)
    }

    /// What it answers to a command, as text.
    pub async fn say(&self, words: &[&str]) -> Result<String> {
        say(&mut self.connection().await?, words).await
    }

    pub fn data(&self) -> PathBuf {
        self.dir.join("redis")
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
        let files = fs::read_dir(self.data().join("appendonlydir"))?.flatten();
        let numbered = files.map(|file| file.path());
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
        copy_folder(&self.data(), to)
    }

    pub fn restore(&self, from: &Path) -> io::Result<()> {
        self.empty()?;
        copy_folder(from, &self.data())
    }
}

pub async fn say(redis: &mut MultiplexedConnection, words: &[&str]) -> Result<String> {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    Ok(match command.query_async(redis).await? {
        redis::Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        redis::Value::VerbatimString { text, .. } => text,
        other => format!("{other:?}"),
    })
}

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for file in fs::read_dir(from)? {
        let file = file?;
        let (path, target) = (file.path(), to.join(file.file_name()));
        match path.is_dir() {
            true => copy_folder(&path, &target)?,
            false => drop(fs::copy(&path, &target)?),
        }
    }
    Ok(())
}
