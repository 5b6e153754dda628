//! B10: redlock: a node restarts empty, or the answers come too late: a majority twice.

use super::{nodes::Node, prelude::*};
use locks::Redlock;
use redis::{RedisError, cmd};

pub async fn play(stage: Stage) -> Result {
    let [_first, second, _third] = stage.three_nodes(&[]).await?;
    if stage.options().is("restart", "delayed") {
        stays_away(&stage, "restarts-empty", &second).await?;
    } else {
        restarts_empty(&stage, &second).await?;
    }
    stays_away(&stage, "stays-away", &second).await?;
    clock_jumps(&stage, &second).await?;
    counts_only(&stage).await?;
    checks_validity(&stage).await
}

async fn restarts_empty(stage: &Stage, second: &Node) -> Result {
    let [alice, bob] = opens(stage, "restarts-empty").await?;
    let _hers = takes_two_of_three(&alice, LONG).await?;
    second.restart().await?;
    stage.happens("redis-2", "restart").await?;
    let _his = bob.asks(&redlock(&bob, LONG), "try").await??;
    stage.ends(stage.overlap())
}

async fn stays_away(stage: &Stage, act: &str, second: &Node) -> Result {
    let [alice, bob] = opens(stage, act).await?;
    let hers = takes_two_of_three(&alice, stage.lease()).await?;
    let before = second.kill();
    stage.plays("redis-2", "stays-away").await?;
    let trying = bob.acquires(&redlock(&bob, LONG), ZERO);
    bob.at("redis-2").fails("no-answer").await?;
    bob.at("redis-1").goes("try").await?;
    bob.at("redis-3").goes("try").await?;
    // A minority that is taken for a majority has nothing to give back.
    if trying.goes_on().await? {
        for _ in 0..3 {
            bob.at("redis-2").fails("no-release").await?;
        }
    }
    if trying.rest("give-back").await??.held().is_some() {
        second.until_back(before).await?;
        return stage.ends(stage.overlap());
    }
    alice.loses(&hers).await?;
    stage.until_gone("redis-1", LOCK).await?;
    second.until_back(before).await?;
    stage.happens("alice", "lost").await?;
    let _his = bob.asks(&redlock(&bob, LONG), "try-again").await??;
    stage.ends(stage.overlap())
}

/// No server's clock can be set here. The director ends the key early on one node instead: to its
/// clients that is the same.
async fn clock_jumps(stage: &Stage, second: &Node) -> Result {
    let [alice, bob] = opens(stage, "clock-jumps").await?;
    let _hers = takes_two_of_three(&alice, LONG).await?;
    if stage.options().is("clock", "jumps") {
        let ended: i64 = second.hand.send(cmd("PEXPIRE").arg(stage.key(LOCK)).arg(0)).await?;
        let (command, reply) = (format!("PEXPIRE {LOCK} 0"), format!("(integer) {ended}"));
        stage.plays("redis-2", "clock-jumps").with(command, reply).await?;
    }
    let _his = bob.asks(&redlock(&bob, LONG), "try").await??;
    stage.ends(stage.overlap())
}

async fn counts_only(stage: &Stage) -> Result {
    let [alice, bob] = opens(stage, "counts-only").await?;
    let lines = alice.lines_to(&["redis-1", "redis-3", "redis-2"]);
    let lease = locks::wire::millis(stage.lease());
    let taking = alice.does(acquire_carelessly(lines, stage.key(LOCK), lease));
    slow_network(stage, &alice).await?;
    alice.believes(taking.last("second-answer").await??);
    let _his = bob.asks(&redlock(&bob, LONG), "try").await??;
    stage.ends(stage.overlap())
}

async fn checks_validity(stage: &Stage) -> Result {
    let [alice, bob] = opens(stage, "checks-validity").await?;
    let taking = alice.acquires(&redlock(&alice, stage.lease()), ZERO);
    slow_network(stage, &alice).await?;
    let _hers = taking.rest_or_gives_back("second-answer").await??;
    let _his = bob.asks(&redlock(&bob, LONG), "try").await??;
    stage.ends(stage.overlap())
}

/// Redis 1 answers, Redis 3's reply is lost, and before Redis 2 is asked the leases are over.
async fn slow_network(stage: &Stage, alice: &Client) -> Result {
    alice.at("redis-1").goes("first").await?;
    alice.at("redis-3").loses_reply("reply-lost").await?;
    alice.stands().await?;
    alice.pauses("redis-1", "slow").await?;
    if stage.pause() > stage.lease() {
        stage.until_gone("redis-3", LOCK).await?;
    }
    Ok(())
}

async fn opens(stage: &Stage, act: &str) -> Result<[Client; 2]> {
    let clients = stage.act(act, ["alice", "bob"]).await?;
    stage.show_only(&NODES.map(|id| (id, LOCK)));
    Ok(clients)
}

/// Redis 3 cannot be reached, so her majority is Redis 1 and 2.
async fn takes_two_of_three(alice: &Client, lease: Duration) -> Result<Held<Redlock>> {
    let taking = alice.acquires(&redlock(alice, lease), ZERO);
    alice.at("redis-3").fails("unreachable").await?;
    alice.at("redis-1").goes("acquire").await?;
    let hers = taking.at("redis-2").last("majority").await?;
    alice.must_hold(hers)
}

fn redlock(client: &Client, lease: Duration) -> Redlock {
    Redlock::new(client.lines_to(&NODES), lease)
}

/// The failing variant: a majority, whenever it came.
async fn acquire_carelessly(
    nodes: Vec<Line>,
    name: String,
    lease_ms: u64,
) -> Result<bool, RedisError> {
    let mut taken = 0;
    for node in &nodes {
        let mut set = cmd("SET");
        set.arg(&name).arg(node.unique_token()).arg("NX").arg("PX").arg(lease_ms);
        let answer: Result<Option<String>, RedisError> = node.send(&set).await;
        taken += usize::from(matches!(answer, Ok(Some(_))));
    }
    tracing::trace!(taken, "counted");
    //= FLAW Answers are counted, not the time: the first lease may be over by the last answer.
    Ok(taken > nodes.len() / 2)
}

const MAJORITY: Mark = mark("crates/locks/src/redlock.rs", "nodes / 2 + 1");

pub const LESSON: Lesson = Lesson {
    number: 10,
    id: "b10",
    needs: &[Need::RedisNodes(3)],
    options: &[
        LEASE_MS,
        PAUSE_MS,
        choice("restart", &["at-once", "delayed"]),
        choice("clock", &["jumps", "steady"]),
    ],
    cast: &[ALICE, BOB, node("redis-1"), node("redis-2"), node("redis-3")],
    acts: &[
        failure("restarts-empty", &[MAJORITY]),
        cure("stays-away", &[MAJORITY]),
        failure("clock-jumps", &[MAJORITY]),
        failure("counts-only", &[mark(file!(), "nodes.len() / 2")]),
        cure("checks-validity", &[mark("crates/locks/src/driver.rs", "Hold::since(")]),
    ],
};
