//! B3: work outlives the lease, and the unlock removes somebody else's lock.

use super::prelude::*;
use locks::{Answer, Attempt, Claim, Hold, Lease, Protocol, Released, SetPxNoOwner, TokenLock};
use redis::cmd;
use tokio::time::Instant;

pub async fn play(stage: Stage) -> Result {
    if stage.options().is("token", "on") {
        scene(&stage, "plain-del", TokenLock::new).await?;
    } else {
        scene(&stage, "plain-del", SetPxNoOwner::new).await?;
    }
    let in_two_calls =
        |line: Line, lease| InTwoCalls { lock: TokenLock::new(line.clone(), lease), line };
    scene(&stage, "two-calls", in_two_calls).await?;
    scene(&stage, "one-script", TokenLock::new).await
}

/// The same for every lock.
async fn scene<L: Lock + Clone>(
    stage: &Stage,
    act: &str,
    lock: impl Fn(Line, Duration) -> L,
) -> Result {
    let [alice, bob, carol] = stage.act(act, EVERYBODY).await?;
    stage.show_shop();
    let hers = alice.takes(&lock(alice.line(), stage.lease()), "acquire").await?;
    let mut unlock = alice.releases(hers);
    if act == "two-calls" {
        unlock.next("compare").await?;
    }
    alice.stands().await?;
    alice.pauses(REDIS_NODE, "pause").await?;

    let his = bob.tries(&lock(bob.line(), LONG), "bob-tries").await?;
    let seen_by_bob = reads_if_it_holds(stage, &bob, &his).await?;
    let _ = unlock.rest("unlock").await??;
    let hers_too = carol.tries(&lock(carol.line(), LONG), "carol-tries").await?;
    let seen_by_carol = reads_if_it_holds(stage, &carol, &hers_too).await?;
    for (client, seen) in [(&bob, seen_by_bob), (&carol, seen_by_carol)] {
        if seen > 0 {
            stage.shop().sell(client, seen, "sell").await?;
        }
    }
    stage.ends(stage.overlap() && stage.shop().is_oversold().await?)
}

async fn reads_if_it_holds<G>(stage: &Stage, client: &Client, held: &Option<G>) -> Result<i32> {
    match held {
        Some(_) => stage.shop().read(client, "read-stock").await,
        None => Ok(0),
    }
}

/// The failing variant: a token lock whose client compares, and then deletes.
#[derive(Clone)]
struct InTwoCalls {
    line: Line,
    lock: TokenLock,
}

impl Protocol for InTwoCalls {
    type Own = ();

    fn token(&self) -> String {
        self.lock.token()
    }

    fn lease(&self) -> Option<Lease> {
        self.lock.lease()
    }

    async fn attempt(&self, claim: &Claim, deadline: Instant) -> Answer<Attempt> {
        self.lock.attempt(claim, deadline).await
    }

    async fn release(&self, claim: &Claim, _: &Hold, _: bool) -> Answer<Released> {
        let holder: Option<String> = self.line.ask(cmd("GET").arg(&*claim.name)).await?;
        if holder.as_deref() != Some(&*claim.token) {
            return Ok(Released::NotHeld);
        }
        //= FLAW in between the lease may end, and this deletes the next holder's lock
        let deleted: bool = self.line.ask(cmd("DEL").arg(&*claim.name)).await?;
        Ok(if deleted { Released::Freed } else { Released::NotHeld })
    }
}

pub const LESSON: Lesson = Lesson {
    number: 3,
    id: "b03",
    needs: &[],
    options: &[LEASE_MS, PAUSE_MS, choice("token", &["off", "on"])],
    cast: &[ALICE, BOB, CAROL, REDIS, SHOP],
    acts: &[
        failure("plain-del", &[mark("crates/locks/src/set_px_no_owner.rs", "cmd(\"DEL\")")]),
        flaw_of_the_cure("two-calls", &[mark(file!(), "cmd(\"DEL\")")]),
        cure("one-script", &[mark("crates/locks/src/scripts/token_release.lua", "ARGV[1]")]),
    ],
};
