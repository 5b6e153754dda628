//! B7: the unlock's message is published before the waiter subscribes.

use super::prelude::*;
use locks::{LockError, ReentrantLock};

pub const LESSON: Lesson = Lesson {
    number: 7,
    id: "b07",
    title: w("The lost wake-up", "丢失的唤醒"),
    failure: w(
        "Bob finds the lock taken and wants to be woken. Before he has subscribed, Alice unlocks \
         and her message reaches nobody. The lock is free, and Bob sleeps.",
        "Bob 发现锁被占用，打算等通知。就在他订阅之前，Alice 解锁了，她的消息没有任何人收到。锁是空闲的，Bob 却在睡觉。",
    ),
    forced_how: w(
        "Bob is held between his first attempt and his SUBSCRIBE until Alice has unlocked.",
        "让 Bob 停在第一次尝试与 SUBSCRIBE 之间，直到 Alice 解锁完毕。",
    ),
    cure: w(
        "Subscribe, then try again, then wait, and at most for what is left of the lease: whenever \
         the lock is freed, one of these sees it.",
        "先订阅，再试一次，然后才等待，而且最多等到剩余租期结束：无论锁何时释放，总有一步能看到。",
    ),
    source: w(
        "The course notes 《秒杀》: waiting by pub/sub and a semaphore within the waiting time, \
         instead of asking again and again. Pub/sub delivers at most once, and only to those who \
         listen at that moment: the order of the steps is everything.",
        "课程笔记《秒杀》：在等待时间内用发布订阅加信号量等待，而不是反复轮询。发布订阅最多投递一次，且只给当时在听的人：步骤的先后顺序就是一切。",
    ),
    needs: &[],
    options: &[choice(
        "unlock",
        &["before-subscribe", "after-subscribe"],
        w(
            "after-subscribe: Alice unlocks when Bob already listens. The message arrives, and \
             even the careless waiter is woken.",
            "after-subscribe：Bob 已经在听了 Alice 才解锁。消息送达，粗心的等待者也会被唤醒。",
        ),
    )],
    cast: &[ALICE, BOB, REDIS],
    acts: &[
        Act {
            id: "try-subscribe-wait",
            kind: Kind::Failure,
            title: w("Try, subscribe, wait", "先试、再订阅、再等"),
            say: w(
                "It looks natural: try; if that fails, subscribe; wait for the message.",
                "看上去很自然：先试；不行就订阅；然后等消息。",
            ),
        },
        Act {
            id: "subscribe-try-wait",
            kind: Kind::Cure,
            title: w("Subscribe, try again, wait", "先订阅、再试一次、再等"),
            say: w(
                "The same interleaving. After subscribing Bob looks once more before he sleeps.",
                "同样的交错。订阅之后，Bob 睡之前再看一眼。",
            ),
        },
    ],
};

/// The failing variant: waits for a message that may have come before it listened.
async fn acquire_carelessly(
    lock: ReentrantLock,
    line: Line,
    name: String,
) -> Result<Acquired<<ReentrantLock as Lock>::Guard>, LockError> {
    let remaining = match lock.acquire(&name, ZERO).await? {
        Acquired::Contended { remaining } => remaining.unwrap_or(LONG),
        held => return Ok(held),
    };
    // THE FLAW: what is published before this line is heard by nobody.
    let channel = format!("{name}:free");
    let subscribed = line.subscribe(&channel).await;
    let messages = subscribed.map_err(|error| line.lock_error(error))?;
    let _ = tokio::time::timeout(remaining, messages.next()).await;
    lock.acquire(&name, ZERO).await
}

const UNLOCKS: Words = w(
    "Alice unlocks, and publishes that the lock is free, to the clients that listen at this \
     moment.",
    "Alice 解锁，并发布“锁已空闲”。只有此刻在听的人才能收到。",
);
const SUBSCRIBES: Words = w("Bob subscribes.", "Bob 订阅。");
const HEARS: Words = w("The message reaches Bob.", "消息送到了 Bob。");

pub async fn play(stage: Stage) -> Result<(), Trouble> {
    let before = stage.options().is("unlock", "before-subscribe");
    let broken = w(
        "The lock is free, no message will come any more, and Bob sleeps until a lease is over \
         that nobody holds.",
        "锁是空闲的，不会再有消息，Bob 却要睡到一个没人持有的租期结束。",
    );
    let held = w("Bob got the lock as soon as it was free.", "锁一空闲，Bob 就拿到了。");

    for act in ["try-subscribe-wait", "subscribe-try-wait"] {
        stage.act(act).await?;
        let [alice, bob] = ["alice", "bob"].map(|id| stage.client(id));
        let hers = alice
            .takes(
                &ReentrantLock::new(alice.line()?, LONG),
                "acquire",
                w("Alice takes the lock.", "Alice 拿到锁。"),
            )
            .await?;
        let line = bob.line()?;
        let lock = ReentrantLock::new(line.clone(), LONG);
        let mut waiting = if act == "try-subscribe-wait" {
            bob.does(acquire_carelessly(lock, line, stage.key(LOCK)))
        } else {
            bob.acquires(&lock, LONG)
        };
        waiting
            .next(
                "try",
                w(
                    "Bob tries. Alice has it, for a long time, says the reply.",
                    "Bob 来抢。应答说：Alice 拿着，还要很久。",
                ),
            )
            .await?;
        bob.stands().await?;
        if before {
            let _ = alice.releases(hers).rest("unlock", UNLOCKS).await?.0?;
            waiting.next("subscribe", SUBSCRIBES).await?;
        } else {
            waiting.next("subscribe", SUBSCRIBES).await?;
            if act == "subscribe-try-wait" {
                waiting
                    .next(
                        "try-again",
                        w(
                            "Bob tries once more before he waits: still taken.",
                            "等待之前，Bob 再试一次：仍被占用。",
                        ),
                    )
                    .await?;
            }
            let _ = alice.releases(hers).rest("unlock", UNLOCKS).await?.0?;
            bob.hears("message", HEARS).await?;
        }
        if act == "try-subscribe-wait" && before {
            stage
                .happens(
                    "bob",
                    "sleeps",
                    w(
                        "Bob waits for a message. It has been sent, and was heard by nobody.",
                        "Bob 在等消息。消息早已发出，却没有人听到。",
                    ),
                )
                .await?;
            let free = stage.pttl(REDIS_NODE, LOCK).await? == -2;
            stage.ends(free && waiting.sleeps() && bob.heard_nothing(), broken, held)?;
        } else {
            let his = waiting
                .last(
                    "acquire",
                    w("Bob tries again, and the lock is his.", "Bob 再试一次，锁归他了。"),
                )
                .await??;
            stage.ends(his.held().is_none(), broken, held)?;
        }
    }
    Ok(())
}
