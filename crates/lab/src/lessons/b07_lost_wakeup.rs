//! B7: the unlock's message is published before the waiter subscribes.

use super::prelude::*;
use locks::{LockError, ReentrantLock};

pub async fn play(stage: Stage) -> Result {
    scene(&stage, "try-subscribe-wait").await?;
    scene(&stage, "subscribe-try-wait").await
}

/// Bob finds the lock taken; Alice unlocks before he subscribes, or after it.
async fn scene(stage: &Stage, act: &str) -> Result {
    let [alice, bob] = stage.act(act, ["alice", "bob"]).await?;
    let careless = act == "try-subscribe-wait";
    let hers = alice.takes(&ReentrantLock::new(alice.line(), LONG), "acquire").await?;
    let line = bob.line();
    let lock = ReentrantLock::new(line.clone(), LONG);
    let mut waiting = if careless {
        bob.does_take(acquire_carelessly(lock, line, stage.key(LOCK)))
    } else {
        bob.acquires(&lock, LONG)
    };
    waiting.next("try").await?;
    bob.stands().await?;
    if stage.options().is("unlock", "before-subscribe") {
        let _ = alice.unlocks(hers, "unlock").await?;
        waiting.next("subscribe").await?;
        if careless || bob.stands().await.is_err() {
            stage.happens("bob", "sleeps").await?;
            let free = stage.pttl(REDIS_NODE, LOCK).await? == -2;
            return stage.ends(free && waiting.sleeps());
        }
    } else {
        waiting.next("subscribe").await?;
        if !careless {
            waiting.next("try-again").await?;
        }
        let _ = alice.unlocks(hers, "unlock").await?;
        bob.hears("message").await?;
    }
    let his = waiting.last("acquire-at-last").await??;
    stage.ends(his.held().is_none())
}

/// The failing variant: waits for a message that may have come before it listened.
async fn acquire_carelessly(
    lock: ReentrantLock,
    line: Line,
    name: String,
) -> Result<Acquired<Held<ReentrantLock>>, LockError> {
    let remaining = match lock.acquire(&name, ZERO).await? {
        Acquired::Contended { remaining } => remaining.unwrap_or(LONG),
        held => return Ok(held),
    };
    let channel = format!("{name}:free");
    //= FLAW A message that was published before this line reaches nobody.
    let subscribed = line.subscribe(&channel).await;
    let mut messages = subscribed.map_err(|error| line.lock_error(error))?;
    let _ = tokio::time::timeout(remaining, messages.next()).await;
    lock.acquire(&name, ZERO).await
}

pub const LESSON: Lesson = Lesson {
    number: 7,
    id: "b07",
    needs: &[],
    options: &[choice("unlock", &["before-subscribe", "after-subscribe"])],
    cast: &[ALICE, BOB, REDIS],
    acts: &[
        failure("try-subscribe-wait", &[mark(file!(), "line.subscribe(")]),
        cure("subscribe-try-wait", &[mark("crates/locks/src/waiting.rs", "line.subscribe(")]),
    ],
};
