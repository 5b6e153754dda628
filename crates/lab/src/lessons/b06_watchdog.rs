//! B6: a watchdog that renews for ever after a failed unlock, or stops after one error.

use super::prelude::*;
use locks::{
    TokenLock, token,
    wire::{LuaScript, millis},
};
use redis::RedisError;

pub const LESSON: Lesson = Lesson {
    number: 6,
    id: "b06",
    title: w("The watchdog that will not stop, or stops too soon", "停不下来或停得太早的看门狗"),
    failure: w(
        "The unlock fails, and the watchdog, which only a successful unlock would end, renews the \
         lock for ever. Or: one renewal fails, the watchdog ends without a word, and its holder \
         works on without a lock.",
        "解锁失败，而看门狗只有在解锁成功后才会停，于是永远续期。或者：一次续期失败，看门狗悄悄退出，持有者在没有锁的情况下继续干活。",
    ),
    forced_how: w(
        "One request of Alice breaks off before it is sent: her unlock, or one renewal.",
        "让 Alice 的一个请求在发出之前断掉：解锁请求，或者某一次续期。",
    ),
    cure: w(
        "End the watchdog before the unlock is sent. Try a failed renewal again until the lease is \
         truly over, and then tell the holder.",
        "先停看门狗，再发解锁请求。续期失败就一直重试到租期真正结束，然后通知持有者。",
    ),
    source: w(
        "The course notes 《秒杀》: a watchdog renews every third of the lease, only when no lease was \
         given. That is its idea; both failures here were real bugs of well-known libraries, in \
         what happens on an error.",
        "课程笔记《秒杀》：没有指定租期时，看门狗每三分之一租期续一次。思路没错；这里的两种故障都是知名类库真实出现过的缺陷，问题都出在“出错之后怎么办”。",
    ),
    needs: &[],
    options: &[
        whole(
            "lease_ms",
            900,
            300,
            5_000,
            w("How long the lock lasts without a renewal.", "不续期的话锁能持续多久。"),
        ),
        choice(
            "network",
            &["breaks", "holds"],
            w(
                "holds: no request breaks off. Neither failure happens.",
                "holds：没有请求中断，两种故障都不会发生。",
            ),
        ),
    ],
    cast: &[ALICE, BOB, REDIS],
    acts: &[
        Act {
            id: "for-ever",
            kind: Kind::Failure,
            title: w("It renews for ever", "永远续期"),
            say: w(
                "The watchdog is ended after a successful unlock. This unlock does not succeed.",
                "看门狗在解锁成功之后才停。这一次解锁没有成功。",
            ),
        },
        Act {
            id: "one-error",
            kind: Kind::Failure,
            title: w("It ends after one error", "一次错误就退出"),
            say: w(
                "The watchdog ends at the first renewal that fails. Nobody tells the holder.",
                "第一次续期失败，看门狗就退出了，也没人告诉持有者。",
            ),
        },
        Act {
            id: "ends-first",
            kind: Kind::Cure,
            title: w("Ended before the unlock", "先停看门狗，再解锁"),
            say: w(
                "The unlock fails as before. But no watchdog runs any more, so the lease ends the \
                 lock.",
                "解锁同样失败。但看门狗已经停了，租期会让锁自动释放。",
            ),
        },
        Act {
            id: "tries-again",
            kind: Kind::Cure,
            title: w("A failed renewal is tried again", "续期失败就重试"),
            say: w(
                "One renewal fails as before. There are two thirds of a lease left to try again.",
                "同样有一次续期失败。但还剩三分之二的租期可以重试。",
            ),
        },
        Act {
            id: "is-told",
            kind: Kind::Cure,
            title: w("When nothing helps, the holder is told", "实在不行，就通知持有者"),
            say: w(
                "No renewal gets through at all. When the lease is over the holder's signal fires, \
                 before anybody else can have the lock.",
                "所有续期都不通。租期结束时，持有者会收到信号，而且早于任何人能拿到锁的时刻。",
            ),
        },
    ],
};

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
    async fn renews_for_ever(self) -> Result<(), RedisError> {
        loop {
            tokio::time::sleep(self.lease / 3).await;
            // An error is ignored, and only the unlock ends this.
            let _ = self.renew().await;
        }
    }

    async fn renews_until_an_error(self) -> Result<(), RedisError> {
        loop {
            tokio::time::sleep(self.lease / 3).await;
            // THE FLAW: one error ends it, and nobody is told.
            self.renew().await?;
        }
    }

    async fn renew(&self) -> Result<bool, RedisError> {
        let call = RENEW.on(&[&self.name]).arg(&self.token).arg(millis(self.lease));
        self.line.run(&call).await
    }

    async fn unlock(self, watchdog: tokio::task::AbortHandle) -> Result<bool, RedisError> {
        // One attempt, so nothing has to be remembered for a second one.
        let call = token::undo(&self.name, &self.token);
        // THE FLAW: the question mark leaves before the watchdog is ended.
        let freed = self.line.run::<bool>(&call).await?;
        watchdog.abort();
        Ok(freed)
    }
}

