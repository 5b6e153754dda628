//! B12: the lock is released before the transaction commits.

use super::prelude::*;
use super::shop::{READ, SELL};
use locks::wire::{Sql, SqlTransaction};
use locks::{LockError, TokenLock};

pub async fn play(stage: Stage) -> Result {
    unlock_commit(&stage).await?;
    commit_unlock(&stage).await
}

async fn unlock_commit(stage: &Stage) -> Result {
    let (alice, bob, mut sale) = alice_sells(stage, "unlock-commit", unlock_then_commit).await?;
    alice.stops_believing();
    sale.next("unlock").await?;
    alice.stands().await?;
    if stage.options().is("commit", "at-once") {
        let _sold = sale.last("commit").await??;
        return bob_buys(stage, &bob, None).await;
    }
    bob_buys(stage, &bob, Some(sale)).await
}

async fn commit_unlock(stage: &Stage) -> Result {
    let (alice, bob, mut sale) = alice_sells(stage, "commit-unlock", commit_then_unlock).await?;
    sale.next("commit").await?;
    if bob.tries(&TokenLock::new(bob.line(), LONG), "try").await?.is_some() {
        return stage.ends(true);
    }
    alice.stops_believing();
    let _sold = sale.last("unlock").await??;
    bob_buys(stage, &bob, None).await
}

type Sold = Result<bool, LockError>;

/// Alice has the lock, and has written what is not committed yet.
async fn alice_sells<F: Future<Output = Sold> + Send + 'static>(
    stage: &Stage,
    act: &str,
    sells: impl FnOnce(Sql, String, &'static str, Held<TokenLock>) -> F,
) -> Result<(Client, Client, Doing<Sold>)> {
    let [alice, bob] = stage.act(act, ["alice", "bob"]).await?;
    stage.show_shop();
    let hers = alice.takes(&TokenLock::new(alice.line(), LONG), "acquire").await?;
    let mut sale = alice.does(sells(alice.sql(), stage.shop().play.clone(), "alice", hers));
    for step in ["begin", "read-stock", "sell"] {
        sale.next(step).await?;
    }
    Ok((alice, bob, sale))
}

/// Bob takes the lock and buys; Alice's commit, if it is still to come, comes after his look.
async fn bob_buys(stage: &Stage, bob: &Client, sale: Option<Doing<Sold>>) -> Result {
    let his = bob.takes(&TokenLock::new(bob.line(), LONG), "take").await?;
    let mut buying = bob.does(commit_then_unlock(bob.sql(), stage.shop().play.clone(), "bob", his));
    buying.next("begin").await?;
    buying.next("bob-reads").await?;
    if let Some(sale) = sale {
        let _sold = sale.last("commit").await??;
    }
    // His unlock, which ends it, is still drawn as held.
    let named = |sent: &str| match sent {
        "COMMIT" => "commit",
        sent if sent.starts_with("WITH") => "sell",
        _ => "unlock",
    };
    let _sold = buying.rest_named(named).await??;
    bob.stops_believing();
    stage.ends(stage.overlap() || stage.shop().is_oversold().await?)
}

/// The failing variant.
async fn unlock_then_commit(
    sql: Sql,
    play: String,
    buyer: &'static str,
    lock: Held<TokenLock>,
) -> Sold {
    let mut transaction = sql.begin().await?;
    let sold = sells(&mut transaction, &play, buyer).await?;
    //= FLAW From here on others read the stock as it was before this transaction.
    let _ = lock.release().await?;
    transaction.commit().await?;
    Ok(sold)
}

/// The cure: the same with two lines exchanged.
async fn commit_then_unlock(
    sql: Sql,
    play: String,
    buyer: &'static str,
    lock: Held<TokenLock>,
) -> Sold {
    let mut transaction = sql.begin().await?;
    let sold = sells(&mut transaction, &play, buyer).await?;
    //= CURE The next holder reads what was written.
    transaction.commit().await?;
    let _ = lock.release().await?;
    Ok(sold)
}

/// Sells one, if one is left.
async fn sells(
    transaction: &mut SqlTransaction,
    play: &str,
    buyer: &str,
) -> Result<bool, sqlx::Error> {
    let row: Option<(i32,)> = transaction.row(READ, (play,)).await?;
    let stock = row.map_or(0, |(stock,)| stock);
    if stock > 0 {
        transaction.run(SELL, (play, stock - 1, buyer)).await?;
    }
    Ok(stock > 0)
}

pub const LESSON: Lesson = Lesson {
    number: 12,
    id: "b12",
    needs: &[],
    options: &[choice("commit", &["late", "at-once"])],
    cast: &[ALICE, BOB, REDIS, SHOP],
    acts: &[
        failure("unlock-commit", &[mark(file!(), "lock.release()")]),
        cure("commit-unlock", &[mark(file!(), "transaction.commit()")]),
    ],
};
