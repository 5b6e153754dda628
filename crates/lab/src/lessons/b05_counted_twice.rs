//! B5: a reentrant lock, a lost reply, a retry: count 2, never freed.

use super::prelude::*;
use locks::wire::{LuaScript, ScriptCall, millis};
use locks::{ReentrantLock, lua};
use redis::RedisError;

pub async fn play(stage: Stage) -> Result {
    counting(&stage).await?;
    request_id(&stage).await
}

async fn counting(stage: &Stage) -> Result {
    let [alice, bob] = stage.act("counting", ["alice", "bob"]).await?;
    let lock = CountingLock::of(&alice, stage);
    let taking = alice.does(lock.clone().acquire());
    let got_it = acquires(stage, &alice, taking).await??;
    alice.believes(got_it);
    alice.stops_believing();
    let left = alice.does(lock.clone().release()).last("unlock").await??;
    if left > 0 {
        let renewing = alice.does(lock.renew());
        alice.watchdog().goes("renew").await?;
        let _ = renewing.end().await??;
    }
    let got_in = bob.does(CountingLock::of(&bob, stage).acquire()).last("try").await??;
    bob.believes(got_in);
    stage.ends(!got_in && !stage.is_believed())
}

async fn request_id(stage: &Stage) -> Result {
    let [alice, bob] = stage.act("request-id", ["alice", "bob"]).await?;
    let taking = alice.acquires(&ReentrantLock::new(alice.line(), LONG), LONG);
    let hers = alice.must_hold(acquires(stage, &alice, taking).await?)?;
    let _ = alice.unlocks(hers, "unlock").await?;
    let his = bob.tries(&ReentrantLock::new(bob.line(), LONG), "try").await?;
    stage.ends(his.is_none() && !stage.is_believed())
}

/// The reply of the first attempt is lost, or not.
async fn acquires<T>(stage: &Stage, alice: &Client, taking: Doing<T>) -> Result<T> {
    if stage.options().is("reply", "arrives") {
        return taking.last("acquire").await;
    }
    alice.next().loses_reply("acquire-lost").await?;
    taking.last("acquire-again").await
}

/// The failing variant: a lock that only counts, and a client that retries what had no answer.
#[derive(Clone)]
struct CountingLock {
    line: Line,
    name: String,
    owner: String,
    lease: Duration,
}

static ACQUIRE: LuaScript = lua!("counting_acquire.lua");
static RELEASE: LuaScript = lua!("counting_release.lua");
static RENEW: LuaScript = lua!("counting_renew.lua");

impl CountingLock {
    fn of(client: &Client, stage: &Stage) -> Self {
        let (line, lease) = (client.line(), stage.lease());
        Self { owner: line.unique_token(), line, name: stage.key(LOCK), lease }
    }

    fn call(&self, script: &'static LuaScript) -> ScriptCall {
        script.on(&[&self.name]).arg(&self.owner).arg(millis(self.lease))
    }

    async fn acquire(self) -> Result<bool, RedisError> {
        let call = self.call(&ACQUIRE);
        let left: Option<i64> = match self.line.send(&call).await {
            // Nobody knows whether the first attempt counted.
            Err(error) if error.is_io_error() => self.line.send(&call).await?,
            other => other?,
        };
        Ok(left.is_none())
    }

    /// Answers how often it is still held.
    async fn release(self) -> Result<i64, RedisError> {
        self.line.send(&self.call(&RELEASE)).await
    }

    async fn renew(self) -> Result<bool, RedisError> {
        self.line.send(&self.call(&RENEW)).await
    }
}

pub const LESSON: Lesson = Lesson {
    number: 5,
    id: "b05",
    needs: &[],
    options: &[whole("lease_ms", 3_000, 500, 10_000), choice("reply", &["lost", "arrives"])],
    cast: &[ALICE, BOB, REDIS],
    acts: &[
        failure(
            "counting",
            &[mark("crates/lab/src/lessons/scripts/counting_acquire.lua", "HINCRBY")],
        ),
        cure("request-id", &[mark("crates/locks/src/scripts/reentrant_acquire.lua", "holding:")]),
    ],
};
