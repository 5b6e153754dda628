//! B8: unlocking what one does not hold; unlocking twice.

use super::prelude::*;
use locks::{Released, SetPxNoOwner, TokenLock};
use redis::{RedisError, cmd};

pub async fn play(stage: Stage) -> Result {
    finally_unlock(&stage).await?;
    twice(&stage).await?;
    owner_check(&stage).await
}

async fn finally_unlock(stage: &Stage) -> Result {
    let [alice, bob, carol] = stage.act("finally-unlock", EVERYBODY).await?;
    let _hers = alice.takes(&SetPxNoOwner::new(alice.line(), LONG), "acquire").await?;
    let his = bob.tries(&SetPxNoOwner::new(bob.line(), LONG), "try").await?;
    if stage.options().is("cleanup", "always") || his.is_some() {
        let _ = bob.does(unlock(bob.line(), stage.key(LOCK))).last("cleanup").await??;
    }
    let _carols = carol.tries(&SetPxNoOwner::new(carol.line(), LONG), "try").await?;
    stage.ends(stage.overlap())
}

async fn twice(stage: &Stage) -> Result {
    let [alice, bob, carol] = stage.act("twice", EVERYBODY).await?;
    let hers = alice.takes(&SetPxNoOwner::new(alice.line(), LONG), "acquire").await?;
    let _ = alice.unlocks(hers, "unlock").await?;
    let _his = bob.tries(&SetPxNoOwner::new(bob.line(), LONG), "try").await?;
    if stage.options().is("cleanup", "always") {
        let _ = alice.does(unlock(alice.line(), stage.key(LOCK))).last("cleanup").await??;
    }
    let _carols = carol.tries(&SetPxNoOwner::new(carol.line(), LONG), "try").await?;
    stage.ends(stage.overlap())
}

async fn owner_check(stage: &Stage) -> Result {
    let [alice, bob, carol] = stage.act("owner-check", EVERYBODY).await?;
    let hers = alice.takes(&TokenLock::new(alice.line(), stage.lease()), "acquire").await?;
    let unlocking = alice.releases(hers);
    alice.stands().await?;
    stage.plays("alice", "pause").await?;
    stage.expires(REDIS_NODE).await?;
    let _his = bob.tries(&TokenLock::new(bob.line(), LONG), "try").await?;
    let released = unlocking.rest("unlock").await??;
    let _carols = carol.tries(&TokenLock::new(carol.line(), LONG), "try").await?;
    stage.ends(released != Released::NotHeld || stage.overlap())
}

/// The failing variant: any caller opens the lock.
async fn unlock(line: Line, name: String) -> Result<i64, RedisError> {
    //= FLAW Nothing asks whose lock this is.
    line.send(cmd("DEL").arg(&name)).await
}

const UNLOCK: Mark = mark(file!(), "line.send(");

pub const LESSON: Lesson = Lesson {
    number: 8,
    id: "b08",
    needs: &[],
    options: &[LEASE_MS, choice("cleanup", &["always", "if-held"])],
    cast: &[ALICE, BOB, CAROL, REDIS],
    acts: &[
        failure("finally-unlock", &[UNLOCK]),
        failure("twice", &[UNLOCK]),
        cure("owner-check", &[mark(TOKEN_RELEASE, "ARGV[1]")]),
    ],
};
