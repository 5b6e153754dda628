//! Faults of Redis: it dies, loses data in every way we know, or stands still.

use super::{Stage, processes};
use crate::support::proxy::{Address, Fault as NetFault, Proxy, free_port};
use crate::{Error, cluster::start_redis, look::is_incarnation_of};
use flash_sale::embedded::RedisServer;
use std::{
    fs,
    ops::Range,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

pub async fn kill(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.wait(200..900).await;
    stage.cluster.redis()?.kill();
    stage.strikes.kills += 1;
    // Its supervisor starts it again.
    until_answers(stage).await?;
    stage.healed(None);
    Ok(())
}

async fn until_answers(stage: &mut Stage<'_>) -> Result<(), Error> {
    // The death has to be noticed before readiness means the new process.
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok(stage.cluster.redis()?.wait_ready().await?)
}

/// Kills Redis and keeps it down; the folder with its files.
async fn take_down(stage: &mut Stage<'_>) -> Result<PathBuf, Error> {
    let redis = stage.cluster.redis.take().ok_or("redis is not running")?;
    redis.kill();
    stage.strikes.kills += 1;
    // Told to end before its supervisor has started another: nothing is written after the kill.
    redis.stop().await;
    Ok(stage.cluster.redis_folder.join("redis"))
}

async fn bring_up(stage: &mut Stage<'_>) -> Result<(), Error> {
    let (folder, port) = (stage.cluster.redis_folder.clone(), stage.cluster.redis_port);
    stage.cluster.redis = Some(start_redis(&folder, port, &[]).await?);
    stage.healed(None);
    Ok(())
}

fn clear(folder: &Path) -> Result<(), Error> {
    fs::remove_dir_all(folder)
        .map_err(|error| format!("cannot empty {}: {error}", folder.display()).into())
}

pub async fn restart_empty(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.wait(200..900).await;
    let data = take_down(stage).await?;
    clear(&data)?;
    bring_up(stage).await
}

pub async fn restart_cut(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.wait(200..900).await;
    let data = take_down(stage).await?;
    let tail = last_increment(&data)?;
    let length = fs::metadata(&tail)?.len();
    let kept = stage.random.below(length + 1);
    let file = fs::OpenOptions::new().write(true).open(&tail)?;
    file.set_len(kept)?;
    stage
        .strikes
        .notes
        .push(format!("cut to {kept} of {length} bytes"));
    bring_up(stage).await
}

/// Redis 7 keeps a base file and increments; the last increment is where it appends.
fn last_increment(data: &Path) -> Result<PathBuf, Error> {
    let folder = data.join("appendonlydir");
    let files = fs::read_dir(&folder)
        .map_err(|error| format!("cannot list {}: {error}", folder.display()))?;
    let number = |path: &PathBuf| -> Option<u64> {
        let name = path.file_name()?.to_str()?;
        name.strip_suffix(".incr.aof")?
            .rsplit('.')
            .next()?
            .parse()
            .ok()
    };
    let increments = files.flatten().map(|entry| entry.path());
    let last = increments
        .filter_map(|path| Some((number(&path)?, path)))
        .max();
    last.map(|(_, path)| path)
        .ok_or_else(|| format!("no increment in {}", folder.display()).into())
}

pub async fn flush(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.wait(300..1_200).await;
    command(stage.cluster.redis()?, &["FLUSHALL"]).await?;
    stage.healed(None);
    Ok(())
}

/// One command over a connection of its own, in the simplest form of the protocol.
async fn command(redis: &RedisServer, words: &[&str]) -> Result<String, Error> {
    let client = ::redis::Client::open(redis.url())?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let mut command = ::redis::cmd(words[0]);
    for word in &words[1..] {
        command.arg(word);
    }
    let value: ::redis::Value = command.query_async(&mut connection).await?;
    Ok(match value {
        ::redis::Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        other => format!("{other:?}"),
    })
}

fn backup_of(stage: &Stage<'_>) -> PathBuf {
    stage.cluster.folder.0.join("redis-backup")
}

fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)?.flatten() {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &target)?;
        } else {
            // A copy of a file that is being appended to ends somewhere: Redis takes a cut tail.
            fs::copy(&path, &target)?;
        }
    }
    Ok(())
}

pub async fn back_up(stage: &mut Stage<'_>) -> Result<(), Error> {
    let (data, backup) = (stage.cluster.redis_folder.join("redis"), backup_of(stage));
    fs::remove_dir_all(&backup).ok();
    copy(&data, &backup)
}

/// Restores the copy that was made a moment ago, and makes the next one.
pub async fn restore_backup(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.wait(400..1_500).await;
    let data = take_down(stage).await?;
    clear(&data)?;
    copy(&backup_of(stage), &data)?;
    bring_up(stage).await?;
    until_approved(stage).await?;
    stage.wait(100..500).await;
    back_up(stage).await
}

/// Waits until Postgres has approved the Redis that is running now.
pub async fn until_approved(stage: &mut Stage<'_>) -> Result<(), Error> {
    let info = command(stage.cluster.redis()?, &["INFO", "server"]).await?;
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut postgres = stage.cluster.direct().await?;
    loop {
        let approved: Option<String> = sqlx::query_scalar("SELECT run_id FROM redis_incarnation")
            .fetch_optional(&mut postgres)
            .await?;
        if approved.is_some_and(|approved| is_incarnation_of(&approved, &info)) {
            return Ok(());
        }
        if Instant::now() > deadline {
            // The checkers will say what is wrong with it.
            stage
                .strikes
                .notes
                .push("redis was not approved within 20 s".to_owned());
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub async fn stop(stage: &mut Stage<'_>, millis: Range<u64>) -> Result<(), Error> {
    stage.wait(200..700).await;
    if let Some(pid) = stage.cluster.redis()?.pid() {
        processes::stand_still(stage, &[pid], millis).await;
    }
    stage.healed(None);
    Ok(())
}

/// A replica follows, the link to it breaks, the primary goes on for a moment and dies, and the
/// replica, which lacks that moment, takes its place.
pub async fn fail_over(stage: &mut Stage<'_>) -> Result<(), Error> {
    let number = stage.strikes.count + 1;
    let folder = stage.cluster.folder.0.join(format!("r{number}"));
    let primary = ([127, 0, 0, 1], stage.cluster.redis_port).into();
    let link = Proxy::start(Address::Tcp(primary)).await;
    let link_port = link.address().to_string();
    let link_port = link_port.rsplit(':').next().unwrap_or_default().to_owned();
    let port = free_port();
    let follow = ["--replicaof", &format!("127.0.0.1 {link_port}")];
    let replica = start_redis(&folder, port, &follow).await?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while !command(&replica, &["INFO", "replication"])
        .await?
        .contains("master_link_status:up")
    {
        if Instant::now() > deadline {
            return Err("the replica did not catch up within 20 s".into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    stage.wait(100..500).await;
    link.set(NetFault::BlackHole).await;
    stage.wait(30..400).await;
    take_down(stage).await?;
    command(&replica, &["REPLICAOF", "NO", "ONE"]).await?;
    for proxy in &stage.cluster.redis_proxies {
        proxy.set_target(Address::Unix(replica.socket()));
        proxy.cut();
    }
    stage.cluster.redis = Some(replica);
    stage.cluster.redis_folder = folder;
    stage.cluster.redis_port = port;
    stage.healed(None);
    Ok(())
}
