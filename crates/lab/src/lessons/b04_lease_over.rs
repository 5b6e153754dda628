//! B4: even with a token: the lease is over, two hold the lock, both write.

use super::prelude::*;
use locks::TokenLock;

pub async fn play(stage: Stage) -> Result {
    long_pause(&stage, "both-write", |lock| lock, stage.options().is("fencing", "on")).await?;
    long_work(&stage).await?;
    long_pause(&stage, "watchdog-sleeps-too", TokenLock::renewed, false).await?;
    long_pause(&stage, "fencing", |lock| lock, true).await
}

/// Alice looks, stands still, writes; Bob comes in between, if he can.
async fn long_pause(
    stage: &Stage,
    act: &str,
    kind: impl Fn(TokenLock) -> TokenLock,
    fenced: bool,
) -> Result {
    let [alice, bob] = stage.act(act, ["alice", "bob"]).await?;
    stage.show_shop();
    if fenced {
        stage.show_only(&[(REDIS_NODE, LOCK), (REDIS_NODE, "lock:phone:fence")]);
    }
    let lock = |line, lease| {
        let lock = kind(TokenLock::new(line, lease));
        if fenced { lock.fenced() } else { lock }
    };
    let hers = alice.takes(&lock(alice.line(), stage.lease()), "acquire").await?;
    let seen = stage.shop().read(&alice, "read-stock").await?;
    alice.pauses(REDIS_NODE, "pause").await?;
    let his = bob.tries(&lock(bob.line(), LONG), "try").await?;
    if let Some(his) = &his {
        let seen = stage.shop().read(&bob, "read-stock").await?;
        stage.shop().sells(&bob, seen, his.fencing(), "bob-sells").await?;
    }
    stage.shop().sells(&alice, seen, hers.fencing(), "sell").await?;
    stage.ends_by_rows(his.is_some(), "alone").await
}

/// The work is long, but the process lives, and its watchdog with it.
async fn long_work(stage: &Stage) -> Result {
    let [alice, bob] = stage.act("watchdog", ["alice", "bob"]).await?;
    stage.show_shop();
    let lock = TokenLock::new(alice.line(), stage.lease()).renewed();
    let hers = alice.takes(&lock, "acquire").await?;
    // As many renewals as her work lasts, and two at least.
    let third = stage.lease().as_millis().max(3) / 3;
    for _ in 0..(stage.pause().as_millis() / third).clamp(2, 6) {
        if !alice.renews("renew").await? {
            break;
        }
    }
    let his = bob.tries(&TokenLock::new(bob.line(), LONG), "try").await?;
    let seen = stage.shop().read(&alice, "read-stock").await?;
    if his.is_some() {
        let seen = stage.shop().read(&bob, "read-stock").await?;
        stage.shop().sell(&bob, seen, "bob-sells").await?;
    }
    stage.shop().sell(&alice, seen, "sell").await?;
    let _ = alice.unlocks(hers, "unlock").await?;
    stage.ends(stage.overlap() || stage.shop().is_oversold().await?)
}

pub const LESSON: Lesson = Lesson {
    number: 4,
    id: "b04",
    needs: &[],
    options: &[
        whole("lease_ms", 600, 200, 3_000),
        whole("pause_ms", 800, 0, 5_000),
        choice("fencing", &["off", "on"]),
    ],
    cast: &[ALICE, BOB, REDIS, SHOP],
    acts: &[
        failure("both-write", &[mark(SHOPPING, "sql.run(SELL")]),
        cure("watchdog", &[mark("crates/locks/src/watchdog.rs", "sleep(pause)")]),
        flaw_of_the_cure("watchdog-sleeps-too", &[mark(SHOPPING, "sql.run(SELL")]),
        cure("fencing", &[mark("crates/locks/src/fencing.rs", "let written")]),
    ],
};
