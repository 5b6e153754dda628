//! Instances come and go, in an orderly way and in the other, now and then all at once.

use super::*;

/// What the program promises: after SIGTERM it is gone by then.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// A process that has just started may not listen to signals yet, and has served nobody.
const JUST_STARTED: Duration = Duration::from_secs(3);

pub async fn come_and_go(stage: &mut Stage<'_>) -> Result {
    let count = stage.cluster.instances.len();
    let (first, going) = (stage.random.index(count), 1 + stage.random.index(count));
    let (mut killed, mut told) = (Vec::new(), Vec::new());
    for number in (first..first + going).map(|number| number % count) {
        stage.wait(0..250).await;
        if stage.random.chance(0.5) {
            stage.kill(number);
            killed.push(number);
        } else {
            let instance = &stage.cluster.instances[number];
            instance.signal(Signal::SIGTERM);
            told.push((number, instance.started.elapsed(), Instant::now()));
        }
    }
    stage.wait(50..700).await;
    for number in killed.into_iter().rev() {
        stage.start(number)?;
        stage.wait(0..200).await;
    }
    for (number, age, since) in told {
        until_gone(stage, number, age, since).await;
        stage.start(number)?;
    }
    stage.healed(None)
}

async fn until_gone(stage: &mut Stage<'_>, number: usize, age: Duration, since: Instant) {
    let limit = GONE_WITHIN * stage.plan.patience;
    let instance = &mut stage.cluster.instances[number];
    while instance.is_running() && since.elapsed() < limit {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let ended = instance.ended_by_itself.take();
    let by_default = ended.and_then(|status| status.signal()) == Some(Signal::SIGTERM as i32);
    let what = match ended {
        Some(status) if status.success() => {
            stage.reached.insert(format!("{number} ended in order"));
            return;
        }
        Some(_) if by_default && age < JUST_STARTED => return,
        Some(status) => format!("instance {number} ended with {status} after SIGTERM"),
        None => format!("instance {number} was still there {limit:?} after SIGTERM"),
    };
    instance.kill();
    stage.strikes.crashes.push(what);
}

pub fn verify(stage: &mut Stage<'_>) {
    let (kills, orderly) = (stage.strikes.kills, stage.reached.len());
    if kills == 0 || orderly == 0 {
        stage.miss(format!("{kills} were killed, {orderly} instances ended in order"));
    }
    stage.strikes.notes.extend(stage.reached.iter().cloned());
}
