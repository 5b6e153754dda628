//! B5: a reentrant lock, a lost reply, a retry: count 2, never freed.

use super::prelude::*;
use locks::{ReentrantLock, wire::LuaScript};
use redis::RedisError;

pub const LESSON: Lesson = Lesson {
    number: 5,
    id: "b05",
    title: w("Counted twice", "被多数了一次"),
    failure: w(
        "Redis takes the lock for Alice, but its reply is lost. The client retries, the lock \
         counts 2, she unlocks once: count 1, for as long as a watchdog renews it.",
        "Redis 已经给 Alice 加了锁，但应答丢了。客户端重试，计数变成 2；她只解锁一次，计数剩 1，只要看门狗还在续期，就永远不会释放。",
    ),
    forced_how: w(
        "The connection breaks after Redis has run the script and before Alice hears of it.",
        "在 Redis 执行完脚本之后、Alice 收到应答之前，断开连接。",
    ),
    cure: w(
        "Each acquisition carries a request id, the same for all its attempts: the second attempt \
         is recognised as the first.",
        "每次加锁带一个请求编号，重试时编号不变：第二次尝试会被认出就是第一次。",
    ),
    source: w(
        "The course notes 《秒杀》 show the scripts of Redisson's reentrant lock: count up and \
         PEXPIRE, count down, DEL and PUBLISH at zero. They are right as long as every reply \
         arrives; they do not say what a retry does.",
        "课程笔记《秒杀》给出了 Redisson 可重入锁的脚本：加一并 PEXPIRE，减一，归零时 DEL 并 PUBLISH。只要应答都能送达就是对的；但没有说重试会怎样。",
    ),
    needs: &[],
    options: &[
        whole(
            "lease_ms",
            3_000,
            500,
            10_000,
            w(
                "How long the lock is granted for. A watchdog renews it, so it changes nothing \
                 here: try it.",
                "租期多长。有看门狗续期，所以在这里改它没有用：试试看。",
            ),
        ),
        choice(
            "reply",
            &["lost", "arrives"],
            w(
                "arrives: the reply of the first attempt reaches Alice. No retry, count 1, freed.",
                "arrives：第一次的应答送到了。没有重试，计数为 1，正常释放。",
            ),
        ),
    ],
    cast: &[ALICE, BOB, REDIS],
    acts: &[
        Act {
            id: "counting",
            kind: Kind::Failure,
            title: w("A count", "只记次数"),
            say: w(
                "The lock is a hash: owner and count. Taking it again counts up, giving it back \
                 counts down.",
                "锁是一个哈希：持有者与次数。再次加锁加一，解锁减一。",
            ),
        },
        Act {
            id: "request-id",
            kind: Kind::Cure,
            title: w("A request id for each acquisition", "每次加锁一个请求编号"),
            say: w(
                "The same, but each holding is a field of its own, named after its request. Twice \
                 the same request is one holding.",
                "同样是哈希，但每次持有是一个以请求编号命名的字段。同一个请求来两次，仍是一次持有。",
            ),
        },
    ],
};

static ACQUIRE: LuaScript =
    LuaScript::new("counting_acquire.lua", include_str!("scripts/counting_acquire.lua"));
static RELEASE: LuaScript =
    LuaScript::new("counting_release.lua", include_str!("scripts/counting_release.lua"));
static RENEW: LuaScript =
    LuaScript::new("counting_renew.lua", include_str!("scripts/counting_renew.lua"));

/// The failing variant: a lock that only counts, and a client that retries what had no answer.
#[derive(Clone)]
struct CountingLock {
    line: Line,
    name: String,
    owner: String,
    lease_ms: u64,
}

impl CountingLock {
    async fn acquire(self) -> Result<bool, RedisError> {
        let call = ACQUIRE.on(&[&self.name]).arg(&self.owner).arg(self.lease_ms);
        let left: Option<i64> = match self.line.run(&call).await {
            // THE FLAW: nobody knows whether the first one counted.
            Err(error) if error.is_io_error() => self.line.run(&call).await?,
            other => other?,
        };
        Ok(left.is_none())
    }

    async fn release(self) -> Result<i64, RedisError> {
        let call = RELEASE.on(&[&self.name]).arg(&self.owner).arg(self.lease_ms);
        self.line.run(&call).await
    }

