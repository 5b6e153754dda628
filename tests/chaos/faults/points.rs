//! Fail points: the program ends at each place on an order's way (else: proof/faults).

use super::*;
use crate::support::driver::admin;
use crate::support::plant::REFUSE_SOME_USERS;
use flash_sale::{admission::ids, fail_point::POINTS};

/// No trial lives that long or has a room: tests/it/eviction.rs, proof/faults/fail_points.rs.
const ELSEWHERE: &[&str] = &["room.joining", "room.advanced", "eviction.deciding"];

static HERE: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| POINTS.iter().copied().filter(|point| !ELSEWHERE.contains(point)).collect());

const REACHED_WITHIN: Duration = Duration::from_secs(8);

pub const EXIT: &str = "exit";

const MORE_TURNS: usize = 12;

const COMPLETE_FROM: Duration = Duration::from_secs(15);

const CLIENT: u16 = 30_000;
const SALE: u8 = 0;

pub async fn prepare(stage: &mut Stage<'_>) -> Result {
    stage.cluster.postgres().await?.execute(REFUSE_SOME_USERS).await?;
    Ok(())
}

/// With loss of data a process that fails would be the documented loss, which hides others.
pub async fn strike(stage: &mut Stage<'_>) -> Result {
    let turn = usize::try_from(stage.strikes.count)?;
    let number = turn % stage.cluster.instances.len();
    exit(stage, number, point_of(stage, turn)).await
}

