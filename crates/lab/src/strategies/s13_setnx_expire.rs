//! 13. `setnx-expire`: a lock of two commands, SETNX and EXPIRE.

use crate::{
    options::{lease_ms, wait_ms},
    selling::{Buyer, Opening, Outcome, Sell, Trouble, ready},
    stand::{Stand, Transaction},
    strategy::{
        Demonstration, Family, Harm, Harms, OptionKind, OptionSpec, Possible, Promise, Scenario,
        Strategy, Words,
    },
};
use futures_util::future::BoxFuture;
use locks::{
    Lock, SetnxExpire,
    setnx_expire::Repair,
    wire::{Sent, Verdict, Watcher},
};
use std::sync::Arc;

pub const STRATEGY: Strategy = Strategy {
    number: 13,
    id: "setnx-expire",
    family: Family::DistributedLock,
    title: Words::new("SETNX, then EXPIRE", "SETNX 加 EXPIRE"),
    idea: Words::new(
        "The client that creates the key has the lock; a second command gives it an expiry, so \
         that a dead holder does not keep it for ever. Those who wait try again after a few random \
         milliseconds, for at most so long. A key found without an expiry is repaired: its maker \
         must have died in between.",
        "谁建成了键，谁就拿到锁；第二条命令给它设过期时间，免得持有者死了锁还在。等锁的人随机睡几毫秒再试，最多等这么久。发现键没有过期时间，就说明建它的人死在两条命令之间，于是替它修好。",
    ),
    source: Words::new(
        "《使用Redis实现分布式锁》. It gets the waiting right: a limit, zero for one try, random sleeps \
         against marching in step, an expiry that must be positive. Its repair calls SETNX and \
         EXPIRE and takes the lock without looking at what SETNX says, so two repairers both have \
         it; and its unlock never asks whose lock it deletes.",
        "《使用Redis实现分布式锁》。等锁的部分写得好：有时限，0 表示只试一次，随机休眠避免大家步调一致，过期时间必须大于 0。但它的“修复”调用 SETNX 和 EXPIRE 后不\
         看 SETNX 的回答就当作拿到了锁，两个人同时修复就都进去了；解锁时也从不问删的是谁的锁。",
    ),
    fails: Words::new(
        "Three ways. A crash between the two commands leaves a lock for ever. The repair for that \
         lets two in. And work that outlasts the expiry ends with deleting the next holder's lock, \
         so that a third comes in.",
        "有三种失败。死在两条命令之间，锁就永远在。为此设计的修复会放进两个人。活没干完锁先过期，最后还会删掉别人的锁，于是第三个人也进来。",
    ),
    break_it: Words::new(
        "crash_at=\"between SETNX and EXPIRE\" with repair=never, then with repair=take-over; \
         lease_ms=100 with pause_ms=500.",
        "crash_at=\"between SETNX and EXPIRE\"，先用 repair=never，再用 repair=take-over；或者 lease_ms=100 \
         加 pause_ms=500。",
    ),
    instead: Words::new(
        "One command that sets value and expiry together: set-px-no-owner (15), and better \
         token-lock (16).",
        "用一条命令同时设值和过期时间：set-px-no-owner（第 15 种），更好的是 token-lock（第 16 种）。",
    ),
    promise: Promise { one_node: HARMS, across_nodes: HARMS },
    needs: &[],
    options: &[lease_ms(2_000), wait_ms(5_000), REPAIR],
    crash_points: &["between SETNX and EXPIRE", "the stock is written", "committed"],
    demonstrations: &[
        Demonstration {
            shows: Harm::Undersells,
            teaches: Words::new(
                "The first holder dies between SETNX and EXPIRE, nobody repairs the key, and the \
                 sale is over: the lock stays for ever.",
                "第一个持有者死在 SETNX 和 EXPIRE 之间，没人修复这个键，抢购就此结束：锁永远在。",
            ),
            scenario: Scenario {
                concurrency: 5,
                options: &[
                    ("crash_at", "between SETNX and EXPIRE"),
                    ("restart_ms", "0"),
                    ("repair", "never"),
                    ("wait_ms", "50"),
                ],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            shows: Harm::Oversells,
            teaches: Words::new(
                "The same crash with the article's repair: two who have seen the key without an \
                 expiry both take it.",
                "同样的崩溃，用文章里的修复办法：两个看到“没有过期时间”的人都把锁拿走了。",
            ),
            scenario: Scenario {
                stock: 1,
                buyers: 12,
                concurrency: 4,
                options: &[
                    ("crash_at", "between SETNX and EXPIRE"),
                    ("restart_ms", "0"),
                    ("wait_ms", "50"),
                ],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            shows: Harm::Holds,
            teaches: Words::new(
                "The same crash with the right repair: only give the key its expiry, and line up \
                 again.",
                "同样的崩溃，用正确的修复办法：只给键补上过期时间，然后照常排队。",
            ),
            scenario: Scenario {
                stock: 1,
                buyers: 12,
                concurrency: 4,
                options: &[
                    ("crash_at", "between SETNX and EXPIRE"),
                    ("restart_ms", "0"),
                    ("repair", "only-expire"),
                    // The lease is longer than the first holder waits to be met.
                    ("wait_ms", "3400"),
                    ("lease_ms", "1600"),
                ],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            shows: Harm::Duplicates,
            teaches: Words::new(
                "One person clicks twice; the first click is paused past the expiry, the second \
                 comes in.",
                "一个人连点两下：第一下停顿到锁过期，第二下就进来了。",
            ),
            scenario: Scenario {
                options: &[("lease_ms", "100"), ("pause_ms", "500")],
                ..Scenario::DOUBLE_CLICK
            },
        },
    ],
    routes_by_buyer: false,
    code: include_str!("s13_setnx_expire.rs"),
};

const HARMS: Harms = Harms { oversells: Possible, undersells: Possible, duplicates: Possible };

const REPAIR: OptionSpec = OptionSpec {
    name: "repair",
    teaches: Words::new(
        "What to do, after waiting in vain, about a key without an expiry. take-over: the \
         article's SETNX and EXPIRE, whatever SETNX says. delete-and-take: DEL, then SETNX; it \
         deletes what another repairer has just taken. only-expire: the right one, which gives it \
         an expiry and no more. never: leave it.",
        "白等一场后发现键没有过期时间，怎么办。take-over：文章的办法，SETNX 加 EXPIRE，不看 SETNX 的回答。delete-and-take：先 DEL 再 \
         SETNX，会删掉别人刚拿到的锁。only-expire：正确的办法，只补过期时间。never：不管。",
    ),
    kind: OptionKind::Choice(&["take-over", "never", "delete-and-take", "only-expire"]),
};

// --- the purchase

/// Looks over the lock's shoulder: where it dies, and where two of it stand at once.
struct Between(Stand);

impl Watcher for Between {
    fn before<'a>(&'a self, sent: &'a Sent) -> BoxFuture<'a, Verdict> {
        Box::pin(async {
            if sent.text.starts_with("PEXPIRE") {
                self.0.crash_point("between SETNX and EXPIRE").await;
            }
            if sent.text.starts_with("PTTL") {
                let stand = self.0.clone();
                let meeting = async move { stand.meet("the key has no expiry").await };
                return Verdict::GoThenWait(Box::pin(meeting));
            }
            Verdict::Go
        })
    }
}

struct Node {
    lock: SetnxExpire,
    name: String,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    let line = stand.line().clone().watched_by(Arc::new(Between(stand.clone())));
    let repair = match stand.choice("repair") {
        "never" => Repair::Never,
        "delete-and-take" => Repair::DeleteAndTake,
        "only-expire" => Repair::OnlyExpire,
        _ => Repair::TakeOver,
    };
    let lock = SetnxExpire::new(line, stand.millis("lease_ms")).repaired_by(repair);
    ready(Node { lock, name: stand.key("lock"), stand })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let wait = stand.millis("wait_ms");
        let acquired = self.lock.acquire(&self.name, wait).await?;
        let Some(guard) = acquired.held() else {
            return Ok(Outcome::Contended);
        };
        let mut transaction = stand.begin().await?;
        let outcome = self.sell(&mut transaction, buyer).await;
        let outcome = transaction.end(outcome).await;
        stand.crash_point("committed").await; // the lock is not given back: its lease has to end it
        stand.release(guard).await;
        outcome
    }
}

impl Node {
    async fn sell(&self, transaction: &mut Transaction, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        if stand.has_bought(transaction.send(), buyer).await? {
            return Ok(Outcome::Duplicate);
        }
        let remaining: i32 = sqlx::query_scalar(
            "SELECT remaining FROM lab.stock WHERE arena = $1 AND item = 'thing'",
        )
        .bind(stand.arena())
        .fetch_one(transaction.send())
        .await?;
        if remaining < 1 {
            return Ok(Outcome::SoldOut);
        }

        stand.meet("the stock is read").await; // only if the lock lets two in
        stand.pause().await;
        stand.work().await;

        sqlx::query("UPDATE lab.stock SET remaining = $2 WHERE arena = $1 AND item = 'thing'")
            .bind(stand.arena())
            .bind(remaining - 1)
            .execute(transaction.send())
            .await?;
        stand.crash_point("the stock is written").await;
        stand.write_order(transaction.send(), buyer).await
    }
}
