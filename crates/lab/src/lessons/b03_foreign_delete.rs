//! B3: work outlives the lease, and the unlock removes somebody else's lock.

use super::prelude::*;
use locks::{SetPxNoOwner, TokenLock};

pub async fn play(stage: Stage) -> Result<(), Trouble> {
    if stage.options().is("token", "on") {
        scene(&stage, "plain-del", TokenLock::new).await?;
    } else {
        scene(&stage, "plain-del", SetPxNoOwner::new).await?;
    }
    let in_two_calls = |line, lease| TokenLock::new(line, lease).released_in_two_calls();
    scene(&stage, "two-calls", in_two_calls).await?;
    scene(&stage, "one-script", TokenLock::new).await
}

/// The same for every lock.
async fn scene<L: Lock + Clone>(
    stage: &Stage,
    act: &str,
    lock: impl Fn(Line, Duration) -> L,
) -> Result<(), Trouble> {
    stage.act(act).await?;
    stage.show_shop();
    let [alice, bob, carol] = stage.clients(["alice", "bob", "carol"]);
    let hers = alice.takes(&lock(alice.line()?, stage.lease()), "acquire").await?;
    let mut unlock = alice.releases(hers);
    if act == "two-calls" {
        unlock.next("compare").await?;
    }
    alice.stands().await?;
    alice.pauses(REDIS_NODE, "pause").await?;

    let his = bob.tries(&lock(bob.line()?, LONG), "bob-tries").await?;
    let seen_by_bob = reads_if_it_holds(stage, &bob, &his).await?;
    let _ = unlock.rest("unlock").await??;
    let hers_too = carol.tries(&lock(carol.line()?, LONG), "carol-tries").await?;
    let seen_by_carol = reads_if_it_holds(stage, &carol, &hers_too).await?;
    for (client, seen) in [(&bob, seen_by_bob), (&carol, seen_by_carol)] {
        if seen > 0 {
            stage.shop().sell(client, seen, "sell").await?;
        }
    }
    stage.ends(stage.overlap() && stage.shop().oversold().await? > 0)
}

async fn reads_if_it_holds<G>(
    stage: &Stage,
    client: &Client,
    held: &Option<G>,
) -> Result<i32, Trouble> {
    match held {
        Some(_) => stage.shop().read(client, "read-stock").await,
        None => Ok(0),
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
        flaw_of_the_cure("two-calls", &[mark("crates/locks/src/token.rs", "cmd(\"DEL\")")]),
        cure("one-script", &[mark("crates/locks/src/scripts/token_release.lua", "ARGV[1]")]),
    ],
};
