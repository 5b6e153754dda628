//! Faults of the program's own processes.

use super::*;

pub async fn kill_one(stage: &mut Stage<'_>) -> Result {
    stage.wait(50..500).await;
    let number = stage.any_instance();
    stage.kill(number);
    stage.wait(0..200).await;
    stage.start(number)?;
    let instance = &stage.cluster.instances[number];
    stage.healed(instance.serves().then_some(instance.number))
}

pub async fn kill_all(stage: &mut Stage<'_>) -> Result {
    stage.wait(200..900).await;
    stage.kill_all();
    stage.wait(0..300).await;
    (0..stage.cluster.instances.len()).try_for_each(|number| stage.start(number))?;
    stage.healed(None)
}

/// Leases, leadership and grace periods are over when it continues, and it does not know.
pub async fn stop_one(stage: &mut Stage<'_>) -> Result {
    let number = stage.any_instance();
    let pids = stage.cluster.instances[number].pids();
    stand_still(stage, &pids, 3_000..4_500).await;
    stage.healed(Some(u8::try_from(number)?))?;
    stage.wait(200..600).await;
    Ok(())
}

/// Longer than the program waits for anything: 65 s until Postgres counts as silent.
const LONG: Range<u64> = 70_000..71_000;

/// Processes that stood still, and those that gave them up, meet again under load.
pub async fn for_long(
    stage: &mut Stage<'_>,
    fault: impl AsyncFn(&mut Stage<'_>, Range<u64>) -> Result,
) -> Result {
    stage.wait(2_000..4_000).await;
    fault(stage, LONG).await?;
    stage.wait(28_000..29_000).await;
    Ok(())
}

/// With rows locked that every writer of the sale needs; with the lock of the rebuild.
const WORST: [&str; 2] = ["writer.counted", "rebuild.postgres_fenced"];

/// It takes some restarts of Redis to be elected.
const THERE_WITHIN: Duration = Duration::from_secs(20);

/// Nobody waits longer until an order is a row, or until somebody can buy.
const WAITED_FOR: Duration = Duration::from_secs(30);

/// One instance stands still in the worst place, and the others must go on without it.
pub async fn stop_in_the_worst_place(stage: &mut Stage<'_>, millis: Range<u64>) -> Result {
    let point = WORST[usize::try_from(stage.strikes.count)? % WORST.len()];
    let number = stage.any_instance();
    let fired = |stage: &Stage<'_>| {
        let all = points::fired(&stage.cluster.instances[number]);
        all.iter().filter(|fired| *fired == point).count()
    };
    let before = fired(stage);
    points::restart(stage, number, &format!("{point}=pause:8000"))?;
    let mut again = Instant::now();
    let is_there = poll::<_, Error>(THERE_WITHIN, 5, async || {
        if fired(stage) > before {
            return Ok(Some(()));
        }
        if point.starts_with("rebuild.") && Instant::now() > again {
            redis::kill(stage).await?;
            again = Instant::now() + Duration::from_secs(2);
        }
        Ok(None)
    });
    if is_there.await?.is_none() {
        stage.miss(format!("no instance came to {point}"));
        return Ok(());
    }
    let pids = stage.cluster.instances[number].pids();
    let began = Instant::now();
    signal(&pids, Signal::SIGSTOP);
    stage.wait(millis).await;
    for late in left_waiting(stage).await? {
        let what = format!("while instance {number} stood still at {point}, {late}");
        stage.strikes.crashes.push(what);
    }
    go_on(stage, &pids, began);
    stage.healed(Some(u8::try_from(number)?))
}

