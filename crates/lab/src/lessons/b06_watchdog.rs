//! B6: a watchdog that renews for ever after a failed unlock, or stops after one error.

use super::prelude::*;
use locks::wire::{LuaScript, ScriptCall, millis};
use locks::{Protocol, TokenLock, token};
use redis::RedisError;
use tokio::time::sleep;

pub async fn play(stage: Stage) -> Result {
    for_ever(&stage).await?;
    one_error(&stage).await?;
    ends_first(&stage).await?;
    tries_again(&stage).await?;
    is_told(&stage).await
}

async fn for_ever(stage: &Stage) -> Result {
    let [alice, bob] = stage.act("for-ever", ["alice", "bob"]).await?;
    let careless = Careless::takes(stage, &alice).await?;
    let watchdog = alice.does(careless.clone().renews_for_ever());
    alice.watchdog().goes("renew").await?;
    alice.stops_believing();
    let unlocking = alice.does(careless.unlock(watchdog.abort_handle()));
    if breaks(stage) {
        alice.next().fails("unlock-fails").await?;
        let _ = unlocking.end().await?;
        for _ in 0..2 {
            alice.watchdog().goes("renew-on").await?;
        }
    } else {
        let _ = unlocking.last("unlock").await?;
    }
    let his = bob.tries(&TokenLock::new(bob.line(), LONG), "try").await?;
    stage.ends(his.is_none() && !stage.is_believed())
}

async fn one_error(stage: &Stage) -> Result {
    let [alice, bob] = stage.act("one-error", ["alice", "bob"]).await?;
    let watchdog = alice.does(Careless::takes(stage, &alice).await?.renews_until_an_error());
    alice.watchdog().goes("renew").await?;
    if breaks(stage) {
        alice.watchdog().fails("renew-fails").await?;
        let _ended = watchdog.end().await?;
        stage.expires(REDIS_NODE).await?;
    } else {
        alice.watchdog().goes("renew").await?;
    }
    let _his = bob.tries(&TokenLock::new(bob.line(), LONG), "try").await?;
    stage.ends(stage.overlap())
}

async fn ends_first(stage: &Stage) -> Result {
    let [alice, bob] = stage.act("ends-first", ["alice", "bob"]).await?;
    let lock = TokenLock::new(alice.line(), stage.lease()).renewed();
    let hers = alice.takes(&lock, "acquire").await?;
    alice.watchdog().goes("renew").await?;
    let unlocking = alice.releases(hers);
    if breaks(stage) {
        for _ in 0..TokenLock::RELEASES {
            alice.next().fails("unlock-fails").await?;
        }
        let _failed = unlocking.end().await?;
        // A watchdog that lived on would renew before the lease is over.
        alice.renews("renew-on").await?;
    } else {
        let _ = unlocking.rest("unlock").await??;
    }
    let his = bob.tries(&TokenLock::new(bob.line(), LONG), "try").await?;
    stage.ends(his.is_none() || stage.overlap())
}

async fn tries_again(stage: &Stage) -> Result {
    let [alice, bob] = stage.act("tries-again", ["alice", "bob"]).await?;
    let lock = TokenLock::new(alice.line(), stage.lease()).renewed();
    let _hers = alice.takes(&lock, "acquire").await?;
    if breaks(stage) {
        alice.watchdog().fails("renew-fails").await?;
    }
    alice.renews("renew-again").await?;
    let _his = bob.tries(&TokenLock::new(bob.line(), LONG), "try").await?;
    stage.ends(stage.overlap())
}

async fn is_told(stage: &Stage) -> Result {
    let [alice, bob] = stage.act("is-told", ["alice", "bob"]).await?;
    let lock = TokenLock::new(alice.line(), stage.lease()).renewed();
    let hers = alice.takes(&lock, "acquire").await?;
    stage.plays("alice", "cut-off").await?;
    // Nobody answers the watchdog: its request stays in the gate.
    let is_told = tokio::select! {
        biased;
        _ = hers.lost() => true,
        gone = stage.until_gone(REDIS_NODE, LOCK) => gone.map(|()| false)?,
    };
    if is_told {
        alice.stops_believing();
        stage.happens("alice", "lost").await?;
        stage.expires(REDIS_NODE).await?;
    }
    let _his = bob.tries(&TokenLock::new(bob.line(), LONG), "try").await?;
    stage.ends(stage.overlap())
}

fn breaks(stage: &Stage) -> bool {
    stage.options().is("network", "breaks")
}

static RENEW: LuaScript =
    LuaScript::new("token_renew.lua", include_str!("../../../locks/src/scripts/token_renew.lua"));

/// The failing variants: what watches over one lease, carelessly.
#[derive(Clone)]
struct Careless {
    line: Line,
    name: String,
    token: String,
    lease: Duration,
}

impl Careless {
    async fn takes(stage: &Stage, alice: &Client) -> Result<Self> {
        let (line, lease) = (alice.line(), stage.lease());
        let hers = alice.takes(&TokenLock::new(line.clone(), lease), "acquire").await?;
        Ok(Self { line, name: stage.key(LOCK), token: hers.token().to_owned(), lease })
    }

    async fn renews_for_ever(self) -> Result<(), RedisError> {
        loop {
            sleep(self.lease / 3).await;
            // An error is ignored, and only the unlock ends this.
            let _ = self.line.send::<bool>(&self.renewal()).await;
        }
    }

    async fn renews_until_an_error(self) -> Result<(), RedisError> {
        loop {
            sleep(self.lease / 3).await;
            //= FLAW One error ends the watchdog, and nobody tells the holder.
            self.line.send::<bool>(&self.renewal()).await?;
        }
    }

    fn renewal(&self) -> ScriptCall {
        RENEW.on(&[&self.name]).arg(&self.token).arg(millis(self.lease))
    }

    async fn unlock(self, watchdog: tokio::task::AbortHandle) -> Result<bool, RedisError> {
        // One attempt, so nothing has to be remembered for a second one.
        let call = token::undo(&self.name, &self.token);
        //= FLAW The question mark leaves before the watchdog is ended.
        let freed = self.line.send::<bool>(&call).await?;
        watchdog.abort();
        Ok(freed)
    }
}

const HOLD: &str = "crates/locks/src/hold.rs";
const WATCHDOG: &str = "crates/locks/src/watchdog.rs";

pub const LESSON: Lesson = Lesson {
    number: 6,
    id: "b06",
    needs: &[],
    options: &[whole("lease_ms", 900, 300, 5_000), choice("network", &["breaks", "holds"])],
    cast: &[ALICE, BOB, REDIS],
    acts: &[
        failure("for-ever", &[mark(file!(), "send::<bool>(&call)")]),
        failure("one-error", &[mark(file!(), "self.renewal()")]),
        cure("ends-first", &[mark("crates/locks/src/driver.rs", "watchdog.take()")]),
        cure("tries-again", &[mark(WATCHDOG, "Ok(Err(error))")]),
        cure("is-told", &[mark(HOLD, "now.why()"), mark(WATCHDOG, "hold.lose(Why::LeaseOver)")]),
    ],
};
