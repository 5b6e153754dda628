//! Faults of the network between the instances and the stores.

use super::{Fault, Stage};
use crate::{
    Error,
    support::proxy::{Counts, Fault as NetFault, Lost, Proxy},
};
use std::time::Duration;

fn proxies<'a>(stage: &'a Stage<'_>) -> impl Iterator<Item = &'a Proxy> {
    let cluster = &stage.cluster;
    cluster
        .redis_proxies
        .iter()
        .chain(&cluster.postgres_proxies)
}

/// One of the links at random; its number.
fn any_link(stage: &mut Stage<'_>) -> usize {
    let count = proxies(stage).count();
    stage.random.index(count)
}

fn link<'a>(stage: &'a Stage<'_>, number: usize) -> &'a Proxy {
    proxies(stage)
        .nth(number)
        .expect("the number was drawn among the proxies")
}

pub async fn cut(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.wait(5..150).await;
    let number = any_link(stage);
    if stage.random.chance(0.5) {
        link(stage, number).cut();
        return Ok(());
    }
    let after = stage.random.below(3_000);
    link(stage, number)
        .set(NetFault::CutRequest { after })
        .await;
    stage.wait(20..100).await;
    link(stage, number).set(NetFault::None).await;
    Ok(())
}

fn lose(which: Lost, to: &'static str) -> NetFault {
    NetFault::LoseReplies { which, to }
}

pub async fn lose_replies(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.wait(20..200).await;
    let number = any_link(stage);
    let fault = match stage.random.below(3) {
        0 => lose(Lost::Next(1), "FCALL"),
        1 => lose(Lost::Next(1), "COMMIT"),
        _ => lose(Lost::Share(0.2), ""),
    };
    link(stage, number).set(fault).await;
    stage.wait(50..300).await;
    link(stage, number).set(NetFault::None).await;
    Ok(())
}

pub async fn black_hole(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.wait(200..600).await;
    let number = any_link(stage);
    link(stage, number).set(NetFault::BlackHole).await;
    stage.wait(500..3_000).await;
    link(stage, number).set(NetFault::None).await;
    stage.healed(None);
    Ok(())
}

async fn everywhere(stage: &mut Stage<'_>, fault: NetFault) {
    for proxy in proxies(stage) {
        proxy.set(fault.clone()).await;
    }
}

pub async fn latency(stage: &mut Stage<'_>) -> Result<(), Error> {
    everywhere(stage, NetFault::Latency(Duration::from_millis(200))).await;
    stage.wait(1_500..2_500).await;
    Ok(())
}

pub async fn throttle(stage: &mut Stage<'_>) -> Result<(), Error> {
    let bytes_per_second = 20_000 + u32::try_from(stage.random.below(80_000))?;
    everywhere(stage, NetFault::Throttle { bytes_per_second }).await;
    stage.wait(1_500..2_500).await;
    Ok(())
}

/// One link becomes bad, in a way that the program can live with while something else happens.
pub async fn worsen(stage: &mut Stage<'_>) {
    let number = any_link(stage);
    let fault = match stage.random.below(3) {
        0 => NetFault::Latency(Duration::from_millis(20 + stage.random.below(80))),
        1 => NetFault::Throttle {
            bytes_per_second: 200_000,
        },
        _ => lose(Lost::Share(0.02), ""),
    };
    link(stage, number).set(fault).await;
}

/// All links are good again.
pub async fn mend(stage: &mut Stage<'_>) {
    everywhere(stage, NetFault::None).await;
}

/// The proxies have counted what they did.
pub fn verify(fault: Fault, stage: &mut Stage<'_>) {
    let mut sum = Counts::default();
    for proxy in proxies(stage) {
        let counts = proxy.counts();
        sum.cut += counts.cut;
        sum.lost_replies += counts.lost_replies;
        sum.swallowed_bytes += counts.swallowed_bytes;
        sum.delayed += counts.delayed;
    }
    let (what, count) = match fault {
        Fault::NetCut => ("connections were cut", sum.cut),
        Fault::NetLostReplies => ("replies were lost", sum.lost_replies),
        Fault::NetBlackHole => ("bytes were swallowed", sum.swallowed_bytes),
        _ => ("pieces were delayed", sum.delayed),
    };
    stage.strikes.notes.push(format!("{count} {what}"));
    if count == 0 {
        stage.strikes.missing = Some(format!("no {what}"));
    }
}
