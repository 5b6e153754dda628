//! B12: the lock is released before the transaction commits.

use super::prelude::*;
use locks::{LockError, TokenLock, wire::Sql};

pub const LESSON: Lesson = Lesson {
    number: 12,
    id: "b12",
    title: w("Unlocked before the commit", "提交之前就解锁"),
    failure: w(
        "Alice sells the phone in a transaction, unlocks, and commits. In between Bob gets the \
         lock and reads the row as it was before: one phone is left.",
        "Alice 在事务里卖出手机，先解锁，再提交。就在两者之间，Bob 拿到锁，读到的还是提交前的那一行：还剩一台。",
    ),
    forced_how: w(
        "Alice is held before her COMMIT until Bob has read.",
        "让 Alice 停在 COMMIT 之前，直到 Bob 读完。",
    ),
    cure: w(
        "Commit, then release. The lock has to be outside of the transaction, around it.",
        "先提交，再解锁。锁必须包在事务外面。",
    ),
    source: w(
        "The course notes 《秒杀》 have this rule (commit before unlock): with an annotation that \
         opens the transaction around the method, the lock inside it is released first. It has \
         nothing to do with which lock it is.",
        "课程笔记《秒杀》讲了这条规则（先提交再解锁）：用注解给整个方法开事务时，方法里的锁会先被释放。这与用哪种锁无关。",
    ),
    needs: &[],
    options: &[choice(
        "commit",
        &["late", "at-once"],
        w(
            "at-once: Alice's COMMIT follows her unlock so closely that nobody comes in between. \
             The bug is there and does not show, as on most days.",
            "at-once：Alice 解锁后紧接着提交，没有人插进来。缺陷还在，只是没有暴露，就像大多数日子那样。",
        ),
    )],
    cast: &[ALICE, BOB, REDIS, SHOP],
    acts: &[
        Act {
            id: "unlock-commit",
            kind: Kind::Failure,
            title: w("Unlock, then commit", "先解锁，再提交"),
            say: w(
                "What a transaction has written nobody else sees until it commits. The lock is \
                 gone before that.",
                "事务写的内容，提交之前别人看不到。而锁在此之前就没了。",
            ),
        },
        Act {
            id: "commit-unlock",
            kind: Kind::Cure,
            title: w("Commit, then unlock", "先提交，再解锁"),
            say: w("Two lines change places.", "两行代码换个位置。"),
        },
    ],
};

const READ: &str = "SELECT stock FROM lab.plays WHERE id = $1";
const WRITE: &str = "
    WITH sold AS (UPDATE lab.plays SET stock = $2 WHERE id = $1)
    INSERT INTO lab.play_orders (play, buyer) VALUES ($1, $3)";

/// The failing variant: sells one, if one is left.
async fn unlock_then_commit<G: Guard>(
    sql: Sql,
    play: String,
    buyer: &'static str,
    guard: G,
) -> Result<bool, LockError> {
    let mut transaction = sql.begin().await?;
    let row: Option<(i32,)> = transaction.optional(READ, |query| query.bind(&play)).await?;
    let stock = row.map_or(0, |(stock,)| stock);
    if stock > 0 {
        transaction.execute(WRITE, |query| query.bind(&play).bind(stock - 1).bind(buyer)).await?;
    }
    // THE FLAW: from here on somebody else reads what this transaction has not committed.
    let _ = guard.release().await?;
    transaction.commit().await?;
    Ok(stock > 0)
}

/// The cure: the same with the last two lines exchanged.
async fn commit_then_unlock<G: Guard>(
    sql: Sql,
    play: String,
    buyer: &'static str,
    guard: G,
) -> Result<bool, LockError> {
    let mut transaction = sql.begin().await?;
    let row: Option<(i32,)> = transaction.optional(READ, |query| query.bind(&play)).await?;
    let stock = row.map_or(0, |(stock,)| stock);
    if stock > 0 {
        transaction.execute(WRITE, |query| query.bind(&play).bind(stock - 1).bind(buyer)).await?;
    }
    transaction.commit().await?;
    let _ = guard.release().await?;
    Ok(stock > 0)
}

