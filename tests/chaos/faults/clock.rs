//! Clocks of instances are a day ahead or behind, and step. Redis and Postgres keep the time.

use super::*;
use crate::support::processes::{FAKETIME_MISSING, clock_settings, libfaketime};

const OFFSETS: [&str; 4] = ["+1d", "-1d", "+0", "+90s"];

fn offset_file(stage: &Stage<'_>, number: usize) -> PathBuf {
    stage.cluster.folder.0.join(format!("clock-{number}"))
}

pub fn prepare(stage: &mut Stage<'_>) -> Result {
    if libfaketime().is_none() {
        stage.miss(format!("{FAKETIME_MISSING}, so no clock was changed"));
        return Ok(());
    }
    for number in 0..stage.cluster.instances.len() {
        fs::write(offset_file(stage, number), OFFSETS[number % 2])?;
        start(stage, number)?;
    }
    Ok(())
}

fn start(stage: &mut Stage<'_>, number: usize) -> Result {
    let settings = clock_settings(&offset_file(stage, number));
    let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, &value[..])).collect();
    stage.kill(number);
    stage.cluster.instances[number].start(&settings)
}

/// Each offset once by a process that was born with it, then any.
pub async fn strike(stage: &mut Stage<'_>) -> Result {
    stage.wait(200..900).await;
    let number = stage.any_instance();
    let turn = OFFSETS.get(stage.strikes.count as usize);
    let offset = turn.unwrap_or(&OFFSETS[stage.random.index(OFFSETS.len())]);
    fs::write(offset_file(stage, number), offset)?;
    // The header `Date` stands still after a step back; a process born then shows its day again.
    if (turn.is_some() || stage.random.chance(0.25)) && libfaketime().is_some() {
        start(stage, number)?;
        let address = stage.cluster.instances[number].address;
        poll(SERVES_WITHIN, 20, async || Ok::<_, Error>(day_at(address).await)).await?;
    }
    for instance in &stage.cluster.instances {
        stage.reached.extend(day_at(instance.address).await);
    }
    Ok(())
}

/// The day in the header `Date` of an answer: "Sat, 21 Nov 2026 …". `None` if there is none.
async fn day_at(address: SocketAddr) -> Option<String> {
    let asked = client().get(format!("http://{address}/healthz"));
    let answer = asked.timeout(Duration::from_secs(2)).send().await.ok()?;
    let date = answer.headers().get("date")?.to_str().ok()?;
    Some(date.split_whitespace().take(4).collect::<Vec<_>>().join(" "))
}

pub fn verify(stage: &mut Stage<'_>) {
    let days = format!("days believed in: {:?}", stage.reached);
    if stage.strikes.missing.is_none() && stage.reached.len() < 3 {
        stage.miss(format!("too few {days}"));
    }
    stage.note(days);
}