/// An instance ends at a point, and is started again.
pub async fn exit(stage: &mut Stage<'_>, number: usize, point: &str) -> Result {
    restart(stage, number, &format!("{point}=exit"))?;
    let deadline = Instant::now() + REACHED_WITHIN;
    while stage.cluster.instances[number].is_running() && Instant::now() < deadline {
        provoke(stage, number, point).await?;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let instance = &mut stage.cluster.instances[number];
    stage.reached.extend(fired(instance));
    if !instance.is_running()
        && let Some(status) = instance.ended_by_itself.take()
    {
        match status.signal() {
            Some(9) => stage.strikes.kills += 1,
            _ => stage.note(format!("instance {number} ended ({status}) on its way to {point}")),
        }
    }
    restart(stage, number, "")?;
    stage.healed(Some(u8::try_from(number)?))
}

fn point_of(stage: &Stage<'_>, turn: usize) -> &'static str {
    let missed = missed(stage);
    match turn.checked_sub(HERE.len()) {
        Some(again) if !missed.is_empty() => missed[again % missed.len()],
        _ => HERE[turn % HERE.len()],
    }
}

fn missed(stage: &Stage<'_>) -> Vec<&'static str> {
    HERE.iter().copied().filter(|point| !stage.reached.contains(*point)).collect()
}

/// Until each point has had its turn, and those that were missed another.
pub fn is_due(stage: &Stage<'_>) -> bool {
    let turns = usize::try_from(stage.strikes.count).unwrap_or(usize::MAX);
    let more = if missed(stage).is_empty() { 0 } else { MORE_TURNS };
    stage.plan.length > COMPLETE_FROM && turns < HERE.len() + more
}

/// Makes a process come by a point where the load alone rarely or never leads it.
async fn provoke(stage: &mut Stage<'_>, number: usize, point: &str) -> Result {
    match point {
        "writer.readmitting" | "writer.readmitted" => {
            plant_late_order(stage).await?;
            stage.wait(250..350).await;
        }
        "writer.rejecting" | "writer.rejected" => buy_refused(stage, number).await?,
        // No shopper knows it. It must be in Redis in the end, even if its creator died before.
        "sale.stored" => {
            let body = json!({"title": "on the way", "price_cents": 100, "stock": 10});
            admin(stage.world.addresses[number], "sales", Some(body)).await.ok();
        }
        "sale.changed" | "stock.claimed" | "stock.taken" => {
            let (operator, less) = (Buyer::operator(SALE), Kind::AddStock(-1));
            Client::new(&stage.world, u16::MAX).ask(&operator, less, NO_ORDER, number).await;
        }
        // Any instance may be elected: perhaps the other one, and then there is a next time.
        _ if point.starts_with("rebuild.") => {
            redis::kill(stage).await?;
            stage.wait(600..900).await;
        }
        _ => return Ok(()),
    }
    stage.wait(10..30).await;
    Ok(())
}

/// Postgres refuses this user's orders: it is accepted, and ends as `rejected`.
async fn buy_refused(stage: &mut Stage<'_>, number: usize) -> Result {
    let buyer = Buyer::new(&stage.world, SALE);
    sqlx::query("INSERT INTO refused VALUES ($1)")
        .bind(user_id(stage.world.seed, buyer.user).uuid())
        .execute(&mut stage.cluster.postgres().await?)
        .await?;
    Client::new(&stage.world, CLIENT).ask(&buyer, Kind::Buy, NO_ORDER, number).await;
    Ok(())
}

/// Late orders are else in memory only, and may be lost; here the log has it: nothing excuses it.
async fn plant_late_order(stage: &mut Stage<'_>) -> Result {
    /// Only if Redis has the sale at this moment. KEYS: state, log. ARGV: the entry's fields.
    const PLANT: &str = "
        if redis.call('HEXISTS', KEYS[1], 'epoch') == 0 then return 0 end
        redis.call('XADD', KEYS[2], '*', 'm', ARGV[1], 'o', ARGV[2])
        redis.call('HINCRBY', KEYS[1], 'pending', 1)
        redis.call('HINCRBY', KEYS[1], 'change', 1)
        return 1";
    let client = Client::new(&stage.world, CLIENT);
    let (world, buyer) = (&client.world, Buyer::new(&client.world, SALE));
    let sale = world.sales[usize::from(SALE)].id;
    let now = OffsetDateTime::now_utc();
    let order = ids::encode(now.unix_timestamp(), 3_500_000_000 + buyer.user);
    let order = order.ok_or("no id for now")?.get();
    let header = format!("0 {} 0", now.unix_timestamp_nanos() / 1_000_000);
    let mut entry = user_id(world.seed, buyer.user).as_bytes().to_vec();
    entry.extend(order.to_be_bytes());
    entry.extend([0; 9]); // no idempotency key, the first slot
    let invoked = world.now();
    let planted: i64 = ::redis::Script::new(PLANT)
        .key(format!("{{sale:{sale}}}"))
        .key(format!("{{sale:{sale}}}:log"))
        .arg(header)
        .arg(entry)
        .invoke_async(&mut stage.cluster.redis.connection().await?)
        .await?;
    if planted == 1 {
        // From here on it is an order that somebody was promised.
        client.note(&buyer, Kind::Buy, usize::MAX, invoked, (Answer::Replayed, order));
    }
    Ok(())
}

pub fn restart(stage: &mut Stage<'_>, number: usize, points: &str) -> Result {
    stage.kill(number);
    stage.cluster.instances[number].start(&[("FAIL_POINTS", points)])
}

/// The points of the lines that the program writes when one fires: what proves that it did.
pub fn fired(instance: &Instance) -> Vec<String> {
    let log = fs::read_to_string(instance.log()).unwrap_or_default();
    let lines = log.lines().filter(|line| line.contains("fail point"));
    let points = lines.filter_map(|line| line.split("point=\"").nth(1)?.split('"').next());
    points.map(str::to_owned).collect()
}

pub fn verify(stage: &mut Stage<'_>) {
    let (all, missed) = (HERE.len(), missed(stage));
    let fired = all - missed.len();
    stage.note(format!("{EXIT}: {fired} of {all} points fired; not reached: {missed:?}"));
    if stage.reached.is_empty() {
        stage.miss("no fail point fired");
    } else if stage.plan.length > COMPLETE_FROM && !missed.is_empty() {
        stage.miss(format!("no process ended at {missed:?}"));
    }
}
