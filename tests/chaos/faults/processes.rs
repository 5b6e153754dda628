//! Faults of the program's own processes.

use super::{Stage, points, redis};
use crate::{Error, instance::pid_of, look};
use nix::sys::signal::{Signal, kill as send_signal};
use std::{
    fs,
    ops::Range,
    time::{Duration, Instant},
};

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

/// Where it is worst to stand still: with rows locked that every writer of the sale needs, and with the
/// lock of the rebuild while nobody can buy.
const WORST: [&str; 2] = ["writer.counted", "rebuild.fenced"];

/// In how much time an instance comes to such a place; it takes some restarts of Redis to be elected.
const THERE_WITHIN: Duration = Duration::from_secs(20);

/// What nobody has to wait for, even so: an order until it is a row, and everybody until they can buy.
const WAITED_FOR: Duration = Duration::from_secs(30);

/// One instance stands still in the worst place for that long, and the others must go on without it.
pub async fn stop_one_for_long(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.wait(2_000..4_000).await;
    let point = WORST[usize::try_from(stage.strikes.count)? % WORST.len()];
    let number = stage.random.index(stage.cluster.instances.len());
    let before = points::fired(&stage.cluster.instances[number], point);
    points::restart(stage, number, &format!("{point}=pause:8000")).await?;
    let deadline = Instant::now() + THERE_WITHIN;
    let mut again = Instant::now();
    while points::fired(&stage.cluster.instances[number], point) == before {
        if Instant::now() > deadline {
            stage.strikes.missing = Some(format!("no instance came to {point}"));
            return Ok(());
        }
        if point.starts_with("rebuild.") && Instant::now() > again {
            redis::kill(stage).await?;
            again = Instant::now() + Duration::from_secs(2);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let pid = Vec::from_iter(stage.cluster.instances[number].pid());
    let began = halt(&pid);
    stage.wait(LONG).await;
    let direct = (stage.cluster.direct().await?, stage.cluster.redis()?.url());
    for late in look::left_waiting(direct, &stage.world, WAITED_FOR).await? {
        let what = format!("while instance {number} stood still at {point}, {late}");
        stage.strikes.crashes.push(what);
    }
    go_on(stage, &pid, began);
    stage.healed(Some(u8::try_from(number)?));
    stage.wait(28_000..29_000).await;
    Ok(())
}

/// SIGSTOP to all of them, in this order, a pause, and SIGCONT.
pub async fn stand_still(stage: &mut Stage<'_>, pids: &[u32], millis: Range<u64>) {
    let began = halt(pids);
    stage.wait(millis).await;
    go_on(stage, pids, began);
}

fn halt(pids: &[u32]) -> Instant {
    for pid in pids {
        send_signal(pid_of(*pid), Signal::SIGSTOP).ok(); // a backend may have gone
    }
    Instant::now()
}

fn go_on(stage: &mut Stage<'_>, pids: &[u32], began: Instant) {
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