    async fn renew(self) -> Result<bool, RedisError> {
        let call = RENEW.on(&[&self.name]).arg(&self.owner).arg(self.lease_ms);
        self.line.run(&call).await
    }
}

const LOST: Words = w(
    "Redis takes the lock for Alice. The reply is lost on its way.",
    "Redis 给 Alice 加了锁。应答在路上丢了。",
);
const ARRIVES: Words =
    w("Redis takes the lock for Alice and says so.", "Redis 给 Alice 加了锁，并告诉了她。");
const AGAIN: Words = w("Alice heard nothing and asks again.", "Alice 什么也没收到，于是再试一次。");
const UNLOCKS: Words = w(
    "Her work is done. She unlocks once, as she locked once.",
    "活干完了。她锁了一次，就解一次。",
);
const BOB_TRIES: Words =
    w("Bob tries. Nobody works under the lock any more.", "Bob 来抢。已经没有人在锁下干活了。");

pub async fn play(stage: Stage) -> Result<(), Trouble> {
    let lost = stage.options().is("reply", "lost");
    let if_broken = w(
        "Alice has unlocked and nobody works, but the count is 1 and the watchdog keeps it alive: \
         Bob never gets in.",
        "Alice 已解锁，没有人在干活，但计数还剩 1，看门狗一直续期：Bob 永远进不来。",
    );
    let if_held = w(
        "One acquisition counted once, and one unlock freed it.",
        "一次加锁只算一次，一次解锁就释放了。",
    );

    stage.act("counting").await?;
    let [alice, bob] = ["alice", "bob"].map(|id| stage.client(id));
    let line = alice.line()?;
    let lease_ms = u64::try_from(stage.lease().as_millis()).unwrap_or(1_000);
    let lock = CountingLock { owner: line.unique_token(), line, name: stage.key(LOCK), lease_ms };
    let taking = alice.does(lock.clone().acquire());
    if lost {
        alice.next_loses_reply("acquire", LOST).await?;
        let _ = taking.last("acquire-again", AGAIN).await??;
    } else {
        let _ = taking.last("acquire", ARRIVES).await??;
    }
    alice.believes(true);
    alice.stops_believing();
    let left = alice.does(lock.clone().release()).last("unlock", UNLOCKS).await??;
    if lost && left <= 0 {
        // Counted twice and given back once leaves one, unless the lease was over in between.
        return Err(Trouble::TooSlow("a lease ended while it was held"));
    }
    if left > 0 {
        let renewing = alice.does(lock.clone().renew());
        alice
            .renews(
                "renew",
                w(
                    "Her watchdog sees that the lock is still counted as hers, and renews. It will \
                     do so for as long as her process lives.",
                    "看门狗发现锁仍记在她名下，于是续期。只要她的进程活着，就会一直续下去。",
                ),
            )
            .await?;
        let _ = renewing.end().await??;
    }
    let line = bob.line()?;
    let his = CountingLock { owner: line.unique_token(), line, ..lock };
    let got_in = bob.does(his.acquire()).last("try", BOB_TRIES).await??;
    bob.believes(got_in);
    if got_in && lost && left > 0 {
        return Err(Trouble::TooSlow("a lease ended after its renewal"));
    }
    stage.ends(!got_in && !stage.is_believed(), if_broken, if_held)?;

    stage.act("request-id").await?;
    let [alice, bob] = ["alice", "bob"].map(|id| stage.client(id));
    let lock = ReentrantLock::new(alice.line()?, LONG);
    let taking = alice.acquires(&lock, LONG);
    let hers = if lost {
        alice.next_loses_reply("acquire", LOST).await?;
        taking
            .last(
                "acquire-again",
                w(
                    "Alice asks again, with the same request id: still one holding.",
                    "Alice 用同一个请求编号再试：仍然只算一次持有。",
                ),
            )
            .await?
    } else {
        taking.last("acquire", ARRIVES).await?
    };
    let hers = alice.must_hold(hers)?;
    let _ = alice.releases(hers).rest("unlock", UNLOCKS).await?.0?;
    let his = bob.tries(&ReentrantLock::new(bob.line()?, LONG), "try", BOB_TRIES).await?;
    stage.ends(his.is_none() && !stage.is_believed(), if_broken, if_held)
}