const TAKES: Words =
    w("Alice takes the lock, for {lease} ms at a time.", "Alice 拿到锁，每次租期 {lease} 毫秒。");
const RENEWS: Words =
    w("A third of the lease is over: the watchdog renews it.", "过了三分之一租期：看门狗续期。");
const BREAKS: Words = w("The next renewal breaks off on its way.", "下一次续期在路上断了。");

pub async fn play(stage: Stage) -> Result<(), Trouble> {
    let breaks = stage.options().is("network", "breaks");

    for act in ["for-ever", "one-error"] {
        stage.act(act).await?;
        let [alice, bob] = ["alice", "bob"].map(|id| stage.client(id));
        let lock = TokenLock::new(alice.line()?, stage.lease());
        let hers = alice.takes(&lock, "acquire", lease_said(&stage, TAKES)).await?;
        let careless = Careless {
            line: alice.line()?,
            name: stage.key(LOCK),
            token: hers.token().to_owned(),
            lease: stage.lease(),
        };
        let bob_lock = TokenLock::new(bob.line()?, LONG);
        if act == "for-ever" {
            let watchdog = alice.does(careless.clone().renews_for_ever());
            alice.renews("renew", RENEWS).await?;
            alice.stops_believing();
            let unlocking = alice.does(careless.unlock(watchdog.abort_handle()));
            if breaks {
                alice
                    .next_fails(
                        "unlock",
                        w(
                            "Alice's work is done. Her unlock breaks off; she logs the error and \
                             goes home.",
                            "Alice 干完了。解锁请求中断；她记下错误就走了。",
                        ),
                    )
                    .await?;
                let _ = unlocking.end().await?;
                for _ in 0..2 {
                    alice
                        .renews(
                            "renew",
                            w(
                                "Nobody needs the lock any more. The watchdog renews it.",
                                "已经没人需要这把锁了，看门狗还在续期。",
                            ),
                        )
                        .await?;
                }
            } else {
                let _ = unlocking
                    .last(
                        "unlock",
                        w("Alice's work is done, and she unlocks.", "Alice 干完了，解锁。"),
                    )
                    .await?;
            }
            let his = bob.tries(&bob_lock, "try", w("Bob tries.", "Bob 来抢。")).await?;
            if his.is_some() && breaks {
                return Err(Trouble::TooSlow("a lease ended between two renewals"));
            }
            stage.ends(
                his.is_none() && !stage.is_believed(),
                w(
                    "Nobody holds the lock, and nobody will get it while Alice's process lives.",
                    "没有人持锁，但只要 Alice 的进程活着，谁也拿不到。",
                ),
                w("The unlock came through and ended the watchdog.", "解锁成功，看门狗也停了。"),
            )?;
        } else {
            let watchdog = alice.does(careless.renews_until_an_error());
            alice.renews("renew", RENEWS).await?;
            if breaks {
                alice.renewal_fails("renew", BREAKS).await?;
                let _ended = watchdog.end().await?;
                stage.until_gone(REDIS_NODE, LOCK).await?;
            } else {
                alice.renews("renew", RENEWS).await?;
            }
            let his = bob
                .tries(
                    &bob_lock,
                    "try",
                    w(
                        "Bob tries. Alice still works and believes that somebody renews.",
                        "Bob 来抢。Alice 还在干活，以为有人在替她续期。",
                    ),
                )
                .await?;
            if his.is_some() && !breaks {
                return Err(Trouble::TooSlow("a lease ended between two renewals"));
            }
            stage.ends(
                stage.overlap(),
                w(
                    "The lease ran out behind Alice's back: she and Bob hold the lock together.",
                    "租期在 Alice 不知情时耗尽：她和 Bob 同时持锁。",
                ),
                w(
                    "Every renewal came through, and Bob was turned away.",
                    "每次续期都成功，Bob 被拒绝。",
                ),
            )?;
        }
        drop(hers);
    }

    for act in ["ends-first", "tries-again", "is-told"] {
        stage.act(act).await?;
        let [alice, bob] = ["alice", "bob"].map(|id| stage.client(id));
        let lock = TokenLock::new(alice.line()?, stage.lease()).renewed();
        let hers = alice.takes(&lock, "acquire", lease_said(&stage, TAKES)).await?;
        let bob_lock = TokenLock::new(bob.line()?, LONG);
        match act {
            "ends-first" => {
                alice.renews("renew", RENEWS).await?;
                let unlocking = alice.releases(hers);
                if breaks {
                    let says = w(
                        "Alice ends her watchdog, then unlocks. That breaks off, each time she \
                         tries.",
                        "Alice 先停看门狗，再解锁。每次尝试都中断。",
                    );
                    let _failed = unlocking.rest_fails("unlock", says).await?.0;
                    stage.until_gone(REDIS_NODE, LOCK).await?;
                } else {
                    let _ = unlocking
                        .rest(
                            "unlock",
                            w(
                                "Alice ends her watchdog, then unlocks.",
                                "Alice 先停看门狗，再解锁。",
                            ),
                        )
                        .await?
                        .0?;
                }
                let his = bob
                    .tries(
                        &bob_lock,
                        "try",
                        w("Bob tries, when the lease is over.", "租期过后，Bob 来抢。"),
                    )
                    .await?;
                stage.ends(
                    his.is_none() || stage.overlap(),
                    w(
                        "Bob does not get the lock although nobody holds it.",
                        "没有人持锁，Bob 却拿不到。",
                    ),
                    w(
                        "Nothing renewed the lock: its lease ended it, and Bob has it.",
                        "没有人再续期：租期结束，锁归 Bob。",
                    ),
                )?;
            }
            "tries-again" => {
                if breaks {
                    alice.renewal_fails("renew", BREAKS).await?;
                }
                alice
                    .renews(
                        "renew",
                        w(
                            "The watchdog tries again, and the lease begins anew.",
                            "看门狗重试，租期重新开始。",
                        ),
                    )
                    .await?;
                let his = bob.tries(&bob_lock, "try", w("Bob tries.", "Bob 来抢。")).await?;
                if his.is_some() {
                    return Err(Trouble::TooSlow("a lease ended between two renewals"));
                }
                stage.ends(
                    stage.overlap(),
                    w("Two hold the lock.", "两个人同时持锁。"),
                    w(
                        "One lost renewal cost nothing: Alice still holds the lock, alone.",
                        "丢一次续期毫无影响：锁仍只归 Alice 一人。",
                    ),
                )?;
                drop(hers);
            }
            _ => {
                // Nobody answers the watchdog: its request stays in the gate.
                let why = tokio::time::timeout(stage.lease() * 3, hers.lost()).await;
                why.map_err(|_| Trouble::TooSlow("a lease does not end"))?;
                alice.stops_believing();
                stage
                    .happens(
                        "alice",
                        "lost",
                        w(
                            "The lease is over by Alice's clock, and no renewal was answered. Her \
                             signal fires: she stops working.",
                            "按 Alice 的时钟租期已到，没有一次续期得到应答。信号触发：她停止干活。",
                        ),
                    )
                    .await?;
                stage.until_gone(REDIS_NODE, LOCK).await?;
                let _his = bob
                    .tries(
                        &bob_lock,
                        "try",
                        w("Bob tries, when the key has gone.", "键消失后，Bob 来抢。"),
                    )
                    .await?;
                stage.ends(
                    stage.overlap(),
                    w("Two hold the lock.", "两个人同时持锁。"),
                    w("Alice knew before Bob came in. (Unless she stands still as well: lesson 4.)",
                        "Bob 进来之前 Alice 就知道了。（除非她自己也停住了：见第 4 课。）"),
                )?;
                drop(hers);
            }
        }
    }
    Ok(())
}
