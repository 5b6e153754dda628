//! B1: a crash between SETNX and EXPIRE, and repairs that let two in.

use super::prelude::*;
use locks::{
    Answer, Attempt, Claim, Hold, Protocol, Released, SetnxExpire, TokenLock, setnx_expire::Repair,
};
use redis::cmd;
use tokio::time::Instant;

pub async fn play(stage: Stage) -> Result {
    for_ever(&stage).await?;
    both_repair(&stage, "del-and-setnx", None).await?;
    both_repair(&stage, "take-over", Some(Repair::TakeOver)).await?;
    only_expire(&stage).await?;
    one_command(&stage).await
}

async fn for_ever(stage: &Stage) -> Result {
    let [alice, bob] = stage.act("for-ever", ["alice", "bob"]).await?;
    dead_lock(stage, alice).await?;
    if stage.options().is("crash", "after") {
        stage.expires(REDIS_NODE).await?;
    }
    let trying = bob.acquires(&lock(&bob, LONG, Repair::Never), ZERO);
    let _his = trying.rest("try").await??;
    stage.ends(stage.is_stuck(REDIS_NODE).await?)
}

/// Alice takes the lock and dies: before its EXPIRE, or after it.
async fn dead_lock(stage: &Stage, alice: Client) -> Result {
    let mut taking = alice.acquires(&lock(&alice, stage.lease(), Repair::Never), ZERO);
    taking.next("setnx").await?;
    alice.stands().await?;
    if stage.options().is("crash", "after") {
        taking.next("expire").await?;
    }
    alice.crashes(taking, "crash").await
}

/// Bob and Carol both find a lock without an end before either of them repairs it.
async fn both_repair(stage: &Stage, act: &str, repair: Option<Repair>) -> Result {
    let [alice, bob, carol] = stage.act(act, EVERYBODY).await?;
    dead_lock(stage, alice).await?;
    let mut his = bob.acquires(&AnyRepair::new(bob.line(), LONG, repair), ZERO);
    let mut hers = carol.acquires(&AnyRepair::new(carol.line(), LONG, repair), ZERO);
    for doing in [&mut his, &mut hers] {
        doing.next("try").await?;
        doing.next("look").await?;
    }
    let _his = his.rest("repair").await??;
    let _hers = hers.rest("repair-too").await??;
    stage.ends(stage.overlap())
}

async fn only_expire(stage: &Stage) -> Result {
    let [alice, bob, carol] = stage.act("only-expire", EVERYBODY).await?;
    dead_lock(stage, alice).await?;
    let mut his = bob.acquires(&lock(&bob, stage.lease(), Repair::OnlyExpire), ZERO);
    let mut hers = carol.acquires(&lock(&carol, stage.lease(), Repair::OnlyExpire), ZERO);
    his.next("try").await?;
    hers.next("try").await?;
    let _his = his.rest("repair").await??;
    let _hers = hers.rest("repair-too").await??;
    if stage.is_stuck(REDIS_NODE).await? {
        return stage.ends(true);
    }
    stage.expires(REDIS_NODE).await?;
    for client in [&bob, &carol] {
        let trying = client.acquires(&lock(client, LONG, Repair::Never), ZERO);
        let _one_of_them = trying.rest("try-again").await??;
    }
    stage.ends(stage.overlap() || !stage.is_believed())
}

async fn one_command(stage: &Stage) -> Result {
    let [alice, bob, carol] = stage.act("one-command", EVERYBODY).await?;
    let hers = alice.takes(&TokenLock::new(alice.line(), stage.lease()), "acquire").await?;
    alice.crashes(hers, "crash").await?;
    if stage.is_stuck(REDIS_NODE).await? {
        return stage.ends(true);
    }
    stage.expires(REDIS_NODE).await?;
    let _his = bob.tries(&TokenLock::new(bob.line(), LONG), "try-again").await?;
    let _hers = carol.tries(&TokenLock::new(carol.line(), LONG), "try-again").await?;
    stage.ends(stage.overlap() || !stage.is_believed())
}

fn lock(client: &Client, lease: Duration, repair: Repair) -> SetnxExpire {
    SetnxExpire::new(client.line(), lease).repaired_by(repair)
}

/// The lock with one more repair (`None`): DEL, then SETNX, which may delete a sound lock.
#[derive(Clone)]
pub struct AnyRepair {
    line: Line,
    lock: SetnxExpire,
    repair: Option<Repair>,
}

impl AnyRepair {
    pub fn new(line: Line, lease: Duration, repair: Option<Repair>) -> Self {
        let lock = SetnxExpire::new(line.clone(), lease);
        Self { line, lock: lock.repaired_by(repair.unwrap_or(Repair::Never)), repair }
    }
}

impl Protocol for AnyRepair {
    type Own = ();
    const PAUSE: Duration = SetnxExpire::PAUSE;
    const RELEASES: u32 = SetnxExpire::RELEASES;

    async fn attempt(&self, claim: &Claim, deadline: Instant) -> Answer<Attempt> {
        let tried = self.lock.attempt(claim, deadline).await?;
        let is_late = Instant::now() >= deadline && matches!(tried, Attempt::Contended { .. });
        if !is_late
            || self.repair.is_some()
            || self.line.ask::<i64>(cmd("PTTL").arg(&*claim.name)).await? != -1
        {
            return Ok(tried);
        }
        //= FLAW this may delete what another repairer has just taken
        self.line.ask::<()>(cmd("DEL").arg(&*claim.name)).await?;
        self.lock.attempt(claim, deadline).await
    }

    async fn release(&self, claim: &Claim, hold: &Hold, again: bool) -> Answer<Released> {
        self.lock.release(claim, hold, again).await
    }
}

const SETNX_EXPIRE: &str = "crates/locks/src/setnx_expire.rs";

pub const LESSON: Lesson = Lesson {
    number: 1,
    id: "b01",
    needs: &[],
    options: &[LEASE_MS, choice("crash", &["between", "after"])],
    cast: &[ALICE, BOB, CAROL, REDIS],
    acts: &[
        failure("for-ever", &[mark(SETNX_EXPIRE, "cmd(\"PEXPIRE\")")]),
        flaw_of_the_cure("del-and-setnx", &[mark(file!(), "cmd(\"DEL\")")]),
        flaw_of_the_cure("take-over", &[mark(SETNX_EXPIRE, "cmd(\"SETNX\")")]),
        cure("only-expire", &[mark(SETNX_EXPIRE, "(&expire)")]),
        cure("one-command", &[mark("crates/locks/src/token.rs", "\"NX\"")]),
    ],
};
