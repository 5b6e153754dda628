//! B2: the expiry time is the value; two see it expired; GETSET decides, and what that leaves open.

use super::prelude::*;
use locks::wire::{Clock, millis};
use locks::{Answer, Attempt, Claim, Hold, Protocol, Released, SetnxGetset, TokenLock};
use redis::cmd;
use tokio::time::Instant;

pub async fn play(stage: Stage) -> Result {
    let careless = |line, lease, clock| DeleteAndSetnx { line, clock, lease };
    both_take_over(&stage, "del-and-setnx", careless).await?;
    both_take_over(&stage, "getset", SetnxGetset::new).await?;
    overwritten(&stage).await?;
    fast_clock(&stage, "clock-skew", SetnxGetset::new).await?;
    fast_clock(&stage, "server-clock", |line, lease, _| TokenLock::new(line, lease)).await
}

type New<L> = fn(Line, Duration, Clock) -> L;

async fn both_take_over<L>(stage: &Stage, act: &str, new: New<L>) -> Result
where
    L: Lock + Clone,
{
    let [bob, carol] = expired(stage, act).await?;
    let his = bob.acquires(&lock(stage, &bob, new), ZERO);
    let hers = carol.acquires(&lock(stage, &carol, new), ZERO);
    let [his, hers] = race(his, hers).await?;
    let _held = (his?, hers?);
    stage.ends(stage.overlap())
}

/// Both look before either of them takes over.
async fn race<T>(mut his: Doing<T>, mut hers: Doing<T>) -> Result<[T; 2]> {
    for doing in [&mut his, &mut hers] {
        doing.next("try").await?;
        doing.next("look").await?;
    }
    Ok([his.rest("take-over").await?, hers.rest("take-over-too").await?])
}

async fn overwritten(stage: &Stage) -> Result {
    let [bob, carol] = expired(stage, "overwritten").await?;
    // Bob's work needs long, Carol's does not.
    let long = SetnxGetset::new(bob.line(), stage.lease() * 10, bob.clock.clone());
    let hers = carol.acquires(&lock(stage, &carol, SetnxGetset::new), ZERO);
    let [his, hers] = race(bob.acquires(&long, ZERO), hers).await?;
    let held = [his?.held(), hers?.held()];
    if held.iter().all(Option::is_none) {
        return stage.ends(false); // Alice's own time is not over
    }
    let dave = stage.client("dave");
    dave.clock
        .set_offset_ms(stage.options().whole("pause_ms") + 2 * stage.options().whole("lease_ms"));
    stage.plays("dave", "time-passes").await?;
    let _daves =
        dave.acquires(&lock(stage, &dave, SetnxGetset::new), ZERO).rest("dave-tries").await??;
    stage.ends(stage.overlap())
}

/// Alice has the lock, and Bob's clock is ahead.
async fn fast_clock<L: Lock + Clone>(stage: &Stage, act: &str, new: New<L>) -> Result {
    let [alice, bob] = stage.act(act, ["alice", "bob"]).await?;
    let _hers = alice.takes(&lock(stage, &alice, new), "take").await?;
    bob.clock.set_offset_ms(stage.options().whole("skew_ms"));
    stage.plays("bob", "runs-fast").await?;
    let _his = bob.acquires(&lock(stage, &bob, new), ZERO).rest("bob-tries").await??;
    stage.ends(stage.overlap())
}

/// Alice takes the lock and dies; then time passes, on everybody's clock.
async fn expired(stage: &Stage, act: &str) -> Result<[Client; 2]> {
    let [alice, bob, carol] = stage.act(act, EVERYBODY).await?;
    let held = alice.takes(&lock(stage, &alice, SetnxGetset::new), "acquire").await?;
    alice.crashes(held, "crash").await?;
    for client in [&bob, &carol] {
        client.clock.set_offset_ms(stage.options().whole("pause_ms"));
    }
    stage.plays("bob", "clocks-go-on").await?;
    Ok([bob, carol])
}

fn lock<L>(stage: &Stage, client: &Client, new: New<L>) -> L {
    new(client.line(), stage.lease(), client.clock.clone())
}

/// The failing variant: it deletes a timestamp that is over, and its own by a plain DEL.
#[derive(Clone)]
struct DeleteAndSetnx {
    line: Line,
    clock: Clock,
    lease: Duration,
}

impl Protocol for DeleteAndSetnx {
    type Own = ();

    async fn attempt(&self, claim: &Claim, _: Instant) -> Answer<Attempt> {
        let (name, now) = (&*claim.name, self.clock.now_ms());
        let mut setnx = cmd("SETNX");
        setnx.arg(name).arg(now.saturating_add_unsigned(millis(self.lease) + 1));
        if self.line.ask(&setnx).await? {
            return Ok(Attempt::ours(true));
        }
        let seen: Option<i64> = self.line.ask(cmd("GET").arg(name)).await?;
        if seen.is_some_and(|seen| seen > now) {
            return Ok(Attempt::ours(false));
        }
        //= FLAW of two that saw the end, the second deletes what the first has just taken
        self.line.ask::<()>(cmd("DEL").arg(name)).await?;
        Ok(Attempt::ours(self.line.ask(&setnx).await?))
    }

    async fn release(&self, claim: &Claim, _: &Hold, _: bool) -> Answer<Released> {
        self.line.ask::<()>(cmd("DEL").arg(&*claim.name)).await?;
        Ok(Released::Freed)
    }
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
        failure("del-and-setnx", &[mark(file!(), "cmd(\"DEL\")")]),
        cure("getset", &[mark(SETNX_GETSET, "old == seen")]),
        flaw_of_the_cure("overwritten", &[mark(SETNX_GETSET, "cmd(\"GETSET\")")]),
        flaw_of_the_cure("clock-skew", &[mark(SETNX_GETSET, "self.clock.now_ms()")]),
        cure("server-clock", &[mark("crates/locks/src/token.rs", "\"NX\"")]),
    ],
};
