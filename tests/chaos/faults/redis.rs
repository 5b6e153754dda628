//! Faults of Redis: it dies, loses data, or stands still.

use super::*;
use crate::cluster::start_redis;

const SOON: Duration = Duration::from_secs(20);

async fn restart(
    stage: &mut Stage<'_>,
    while_down: impl FnOnce(&mut Stage<'_>) -> Result,
) -> Result {
    stage.wait(200..900).await;
    stage.cluster.redis.kill();
    stage.strikes.kills += 1;
    while_down(stage)?;
    stage.cluster.redis.come_back().await?;
    stage.healed(None)
}

pub async fn kill(stage: &mut Stage<'_>) -> Result {
    restart(stage, |_| Ok(())).await
}

pub async fn restart_empty(stage: &mut Stage<'_>) -> Result {
    restart(stage, |stage| Ok(stage.cluster.redis.empty()?)).await
}

pub async fn restart_cut(stage: &mut Stage<'_>) -> Result {
    let cut = |stage: &mut Stage<'_>| {
        let (_, length) = stage.cluster.redis.last_increment()?;
        let kept = stage.random.below(length + 1);
        stage.note(format!("cut to {kept} of {length} bytes"));
        stage.cluster.redis.cut(kept)
    };
    restart(stage, cut).await
}

pub async fn flush(stage: &mut Stage<'_>) -> Result {
    stage.wait(300..1_200).await;
    stage.cluster.redis.ask::<String>(&["FLUSHALL"]).await?;
    stage.healed(None)
}

fn backup_of(stage: &Stage<'_>) -> PathBuf {
    stage.cluster.folder.0.join("redis-backup")
}

pub fn back_up(stage: &Stage<'_>) -> Result {
    Ok(stage.cluster.redis.back_up(&backup_of(stage))?)
}

pub async fn restore_backup(stage: &mut Stage<'_>) -> Result {
    stage.wait(200..600).await;
    restart(stage, |stage| Ok(stage.cluster.redis.restore(&backup_of(stage))?)).await?;
    until_approved(stage).await?;
    stage.wait(100..500).await;
    back_up(stage)
}

/// If Postgres does not approve it, the checkers will say what is wrong.
pub async fn until_approved(stage: &mut Stage<'_>) -> Result {
    let approved = async || Ok::<_, Error>(stage.cluster.is_approved().await?.then_some(()));
    if poll(SOON, 20, approved).await?.is_none() {
        stage.note("redis was not approved within 20 s".to_owned());
    }
    Ok(())
}

pub async fn stop(stage: &mut Stage<'_>, millis: Range<u64>) -> Result {
    stage.wait(200..700).await;
    let pid = stage.cluster.redis.pid().ok_or("redis does not run")?;
    processes::stand_still(stage, &[pid], millis).await;
    stage.healed(None)
}

/// The link to a replica breaks, the primary goes on and dies, and the replica takes its place.
pub async fn fail_over(stage: &mut Stage<'_>) -> Result {
    let number = stage.strikes.count + 1;
    let folder = stage.cluster.folder.0.join(format!("r{number}"));
    let link = Proxy::start(stage.cluster.redis.target()).await;
    let follow = ["--replicaof", &format!("127.0.0.1 {}", link.address.port())];
    let replica = start_redis(&folder, free_port(), &follow).await?;
    let linked = poll(SOON, 20, async || {
        let link = replica.info("replication", "master_link_status").await;
        Ok::<_, Error>((link.as_deref() == Some("up")).then_some(()))
    });
    linked.await?.ok_or("the replica did not catch up within 20 s")?;
    stage.wait(100..500).await;
    link.set(NetFault::BlackHole).await;
    stage.wait(30..400).await;
    stage.cluster.redis.kill();
    stage.strikes.kills += 1;
    replica.ask::<String>(&["REPLICAOF", "NO", "ONE"]).await?;
    for proxy in &stage.cluster.redis_proxies {
        proxy.lead_to(replica.target());
    }
    stage.cluster.redis = replica;
    stage.healed(None)
}
