//! Faults of the program's own processes.

use super::{Stage, redis};
use crate::{Error, instance::pid_of};
use nix::sys::signal::{Signal, kill as send_signal};
use std::{fs, ops::Range, time::Instant};

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

/// Leases, leadership and grace periods are over when it continues, and it does not know.
pub async fn stop_one(stage: &mut Stage<'_>, millis: Range<u64>) -> Result<(), Error> {
    let number = stage.random.index(stage.cluster.instances.len());
    let pid = stage.cluster.instances[number].pid();
    stand_still(stage, &Vec::from_iter(pid), millis).await;
    let number = stage.cluster.instances[number].number;
    stage.healed(Some(number));
    stage.wait(200..600).await;
    Ok(())
}

/// Longer than the program waits for anything: a minute for a statement and 65 s until Postgres counts
/// as silent, 20 s for late orders, 10 s for a batch of the writer.
const LONG: Range<u64> = 70_000..71_000;

/// The same fault for that long, in the middle of a load that goes on afterwards: those who stood
/// still, and those who gave them up, meet again.
pub async fn for_long(
    stage: &mut Stage<'_>,
    fault: impl AsyncFn(&mut Stage<'_>, Range<u64>) -> Result<(), Error>,
) -> Result<(), Error> {
    stage.wait(2_000..4_000).await;
    fault(stage, LONG).await?;
    stage.wait(28_000..29_000).await;
    Ok(())
}

/// SIGSTOP to all of them, in this order, a pause, and SIGCONT.
pub async fn stand_still(stage: &mut Stage<'_>, pids: &[u32], millis: Range<u64>) {
    for pid in pids {
        send_signal(pid_of(*pid), Signal::SIGSTOP).ok(); // a backend may have gone
    }
    let began = Instant::now();
    stage.wait(millis).await;
    let is_stopped = |pid: &u32| status_of(*pid).is_some_and(|(state, _)| state == "T");
    if pids.first().is_some_and(is_stopped) {
        let seconds = began.elapsed().as_secs_f64();
        (stage.reached).insert(format!("stood still for {seconds:.1} s"));
    }
    for pid in pids {
        send_signal(pid_of(*pid), Signal::SIGCONT).ok();
    }
}

/// Nobody let them go on, and nobody killed them.
pub fn verify_stop(stage: &mut Stage<'_>) {
    stage.strikes.notes.extend(stage.reached.iter().cloned());
    if stage.reached.is_empty() {
        stage.strikes.missing = Some("nobody stood still".to_owned());
    }
}

/// What /proc knows of a process: its state (`T`: stopped), and its parent.
pub fn status_of(pid: u32) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold spaces; the state and the parent follow it.
    let mut rest = stat.rsplit_once(')')?.1.split_whitespace();
    Some((rest.next()?.to_owned(), rest.next()?.parse().ok()?))
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
