//! Faults that clients are: too many of them, idle ones, slow ones, and those that hang up.

use super::Stage;
use crate::{Error, shoppers::Client};
use std::time::{Duration, Instant};
use tokio::{io::AsyncWriteExt, net::TcpStream, task::JoinSet};

/// Clients of one wave; each has a connection to every instance.
const CROWD: u16 = 1_000;

/// Far more buyers at once than the queues take. They may hear 503 or 429, and nothing else that the
/// contract does not know; the moment they go, the others are served as before.
pub async fn overload(stage: &mut Stage<'_>) -> Result<(), Error> {
    let until = Instant::now() + stage.random.millis(1_000..2_000);
    let mut crowd = JoinSet::new();
    for number in 0..CROWD {
        crowd.spawn(Client::new(&stage.world, 20_000 + number).run_until(until));
    }
    while let Some(client) = crowd.join_next().await {
        stage.operations.append(&mut client?);
    }
    stage.healed(None);
    stage.wait(300..700).await;
    Ok(())
}

const IDLE: usize = 1_000;
const SLOW: usize = 100;
const SUBSCRIBERS: usize = 100;

/// Connections that say nothing, that never end their request, that listen to events and never read;
/// then all hang up at once. (The ordinary load clicks twice and hangs up all the time.)
pub async fn nuisances(stage: &mut Stage<'_>) -> Result<(), Error> {
    let sale = stage.world.sales.first().ok_or("a run without sales")?.id;
    let buy = format!("POST /api/v1/sales/{sale}/orders HTTP/1.1\r\n");
    let beginnings = [
        "GET /api/v1/sales HTTP/1.1\r\nHost: slow\r\nX-Slow: ".to_owned(),
        format!("{buy}Host: slow\r\nContent-Length: 10\r\n\r\n"),
        format!("GET /api/v1/sales/{sale}/events HTTP/1.1\r\nHost: listener\r\n\r\n"),
    ];
    let mut open = Vec::new();
    for number in 0..IDLE + SLOW + SUBSCRIBERS {
        let address = stage.world.addresses[number % stage.world.addresses.len()];
        let connected = tokio::time::timeout(Duration::from_secs(2), TcpStream::connect(address));
        let Ok(Ok(mut stream)) = connected.await else {
            continue;
        };
        let beginning = match number.checked_sub(IDLE) {
            None => None,
            Some(slow) if slow < SLOW => Some(&beginnings[slow % 2]),
            Some(_) => Some(&beginnings[2]),
        };
        if let Some(beginning) = beginning {
            // A server that has hung up already has defended itself.
            stream.write_all(beginning.as_bytes()).await.ok();
        }
        open.push((number, stream));
    }
    for _ in 0..10 {
        stage.wait(80..120).await;
        let slow = open
            .iter_mut()
            .filter(|(number, _)| (IDLE..IDLE + SLOW).contains(number));
        for (_, stream) in slow {
            stream.write_all(b"z").await.ok();
        }
    }
    stage.nuisances += open.len();
    drop(open);
    stage.healed(None);
    Ok(())
}
