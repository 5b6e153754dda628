//! B9: failover: the replica never saw the lock.

use super::{nodes::Node, prelude::*};
use locks::{MultiLock, Redlock, TokenLock};
use redis::cmd;

pub async fn play(stage: Stage) -> Result {
    // Replicas connect by TCP only.
    let port = free_port()?.to_string();
    let flags = ["--port", &port, "--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0"];
    let [first, second, _third] = stage.three_nodes(&flags.map(str::to_owned)).await?;
    failover(&stage, "failover", [&first, &second], &port).await?;
    failover(&stage, "fencing", [&first, &second], &port).await?;
    several(&stage, "multi-lock", &first, |lines| MultiLock::new(lines, LONG)).await?;
    several(&stage, "redlock", &second, |lines| Redlock::new(lines, LONG)).await
}

/// Alice has the lock of the primary, Bob that of the promoted replica.
async fn failover(
    stage: &Stage,
    act: &'static str,
    [primary, replica]: [&Node; 2],
    port: &str,
) -> Result {
    let [alice, bob] = stage.act(act, ["alice", "bob"]).await?;
    replicates(stage, replica, port).await?;
    let lock = TokenLock::new(alice.line_to("redis-1"), LONG).fenced();
    let hers = alice.takes(&lock, "acquire").await?;
    let her_number = number(stage, act, &alice, &hers).await?;
    if stage.options().is("replicated", "yes") {
        stage.until_there("redis-2", LOCK).await?;
        stage.happens("redis-2", "copied").await?;
    }
    let killed = primary.kill();
    stage.happens("redis-1", "crash").await?;
    let promoted: String = replica.hand.send(&follow("NO", "ONE")).await?;
    stage.happens("redis-2", "promote").with("REPLICAOF NO ONE", promoted).await?;

    let lock = TokenLock::new(bob.line_to("redis-2"), LONG).fenced();
    let his = bob.tries(&lock, "try").await?;
    if let Some(his) = &his {
        let his_number = number(stage, act, &bob, his).await?;
        stage.shop().sell_fenced(&bob, his_number, "bob-sells").await?;
    }
    stage.shop().sell_fenced(&alice, her_number, "sell").await?;
    stage.ends_by_rows(his.is_some(), "copied-in-time").await?;
    alice.leaves();
    bob.leaves();
    primary.until_back(killed).await
}

/// Of the lock, or, in the cure, of the row.
async fn number(
    stage: &Stage,
    act: &str,
    client: &Client,
    held: &Held<impl Protocol>,
) -> Result<u64> {
    match act {
        "fencing" => stage.shop().number(client, "number").await,
        _ => Ok(held.fencing().unwrap_or(0)),
    }
}

/// The replica follows, and then it does not any more, unless the lock is to reach it.
async fn replicates(stage: &Stage, replica: &Node, port: &str) -> Result {
    stage.show_only(&[("redis-1", LOCK), ("redis-2", LOCK)]);
    stage.show_shop();
    replica.hand.send::<()>(&follow("127.0.0.1", port)).await?;
    replica.until_synchronised().await?;
    shows_link(stage, replica).await?;
    if stage.options().is("replicated", "no") {
        // Nobody listens there: the link is down, and what the replica has stays.
        let told: String = replica.hand.send(&follow("127.0.0.1", "1")).await?;
        stage.plays("redis-2", "cut").with("REPLICAOF 127.0.0.1 1", told).await?;
    }
    Ok(())
}

fn follow(host: &str, port: &str) -> redis::Cmd {
    let mut command = cmd("REPLICAOF");
    command.arg(host).arg(port);
    command
}

async fn shows_link(stage: &Stage, replica: &Node) -> Result {
    let link = replica.info("replication", "master_link_status:").await?;
    stage.happens("redis-2", "replicate").with("INFO replication", link).await
}

fn free_port() -> Result<u16> {
    let listener =
        std::net::TcpListener::bind(("127.0.0.1", 0)).map_err(redis::RedisError::from)?;
    Ok(listener.local_addr().map_err(redis::RedisError::from)?.port())
}

/// Three independent nodes, of which one forgets.
async fn several<L: Lock + Clone>(
    stage: &Stage,
    act: &str,
    forgets: &Node,
    make: impl Fn(Vec<Line>) -> L,
) -> Result {
    let [alice, bob] = stage.act(act, ["alice", "bob"]).await?;
    stage.show_only(&NODES.map(|id| (id, LOCK)));
    let _hers = alice.must_hold(alice.asks(&make(alice.lines_to(&NODES)), "acquire").await?)?;
    forgets.restart().await?;
    stage.happens(forgets.id, "restart").await?;
    let _his = bob.asks(&make(bob.lines_to(&NODES)), "try").await??;
    stage.ends(stage.overlap())
}

const TOKEN_ACQUIRE: &str = "crates/locks/src/scripts/token_acquire.lua";

pub const LESSON: Lesson = Lesson {
    number: 9,
    id: "b09",
    needs: &[Need::RedisNodes(3)],
    options: &[choice("replicated", &["no", "yes"])],
    cast: &[ALICE, BOB, node("redis-1"), node("redis-2"), node("redis-3"), SHOP],
    acts: &[
        failure("failover", &[mark(TOKEN_ACQUIRE, "'SET'")]),
        cure("fencing", &[mark(SHOPPING, "sql.row(NUMBER")]),
        cure("multi-lock", &[mark("crates/locks/src/multi.rs", "nodes")]),
        cure("redlock", &[mark("crates/locks/src/redlock.rs", "nodes / 2 + 1")]),
    ],
};