/// Orders that are no rows yet, and everybody, if the first sale, which has plenty, sold nothing.
async fn left_waiting(stage: &Stage<'_>) -> Result<Vec<String>> {
    let world: &World = &stage.world;
    let mut found = Vec::new();
    let first = world.sales.first().ok_or("a run without sales")?.id;
    let newest: Option<f64> = sqlx::query_scalar(
        "SELECT extract(epoch FROM now() - max(created_at))::float8 FROM orders WHERE sale_id = $1",
    )
    .bind(first)
    .fetch_one(&mut stage.cluster.postgres().await?)
    .await?;
    let newest = newest.unwrap_or(f64::INFINITY);
    if newest > WAITED_FOR.as_secs_f64() {
        found.push(format!("the newest order of sale {first} in postgres was {newest:.0} s old"));
    }
    let mut redis = stage.cluster.redis.connection().await?;
    for sale in world.sales.iter().map(|sale| sale.id) {
        let log = format!("{{sale:{sale}}}:log");
        let oldest: StreamRangeReply = redis.xrange_count(log, "-", "+", 1).await?;
        let now: (u64, u64) = ::redis::cmd("TIME").query_async(&mut redis).await?;
        let waits = oldest.ids.first().and_then(|entry| {
            let millis: u64 = entry.id.split('-').next()?.parse().ok()?;
            Some(Duration::from_millis((now.0 * 1_000).saturating_sub(millis)))
        });
        if let Some(waits) = waits.filter(|waits| *waits > WAITED_FOR) {
            found.push(format!("an order of sale {sale} has waited for {waits:.0?} to be written"));
        }
    }
    Ok(found)
}

pub async fn stand_still(stage: &mut Stage<'_>, pids: &[u32], millis: Range<u64>) {
    let began = Instant::now();
    signal(pids, Signal::SIGSTOP);
    stage.wait(millis).await;
    go_on(stage, pids, began);
}

fn go_on(stage: &mut Stage<'_>, pids: &[u32], began: Instant) {
    let is_stopped = |pid: &u32| status_of(*pid).is_some_and(|(state, _)| state == "T");
    if pids.first().is_some_and(is_stopped) {
        let seconds = began.elapsed().as_secs_f64();
        (stage.reached).insert(format!("stood still for {seconds:.1} s"));
    }
    signal(pids, Signal::SIGCONT);
}

pub fn verify_stop(stage: &mut Stage<'_>) {
    stage.strikes.notes.extend(stage.reached.iter().cloned());
    if stage.reached.is_empty() {
        stage.miss("nobody stood still");
    }
}

pub async fn kill_everything(stage: &mut Stage<'_>) -> Result {
    stage.wait(300..1_000).await;
    stage.kill_all();
    stage.cluster.redis.kill();
    // It is started again by its supervisor.
    stage.cluster.postgres.kill();
    stage.strikes.kills += 2;
    (0..stage.cluster.instances.len()).try_for_each(|number| stage.start(number))?;
    stage.cluster.redis.come_back().await?;
    stage.cluster.until_postgres_is_back().await?;
    stage.tend()?;
    stage.healed(None)
}

/// An instance sleeps while Redis loses everything and is rebuilt, and goes on with its beliefs.
pub async fn stale(stage: &mut Stage<'_>) -> Result {
    stage.wait(100..400).await;
    let number = stage.any_instance();
    stage.cluster.instances[number].signal(Signal::SIGSTOP);
    let rebuilt = match redis::restart_empty(stage).await {
        Ok(()) => redis::until_approved(stage).await,
        failed => failed,
    };
    stage.cluster.instances[number].signal(Signal::SIGCONT);
    stage.healed(Some(u8::try_from(number)?))?;
    stage.wait(100..400).await;
    rebuilt
}

/// What the program promises: after SIGTERM it is gone by then.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// A process that has just started may not listen to signals yet, and has served nobody.
const JUST_STARTED: Duration = Duration::from_secs(3);

/// In an orderly way and in the other, now and then all at once.
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
    let limit = GONE_WITHIN * stage.plan.slack;
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
        Some(_) if by_default && age < JUST_STARTED * stage.plan.slack => return,
        Some(status) => format!("instance {number} ended with {status} after SIGTERM"),
        None => format!("instance {number} was still there {limit:?} after SIGTERM"),
    };
    instance.kill();
    stage.strikes.crashes.push(what);
}

/// So far all were killed, or all were told.
pub fn went_one_way(stage: &Stage<'_>) -> bool {
    stage.strikes.kills == 0 || stage.reached.is_empty()
}

pub fn verify_come_and_go(stage: &mut Stage<'_>) {
    let (kills, orderly) = (stage.strikes.kills, stage.reached.len());
    if went_one_way(stage) {
        stage.miss(format!("{kills} were killed, {orderly} instances ended in order"));
    }
    stage.strikes.notes.extend(stage.reached.iter().cloned());
}
