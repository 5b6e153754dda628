//! Faults of the network between the instances and the stores.

use super::*;
use crate::support::proxy::Counts;

fn any_link(stage: &mut Stage<'_>) -> usize {
    stage.random.index(stage.cluster.proxies().count())
}

async fn set(stage: &Stage<'_>, number: usize, fault: NetFault) {
    if let Some(proxy) = stage.cluster.proxies().nth(number) {
        proxy.set(fault).await;
    }
}

async fn disturb(stage: &mut Stage<'_>, fault: NetFault, millis: Range<u64>) {
    let number = any_link(stage);
    set(stage, number, fault).await;
    stage.wait(millis).await;
    set(stage, number, NetFault::None).await;
}

pub async fn everywhere(stage: &mut Stage<'_>, fault: NetFault) {
    for proxy in stage.cluster.proxies() {
        proxy.set(fault.clone()).await;
    }
}

pub async fn cut(stage: &mut Stage<'_>) -> Result {
    stage.wait(5..150).await;
    if stage.random.chance(0.5) {
        let number = any_link(stage);
        stage.cluster.proxies().nth(number).into_iter().for_each(Proxy::cut);
    } else {
        let after = stage.random.below(3_000);
        disturb(stage, NetFault::CutRequest { after }, 20..100).await;
    }
    Ok(())
}

pub async fn lose_replies(stage: &mut Stage<'_>) -> Result {
    stage.wait(20..200).await;
    let fault = match stage.random.below(3) {
        0 => NetFault::LoseReplies { which: Lost::Next(1), to: "FCALL" },
        1 => NetFault::LoseReplies { which: Lost::Next(1), to: "COMMIT" },
        _ => NetFault::LoseReplies { which: Lost::Share(0.2), to: "" },
    };
    disturb(stage, fault, 50..300).await;
    Ok(())
}

pub async fn black_hole(stage: &mut Stage<'_>) -> Result {
    stage.wait(200..600).await;
    disturb(stage, NetFault::BlackHole, 500..3_000).await;
    stage.healed(None)
}

pub async fn latency(stage: &mut Stage<'_>) -> Result {
    everywhere(stage, NetFault::Latency(Duration::from_millis(200))).await;
    stage.wait(1_500..2_500).await;
    Ok(())
}

pub async fn throttle(stage: &mut Stage<'_>) -> Result {
    let bytes_per_second = 20_000 + u32::try_from(stage.random.below(80_000))?;
    everywhere(stage, NetFault::Throttle { bytes_per_second }).await;
    stage.wait(1_500..2_500).await;
    Ok(())
}

pub async fn worsen(stage: &mut Stage<'_>) {
    let number = any_link(stage);
    let fault = match stage.random.below(3) {
        0 => NetFault::Latency(stage.random.millis(20..100)),
        1 => NetFault::Throttle { bytes_per_second: 200_000 },
        _ => NetFault::LoseReplies { which: Lost::Share(0.02), to: "" },
    };
    set(stage, number, fault).await;
}

pub fn verify(stage: &mut Stage<'_>, what: &str, counted: fn(Counts) -> u64) {
    let count: u64 = stage.cluster.proxies().map(|proxy| counted(proxy.counts())).sum();
    stage.note(format!("{count} {what}"));
    if count == 0 {
        stage.miss(format!("no {what}"));
    }
}
