//! Faults of the program's own processes.

use super::{Stage, redis};
use crate::Error;
use nix::sys::signal::Signal;

pub async fn kill_one(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.wait(50..500).await;
    let number = stage.random.index(stage.cluster.instances.len());
    let instance = &mut stage.cluster.instances[number];
    stage.strikes.kills += u64::from(instance.kill());
    stage.wait(0..200).await;
    let instance = &mut stage.cluster.instances[number];
    instance.start(&[])?;
    let (number, serves) = (instance.number, instance.role.serves());
    stage.healed(serves.then_some(number));
    Ok(())
}

pub async fn kill_all(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.wait(200..900).await;
    for instance in &mut stage.cluster.instances {
        stage.strikes.kills += u64::from(instance.kill());
    }
    stage.wait(0..300).await;
    for instance in &mut stage.cluster.instances {
        instance.start(&[])?;
    }
    stage.healed(None);
    Ok(())
}

/// Longer than every timeout of the program: leases, leadership and grace periods are over when it
/// continues, and it does not know.
pub async fn stop_one(stage: &mut Stage<'_>) -> Result<(), Error> {
    let number = stage.random.index(stage.cluster.instances.len());
    stage.cluster.instances[number].signal(Signal::SIGSTOP);
    stage.wait(3_000..4_500).await;
    stage.cluster.instances[number].signal(Signal::SIGCONT);
    let number = stage.cluster.instances[number].number;
    stage.healed(Some(number));
    stage.wait(200..600).await;
    Ok(())
}

pub async fn kill_everything(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.wait(300..1_000).await;
    for instance in &mut stage.cluster.instances {
        stage.strikes.kills += u64::from(instance.kill());
    }
    // Both are started again by their supervisors.
    stage.cluster.redis()?.kill();
    stage.cluster.kill_postgres()?;
    stage.strikes.kills += 2;
    for instance in &mut stage.cluster.instances {
        instance.start(&[])?;
    }
    stage.cluster.redis()?.wait_ready().await?;
    stage.cluster.until_postgres_is_back().await?;
    stage.tend()?;
    stage.healed(None);
    Ok(())
}

/// An instance sleeps while Redis loses everything and the others rebuild it; then it goes on with
/// what it believed.
pub async fn stale(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.wait(100..400).await;
    let number = stage.random.index(stage.cluster.instances.len());
    stage.cluster.instances[number].signal(Signal::SIGSTOP);
    let rebuilt = async {
        redis::restart_empty(stage).await?;
        redis::until_approved(stage).await
    };
    let rebuilt = rebuilt.await;
    stage.cluster.instances[number].signal(Signal::SIGCONT);
    let number = stage.cluster.instances[number].number;
    stage.healed(Some(number));
    stage.wait(100..400).await;
    rebuilt
}
