//! Fail points: the program kills itself, fails, pauses or panics at each named place on an order's
//! way.

use super::Stage;
use crate::{Error, instance::Instance};
use flash_sale::fail_point::POINTS;
use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, Instant},
};

/// How long to wait for a point to be reached before it counts as not reached.
const REACHED_WITHIN: Duration = Duration::from_secs(8);

/// First every point at once with each action that a process survives; then `exit` at one point after
/// the other. Points of a rebuild are reached by a restart of Redis, which loses nothing: together
/// with a process that fails, a loss would be the one that is documented, and hide others.
pub async fn strike(stage: &mut Stage<'_>) -> Result<(), Error> {
    let turn = usize::try_from(stage.strikes.count)?;
    let number = turn % stage.cluster.instances.len();
    let actions = ["error*2", "pause:300*2", "panic*1"];
    match actions.get(turn) {
        Some(action) => {
            let all: Vec<String> = POINTS
                .iter()
                .map(|point| format!("{point}={action}"))
                .collect();
            restart(stage, number, &all.join(";")).await?;
            stage.wait(1_200..1_500).await;
            super::redis::kill(stage).await?;
            stage.wait(1_500..2_000).await;
            note_reached(stage, number, action);
        }
        None => {
            let point = POINTS[(turn - actions.len()) % POINTS.len()];
            restart(stage, number, &format!("{point}=exit")).await?;
            if point.starts_with("rebuild.") {
                super::redis::kill(stage).await?;
            }
            let deadline = Instant::now() + REACHED_WITHIN;
            let instance = &mut stage.cluster.instances[number];
            while instance.is_running() && Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            if !instance.is_running() {
                // It was told to.
                instance.ended_by_itself = None;
                stage.strikes.kills += 1;
            }
            note_reached(stage, number, "exit");
        }
    }
    restart(stage, number, "").await?;
    stage.healed(Some(u8::try_from(number)?));
    Ok(())
}

/// All points have had their turn with `exit`.
pub fn is_complete(stage: &Stage<'_>) -> bool {
    stage.strikes.count >= (POINTS.len() + 3) as u64
}

async fn restart(stage: &mut Stage<'_>, number: usize, points: &str) -> Result<(), Error> {
    let instance = &mut stage.cluster.instances[number];
    stage.strikes.kills += u64::from(instance.kill());
    instance.start(&[("FAIL_POINTS", points)])
}

/// The lines that the program writes when a point fires are what proves that it did.
fn note_reached(stage: &mut Stage<'_>, number: usize, action: &str) {
    let instance: &Instance = &stage.cluster.instances[number];
    let log = fs::read_to_string(instance.log()).unwrap_or_default();
    let action = action.split([':', '*']).next().unwrap_or(action);
    let fired = log.lines().filter(|line| line.contains("fail point"));
    let fired = fired.filter(|line| line.to_lowercase().contains(&format!("action={action}")));
    let points: BTreeSet<&str> = fired
        .filter_map(|line| line.split("point=\"").nth(1)?.split('"').next())
        .collect();
    for point in points {
        stage.reached.insert(format!("{point} {action}"));
    }
}

/// Which points were reached with which action, and which were not.
pub fn verify(stage: &mut Stage<'_>) {
    for action in ["exit", "error", "pause", "panic"] {
        let is_reached = |point: &&&str| stage.reached.contains(&format!("{point} {action}"));
        let (reached, missed): (Vec<&&str>, Vec<&&str>) = POINTS.iter().partition(is_reached);
        stage.strikes.notes.push(format!(
            "{action}: {} of {} points fired; not reached: {missed:?}",
            reached.len(),
            POINTS.len()
        ));
    }
    if stage.reached.is_empty() {
        stage.strikes.missing = Some("no fail point fired".to_owned());
    }
}
