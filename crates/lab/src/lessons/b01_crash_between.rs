//! B1: a crash between SETNX and EXPIRE, and repairs that let two in.

use super::prelude::*;
use locks::{SetnxExpire, TokenLock, setnx_expire::Repair};

pub async fn play(stage: Stage) -> Result<(), Trouble> {
    for_ever(&stage).await?;
    both_repair(&stage, "del-and-setnx", Repair::DeleteAndTake).await?;
    both_repair(&stage, "take-over", Repair::TakeOver).await?;
    only_expire(&stage).await?;
    one_command(&stage).await
}

async fn for_ever(stage: &Stage) -> Result<(), Trouble> {
    stage.act("for-ever").await?;
    dead_lock(stage).await?;
    if stage.options().is("crash", "after") {
        stage.until_gone(REDIS_NODE, LOCK).await?;
    }
    let bob = stage.client("bob");
    let trying = bob.acquires(&lock(&bob, LONG, Repair::Never)?, ZERO);
    let _his = trying.rest("try").await??;
    stage.ends(stage.is_stuck(REDIS_NODE).await?)
}

/// Alice takes the lock and dies: before its EXPIRE, or after it.
async fn dead_lock(stage: &Stage) -> Result<(), Trouble> {
    let alice = stage.client("alice");
    let mut taking = alice.acquires(&lock(&alice, stage.lease(), Repair::Never)?, ZERO);
    taking.next("setnx").await?;
    alice.stands().await?;
    if stage.options().is("crash", "after") {
        taking.next("expire").await?;
    }
    alice.crashes(taking, "crash").await
}

/// Bob and Carol both find a lock without an end before either of them repairs it.
async fn both_repair(stage: &Stage, act: &str, repair: Repair) -> Result<(), Trouble> {
    stage.act(act).await?;
    dead_lock(stage).await?;
    let [bob, carol] = stage.clients(["bob", "carol"]);
    let mut his = bob.acquires(&lock(&bob, LONG, repair)?, ZERO);
    let mut hers = carol.acquires(&lock(&carol, LONG, repair)?, ZERO);
    for doing in [&mut his, &mut hers] {
        doing.next("try").await?;
        doing.next("look").await?;
    }
    let _his = his.rest("repair").await??;
    let _hers = hers.rest("repair-too").await??;
    stage.ends(stage.overlap())
}

async fn only_expire(stage: &Stage) -> Result<(), Trouble> {
    stage.act("only-expire").await?;
    dead_lock(stage).await?;
    let [bob, carol] = stage.clients(["bob", "carol"]);
    let mut his = bob.acquires(&lock(&bob, stage.lease(), Repair::OnlyExpire)?, ZERO);
    let mut hers = carol.acquires(&lock(&carol, stage.lease(), Repair::OnlyExpire)?, ZERO);
    his.next("try").await?;
    hers.next("try").await?;
    let _his = his.rest("repair").await??;
    let _hers = hers.rest("repair-too").await??;
    stage.until_gone(REDIS_NODE, LOCK).await?;
    for client in [&bob, &carol] {
        let trying = client.acquires(&lock(client, LONG, Repair::Never)?, ZERO);
        let _one_of_them = trying.rest("try-again").await??;
    }
    stage.ends(stage.overlap() || stage.is_stuck(REDIS_NODE).await?)
}

async fn one_command(stage: &Stage) -> Result<(), Trouble> {
    stage.act("one-command").await?;
    let [alice, bob, carol] = stage.clients(["alice", "bob", "carol"]);
    let hers = alice.takes(&TokenLock::new(alice.line()?, stage.lease()), "acquire").await?;
    alice.crashes(hers, "crash").await?;
    stage.until_gone(REDIS_NODE, LOCK).await?;
    let _his = bob.tries(&TokenLock::new(bob.line()?, LONG), "try-again").await?;
    let _hers = carol.tries(&TokenLock::new(carol.line()?, LONG), "try-again").await?;
    stage.ends(stage.overlap() || stage.is_stuck(REDIS_NODE).await?)
}

fn lock(client: &Client, lease: Duration, repair: Repair) -> Result<SetnxExpire, Trouble> {
    Ok(SetnxExpire::new(client.line()?, lease).repaired_by(repair))
}

const SETNX_EXPIRE: &str = "crates/locks/src/setnx_expire.rs";

pub const LESSON: Lesson = Lesson {
    number: 1,
    id: "b01",
    needs: &[],
    options: &[LEASE_MS, choice("crash", &["between", "after"])],
    cast: &[ALICE, BOB, CAROL, REDIS],
    acts: &[
        failure("for-ever", &[mark(SETNX_EXPIRE, "self.expire(name)")]),
        flaw_of_the_cure("del-and-setnx", &[mark(SETNX_EXPIRE, "cmd(\"DEL\")")]),
        flaw_of_the_cure("take-over", &[mark(SETNX_EXPIRE, "let _ = self.setnx(name)")]),
        cure("only-expire", &[mark(SETNX_EXPIRE, "self.expire(name)")]),
        cure("one-command", &[mark("crates/locks/src/token.rs", "\"NX\"")]),
    ],
};
