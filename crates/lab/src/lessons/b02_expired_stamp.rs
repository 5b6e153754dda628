//! B2: the expiry time is the value; two see it expired; GETSET decides, and what that leaves open.

use super::prelude::*;
use locks::{SetnxGetset, TokenLock, setnx_getset::Takeover};

pub async fn play(stage: Stage) -> Result<(), Trouble> {
    both_take_over(&stage, "del-and-setnx", Takeover::DeleteAndSetnx).await?;
    both_take_over(&stage, "getset", Takeover::Getset).await?;
    overwritten(&stage).await?;
    clock_skew(&stage).await?;
    server_clock(&stage).await
}

async fn both_take_over(stage: &Stage, act: &str, how: Takeover) -> Result<(), Trouble> {
    stage.act(act).await?;
    let [bob, carol] = expired(stage).await?;
    let mut his = bob.acquires(&lock(stage, &bob)?.taken_over_by(how), ZERO);
    let mut hers = carol.acquires(&lock(stage, &carol)?.taken_over_by(how), ZERO);
    for doing in [&mut his, &mut hers] {
        doing.next("try").await?;
        doing.next("look").await?;
    }
    let _his = his.rest("take-over").await??;
    let _hers = hers.rest("take-over-too").await??;
    stage.ends(stage.overlap())
}

async fn overwritten(stage: &Stage) -> Result<(), Trouble> {
    stage.act("overwritten").await?;
    let [bob, carol] = expired(stage).await?;
    // Bob's work needs long, Carol's does not.
    let long = SetnxGetset::new(bob.line()?, stage.lease() * 10, bob.clock.clone());
    let mut his = bob.acquires(&long, ZERO);
    let mut hers = carol.acquires(&lock(stage, &carol)?, ZERO);
    for doing in [&mut his, &mut hers] {
        doing.next("try").await?;
        doing.next("look").await?;
    }
    let _his = his.rest("take-over").await??;
    let _lost = hers.rest("take-over-too").await??;
    let dave = stage.client("dave");
    dave.clock
        .set_offset_ms(stage.options().whole("pause_ms") + 2 * stage.options().whole("lease_ms"));
    stage.plays("dave", "time-passes").await?;
    let _daves = dave.acquires(&lock(stage, &dave)?, ZERO).rest("dave-tries").await??;
    stage.ends(stage.overlap())
}

async fn clock_skew(stage: &Stage) -> Result<(), Trouble> {
    stage.act("clock-skew").await?;
    let [alice, bob] = stage.clients(["alice", "bob"]);
    let _hers = alice.takes(&lock(stage, &alice)?, "take").await?;
    bob.clock.set_offset_ms(stage.options().whole("skew_ms"));
    stage.plays("bob", "runs-fast").await?;
    let _his = bob.acquires(&lock(stage, &bob)?, ZERO).rest("bob-tries").await??;
    stage.ends(stage.overlap())
}

async fn server_clock(stage: &Stage) -> Result<(), Trouble> {
    stage.act("server-clock").await?;
    let [alice, bob] = stage.clients(["alice", "bob"]);
    let _hers = alice.takes(&TokenLock::new(alice.line()?, stage.lease()), "take").await?;
    bob.clock.set_offset_ms(stage.options().whole("skew_ms"));
    stage.plays("bob", "runs-fast").await?;
    let _his = bob.tries(&TokenLock::new(bob.line()?, stage.lease()), "bob-tries").await?;
    stage.ends(stage.overlap())
}

/// Alice takes the lock and dies; then time passes, on everybody's clock.
async fn expired(stage: &Stage) -> Result<[Client; 2], Trouble> {
    let alice = stage.client("alice");
    let held = alice.takes(&lock(stage, &alice)?, "acquire").await?;
    alice.crashes(held, "crash").await?;
    let others = stage.clients(["bob", "carol"]);
    for client in &others {
        client.clock.set_offset_ms(stage.options().whole("pause_ms"));
    }
    stage.plays("bob", "clocks-go-on").await?;
    Ok(others)
}

fn lock(stage: &Stage, client: &Client) -> Result<SetnxGetset, Trouble> {
    Ok(SetnxGetset::new(client.line()?, stage.lease(), client.clock.clone()))
}

const SETNX_GETSET: &str = "crates/locks/src/setnx_getset.rs";

pub const LESSON: Lesson = Lesson {
    number: 2,
    id: "b02",
    needs: &[],
    options: &[
        whole("lease_ms", 5_000, 1_000, 60_000),
        whole("pause_ms", 6_000, 0, 120_000),
        whole("skew_ms", 8_000, 0, 120_000),
    ],
    cast: &[ALICE, BOB, CAROL, client("dave"), REDIS],
    acts: &[
        failure("del-and-setnx", &[mark(SETNX_GETSET, "cmd(\"DEL\").arg(name)")]),
        cure("getset", &[mark(SETNX_GETSET, "old == seen")]),
        flaw_of_the_cure("overwritten", &[mark(SETNX_GETSET, "cmd(\"GETSET\")")]),
        flaw_of_the_cure("clock-skew", &[mark(SETNX_GETSET, "self.clock.now_ms()")]),
        cure("server-clock", &[mark("crates/locks/src/token.rs", "\"NX\"")]),
    ],
};