pub async fn play(stage: Stage) -> Result<(), Trouble> {
    let late = stage.options().is("commit", "late");
    let lock = |client: &Client| Ok::<_, Trouble>(TokenLock::new(client.line()?, LONG));
    let says = |client: &Client, en, zh| Said::from(w(en, zh)).with("who", client.name());
    let broken = w(
        "Both held the lock, one after the other, and yet both read the same phone: sold twice.",
        "两人先后持锁，一前一后，却读到了同一台手机：卖了两次。",
    );
    let held = w("One phone, one order.", "一台手机，一个订单。");

    for act in ["unlock-commit", "commit-unlock"] {
        stage.act(act).await?;
        stage.show_shop();
        let [alice, bob] = ["alice", "bob"].map(|id| stage.client(id));
        let play = stage.shop().play().to_owned();
        let takes = w("Alice takes the lock.", "Alice 拿到锁。");
        let hers = alice.takes(&lock(&alice)?, "acquire", takes).await?;
        let mut sale = if act == "unlock-commit" {
            alice.does(unlock_then_commit(alice.sql(), play.clone(), "alice", hers))
        } else {
            alice.does(commit_then_unlock(alice.sql(), play.clone(), "alice", hers))
        };
        sale.next("begin", says(&alice, "{who} begins a transaction.", "{who} 开启事务。")).await?;
        sale.next(
            "read-stock",
            says(&alice, "{who} reads: one phone is left.", "{who} 读库存：还剩一台。"),
        )
        .await?;
        sale.next(
            "sell",
            says(
                &alice,
                "{who} sells it. Outside of the transaction nobody sees that yet.",
                "{who} 卖出。事务之外还没有人能看到。",
            ),
        )
        .await?;
        let (unlock, commit) = (
            w("Alice unlocks.", "Alice 解锁。"),
            w(
                "Alice commits: now everybody sees what she wrote.",
                "Alice 提交：现在所有人都能看到她写的内容。",
            ),
        );
        if act == "unlock-commit" {
            alice.stops_believing();
            sale.next("unlock", unlock).await?;
            alice.stands().await?;
        }
        let mut sale = Some(sale);
        if act == "unlock-commit"
            && !late
            && let Some(sale) = sale.take()
        {
            let _sold = sale.last("commit", commit).await??;
        }
        let mut his = bob.tries(&lock(&bob)?, "try", w("Bob tries.", "Bob 来抢。")).await?;
        if his.is_none()
            && let Some(mut sale) = sale.take()
        {
            sale.next("commit", commit).await?;
            alice.stops_believing();
            let _sold = sale.last("unlock", unlock).await??;
            his = bob
                .tries(
                    &lock(&bob)?,
                    "try-again",
                    w("Bob tries again, and the lock is his.", "Bob 再试一次，锁归他了。"),
                )
                .await?;
        }
        let Some(his) = his else {
            return Err(Trouble::TooSlow("somebody should have the lock and has not"));
        };
        let mut buying = bob.does(commit_then_unlock(bob.sql(), play, "bob", his));
        buying.next("begin", says(&bob, "{who} begins a transaction.", "{who} 开启事务。")).await?;
        buying.next("read-stock", says(&bob, "{who} reads the stock.", "{who} 读库存。")).await?;
        if let Some(sale) = sale.take() {
            let _sold = sale.last("commit", commit).await??;
        }
        let follows = || {
            says(&bob, "{who} does what follows from what was read.", "{who} 按读到的结果继续。")
        };
        // He holds it while he writes and commits. How many steps that is depends on what he read,
        // so they run as one stretch, and his unlock, which ends it, is still drawn as held.
        let _sold = buying.rest("finish", follows()).await?.0?;
        bob.stops_believing();
        stage.ends(stage.shop().oversold().await? > 0, broken, held)?;
    }
    Ok(())
}
