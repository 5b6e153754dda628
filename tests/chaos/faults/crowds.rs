//! Faults that clients are: too many of them, idle ones, slow ones, and those that hang up.

use super::*;
use crate::support::driver::shopper::Shopper;

const CROWD: u16 = 1_000;

/// More buyers than the queues take: 503 or 429 for them, and service as before when they go.
pub async fn overload(stage: &mut Stage<'_>) -> Result {
    let until = Instant::now() + stage.random.millis(1_000..2_000);
    let mut crowd = JoinSet::new();
    for number in 0..CROWD {
        crowd.spawn(Shopper::new(&stage.world, 20_000 + number, None).run(Some(until)));
    }
    crowd.join_all().await;
    stage.healed(None)?;
    stage.wait(300..700).await;
    Ok(())
}

const IDLE: usize = 1_000;
const SLOW: usize = 100;
const SUBSCRIBERS: usize = 100;

/// Connections that say nothing, never end their request, or never read; then all hang up.
pub async fn nuisances(stage: &mut Stage<'_>) -> Result {
    let sale = stage.world.sales.first().ok_or("a run without sales")?.id;
    let slow = [
        "GET /api/v1/sales HTTP/1.1\r\nHost: slow\r\nX-Slow: ".to_owned(),
        format!(
            "POST /api/v1/sales/{sale}/orders HTTP/1.1\r\nHost: slow\r\nContent-Length: 10\r\n\r\n"
        ),
    ];
    let subscribe = format!("GET /api/v1/sales/{sale}/events HTTP/1.1\r\nHost: listener\r\n\r\n");
    let mut open = Vec::new();
    for number in 0..IDLE + SLOW + SUBSCRIBERS {
        let address = stage.world.addresses[number % stage.world.addresses.len()];
        let connected = tokio::time::timeout(Duration::from_secs(2), TcpStream::connect(address));
        let Ok(Ok(mut stream)) = connected.await else { continue };
        let beginning = match number.checked_sub(IDLE) {
            None => "",
            Some(number) if number < SLOW => &slow[number % 2],
            Some(_) => &subscribe,
        };
        // A server that has hung up already has defended itself.
        stream.write_all(beginning.as_bytes()).await.ok();
        open.push((number, stream));
    }
    let is_slow = |number: usize| (IDLE..IDLE + SLOW).contains(&number);
    for _ in 0..10 {
        stage.wait(80..120).await;
        for (_, stream) in open.iter_mut().filter(|(number, _)| is_slow(*number)) {
            stream.write_all(b"z").await.ok();
        }
    }
    let count = open.len();
    drop(open);
    stage.note(format!("{count} nuisances connected"));
    if count < 500 {
        stage.miss(format!("only {count} nuisances connected"));
    }
    stage.healed(None)
}
