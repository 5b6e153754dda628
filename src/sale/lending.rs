//! Borrowing: a bucket that has run dry gets units from the others before anybody hears "sold out".
//!
//! ```text
//! lender: take (lend.lua) ─▶ borrower: receive, once (receive.lua) ─▶ lender: forget it (settle.lua)
//! ```
//!
//! **On a crash** between two steps the units stand in the lender's books, in no bucket: at every instant
//! stock = Σ remaining + Σ live orders + what is on its way. Whoever comes by finishes the loan, the next
//! borrower at once and [`crate::sale::lending::finish`] from a loop; every step may be repeated, by several
//! processes, at any later time (see `lend.lua`). A loss of any bucket, or a rebuild, ends the epoch and all
//! loans with it: the units are spread anew from what Postgres has.
//!
//! **When "sold out" may be said.** The buckets may lie on several servers, so nobody can read them at one
//! instant; and read one after the other, a unit that is lent meanwhile may be in no reading. So the buckets are
//! read twice. Every change of a bucket's units raises its `change`: if no counter differs between the two
//! looks, then all that the first one read was true at once, at the instant between the two. If it read of every
//! bucket that nothing remains and nothing is lent (a loan counts as lent until it is settled, after it is
//! received), then at that instant every unit was in a live order. That is an honest "sold out": whoever hears it
//! asked before that instant, or a moment after it (as stale as with one bucket, see [`super::board`]).
//!
//! It comes to an end: a look that finds a unit moves it here, and then it is sold here, or somebody was
//! quicker, who has sold it. Two dry buckets of two processes can take the last unit from each other before
//! their buyers are asked again (within one process a bucket that borrows does not lend); the pause between two
//! tries, of random length, ends that, and the buyers' patience bounds it: then they hear 503, not "sold out".

use super::{
    Shop, ShopError,
    board::{Listing, Tally},
    division::{Division, Seen},
    tallies::ask_tally,
};
use crate::{
    domain::{Bucket, Part, Sale},
    redis::{
        Connection, HotError,
        loans::{self, Left, Lent, Loan},
        scripts::Fenced,
    },
};
use futures_util::future::join_all;
use std::{cmp::Reverse, time::Duration};
use tokio::time::Instant;
use uuid::Uuid;

/// The longest pause after a try in which somebody else was quicker.
const PAUSE: Duration = Duration::from_millis(4);

/// How many buckets are asked at the same time.
const LENDERS: usize = 16;

/// What a dry bucket found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// It may have units now, or its state is another one by now: ask it again.
    AskAgain,
    /// There was an instant, since it was asked, at which no bucket had any, nor was any on its way.
    Nothing,
}

/// Why nothing can be said.
#[derive(Debug)]
pub enum Trouble {
    Fenced(Fenced),
    Redis(redis::RedisError),
    /// The live Redis process is not approved.
    Shut,
    OutOfTime,
}

impl From<redis::RedisError> for Trouble {
    fn from(error: redis::RedisError) -> Self {
        Self::Redis(error)
    }
}

impl From<Fenced> for Trouble {
    fn from(fenced: Fenced) -> Self {
        Self::Fenced(fenced)
    }
}

impl From<Trouble> for ShopError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Redis(error) => error.into(),
            Trouble::Fenced(_) | Trouble::Shut | Trouble::OutOfTime => ShopError::Unavailable {
                what: "units could not be moved between the buckets of the sale",
                retry_after: super::gate::RETRY_AFTER,
            },
        }
    }
}

/// Looks for units for a bucket that had none for `wanted` buyers. Bounded by `deadline`.
pub(crate) async fn borrow(
    shop: &Shop,
    listing: &Listing,
    bucket: Bucket,
    wanted: usize,
    deadline: Instant,
) -> Result<Found, Trouble> {
    let division = arc_swap::Guard::into_inner(listing.division());
    let sale = listing.sale();
    if division.of() != bucket.part.of || sale.bucket_count() != bucket.part.of {
        return Ok(Found::AskAgain); // divided anew; the gate sends its buyers where they belong now
    }
    let wanted = i64::try_from(wanted).unwrap_or(i64::MAX);
    tokio::time::timeout_at(deadline, search(shop, &division, &sale, bucket, wanted))
        .await
        .unwrap_or(Err(Trouble::OutOfTime))
}

async fn search(
    shop: &Shop,
    division: &Division,
    sale: &Sale,
    bucket: Bucket,
    wanted: i64,
) -> Result<Found, Trouble> {
    if shop.fail_points.planted("bug.sold_out_from_one_bucket") {
        return Ok(Found::Nothing);
    }
    if division.is_dry() {
        return Ok(Found::Nothing); // said without Redis, which may be away
    }
    let mut redis = hot(shop, bucket).await?;
    loop {
        if division.is_dry() {
            return Ok(Found::Nothing);
        }
        // What this process knows is enough to ask for a unit, and not enough to say that there is none.
        let mut known = division.readings();
        known.retain(|(_, reading)| reading.remaining > 0 && reading.epoch == sale.epoch);
        if known.iter().any(|(part, _)| *part == bucket.part) {
            return Ok(Found::AskAgain);
        }
        if known.is_empty() {
            if is_dry(shop, &mut redis, division, sale).await? {
                return Ok(Found::Nothing);
            }
            continue;
        }
        if collect(shop, &redis, division, sale, bucket, wanted, &known).await? > 0 {
            return Ok(Found::AskAgain);
        }
        // Somebody was quicker, or all that is left has just been borrowed by others here.
        let [fraction, ..] = *Uuid::new_v4().as_bytes();
        tokio::time::sleep(PAUSE * u32::from(fraction) / 256).await;
    }
}

/// Looks at all buckets, twice if the first look finds nothing; see the module's text. `false`: there is
/// something, or there was, and the division knows.
async fn is_dry(
    shop: &Shop,
    redis: &mut Connection,
    division: &Division,
    sale: &Sale,
) -> Result<bool, Trouble> {
    // All buckets run dry at about the same time, and the first one's look is everybody's.
    let _one_at_a_time = division.looking.lock().await;
    if division.is_dry() {
        return Ok(true);
    }
    let found = look(shop, redis, division, sale).await?;
    if found.iter().any(|tally| tally.remaining > 0) {
        return Ok(false);
    }
    if found.iter().any(|tally| tally.lent > 0) {
        for (lender, tally) in sale.all_buckets().zip(&found) {
            if tally.lent > 0 {
                finish(shop, division, sale, lender, |_, _| true).await?;
            }
        }
        return Ok(false);
    }
    // The instant lies here.
    let again = look(shop, redis, division, sale).await?;
    let of = |look: &[Tally]| -> Vec<(i64, i64)> {
        look.iter()
            .map(|tally| (tally.epoch, tally.change))
            .collect()
    };
    if of(&found) == of(&again) {
        division.tell_dry(&of(&again));
        return Ok(true);
    }
    Ok(false)
}

/// Moves up to `wanted` units into a bucket, or as many as are easily had; for an operator who takes units away.
/// That there were too few is for the caller to find out.
pub(super) async fn gather(
    shop: &Shop,
    sale: &Sale,
    bucket: Bucket,
    wanted: i64,
) -> Result<(), ShopError> {
    let listing = shop.listing(sale.id).await?;
    let division = arc_swap::Guard::into_inner(listing.division());
    if division.of() != bucket.part.of {
        return Ok(());
    }
    let gathered = async {
        let mut redis = hot(shop, bucket).await?;
        look(shop, &mut redis, &division, sale).await?;
        let known = division.readings();
        collect(shop, &redis, &division, sale, bucket, wanted, &known).await?;
        Ok::<_, Trouble>(())
    };
    Ok(gathered.await?)
}

/// Only from an approved process: one that came back with older data has units that are sold.
///
/// In a cluster it goes wherever a command's key is, to approved processes only; that the bucket's own is one of
/// them is seen here, the others when they are asked.
async fn hot(shop: &Shop, bucket: Bucket) -> Result<Connection, Trouble> {
    let key = shop.redis.keys.state(bucket);
    shop.redis.hot_for(&key).await.map_err(|error| match error {
        HotError::NotApproved { .. } => Trouble::Shut,
        HotError::Redis(error) => Trouble::Redis(error),
        other => Trouble::Redis(std::io::Error::other(other.to_string()).into()),
    })
}

/// Reads every bucket, and tells the division. All of them, in the epoch of `sale`.
async fn look(
    shop: &Shop,
    redis: &mut Connection,
    division: &Division,
    sale: &Sale,
) -> Result<Vec<Tally>, Trouble> {
    let mut pipeline = redis::Pipeline::with_capacity(usize::from(division.of()));
    for bucket in sale.all_buckets() {
        ask_tally(&mut pipeline, &shop.redis.keys, bucket);
    }
    let replies: Vec<redis::Value> = pipeline.query_async(redis).await?;
    let mut found = Vec::with_capacity(replies.len());
    for (part, reply) in division.parts().iter().zip(replies) {
        let tally = Tally::from_reply(reply).ok_or(Fenced::Absent)?;
        if tally.epoch != sale.epoch {
            return Err(Fenced::Epoch.into());
        }
        division.tell(part.part, Some(tally));
        found.push(tally);
    }
    if found.len() != usize::from(sale.bucket_count()) {
        return Err(Fenced::Absent.into());
    }
    Ok(found)
}

/// Borrows from the richest first, from several at the same time, until `wanted` units should be there. Answers how
/// many came.
async fn collect(
    shop: &Shop,
    redis: &Connection,
    division: &Division,
    sale: &Sale,
    borrower: Bucket,
    wanted: i64,
    known: &[(Part, Tally)],
) -> Result<i64, Trouble> {
    let mut lenders: Vec<(i64, Part)> = known
        .iter()
        .map(|(part, tally)| (tally.remaining, *part))
        .filter(|(remaining, part)| *remaining > 0 && *part != borrower.part)
        // What another gate of this process has just borrowed, its own buyers are about to take.
        .filter(|(_, part)| !division.parts()[usize::from(part.index)].is_hungry())
        .collect();
    // Of equals, each borrower begins with another one.
    let of = borrower.part.of;
    let distance = |part: Part| (part.index + of - borrower.part.index) % of;
    lenders.sort_unstable_by_key(|(remaining, part)| (Reverse(*remaining), distance(*part)));
    let mut missing = wanted;
    let mut asked = Vec::new();
    for (remaining, part) in lenders.into_iter().take(LENDERS) {
        if missing <= 0 {
            break;
        }
        let (lender, share) = (borrower.sibling(part.index), missing.min(remaining));
        missing -= share;
        let mut redis = redis.another();
        asked.push(
            async move { loan(shop, &mut redis, division, sale, lender, borrower, share).await },
        );
    }
    let mut got = 0;
    let mut failed = None;
    for loan in join_all(asked).await {
        match loan {
            Ok(units) => got += units,
            Err(trouble) => failed = Some(trouble),
        }
    }
    match failed {
        Some(trouble) if got == 0 => Err(trouble),
        _ => Ok(got),
    }
}

/// One loan, from the first step to the last. Answers how many units arrived.
async fn loan(
    shop: &Shop,
    redis: &mut Connection,
    division: &Division,
    sale: &Sale,
    lender: Bucket,
    borrower: Bucket,
    wanted: i64,
) -> Result<i64, Trouble> {
    let keys = &shop.redis.keys;
    let fail_points = &shop.fail_points;
    let gives_first = fail_points.planted("bug.give_before_taking");
    if gives_first {
        loans::invent(redis, keys, borrower, 1).await?;
        reach(shop, "loan.lent").await?;
        loans::invent(redis, keys, borrower, -1).await?;
    }
    let to = borrower.part.index;
    let (taken, left) = match loans::lend(redis, keys, lender, sale.epoch, to, wanted).await?? {
        Lent::Taken(loan, left) => {
            shop.metrics.loans.increment(1);
            shop.metrics
                .lent_units
                .increment(loan.amount.unsigned_abs());
            (Some(loan), left)
        }
        Lent::Open(loan, left) => (Some(loan), left),
        Lent::Dry(left) => (None, left),
    };
    tell(division, lender.part, sale.epoch, left);
    let Some(loan) = taken else { return Ok(0) };
    reach(shop, "loan.lent").await?;
    deliver(shop, redis, division, sale, lender, borrower, loan).await
}

/// The second and the third step of a loan, each as often as anybody likes.
async fn deliver(
    shop: &Shop,
    redis: &mut Connection,
    division: &Division,
    sale: &Sale,
    lender: Bucket,
    borrower: Bucket,
    loan: Loan,
) -> Result<i64, Trouble> {
    let keys = &shop.redis.keys;
    let (epoch, from) = (sale.epoch, lender.part.index);
    let (is_new, left) = loans::receive(redis, keys, borrower, epoch, from, loan).await??;
    if shop.fail_points.planted("bug.receive_twice") {
        loans::invent(redis, keys, borrower, loan.amount).await?;
    }
    tell(division, borrower.part, epoch, left);
    reach(shop, "loan.received").await?;
    let to = borrower.part.index;
    let left = loans::settle(redis, keys, lender, epoch, to, loan.number).await??;
    tell(division, lender.part, epoch, left);
    reach(shop, "loan.settled").await?;
    Ok(if is_new { loan.amount } else { 0 })
}

/// Finishes the loans of one lender that are open and `due`, by the borrower's index and the loan.
/// Idempotent. Answers how many.
pub(crate) async fn finish(
    shop: &Shop,
    division: &Division,
    sale: &Sale,
    lender: Bucket,
    mut due: impl FnMut(u16, Loan) -> bool,
) -> Result<usize, Trouble> {
    let mut redis = hot(shop, lender).await?;
    let books = loans::read(&mut redis, &shop.redis.keys, lender).await?;
    let mut finished = 0;
    for (to, loan) in books.open {
        if to < lender.part.of && due(to, loan) {
            let borrower = lender.sibling(to);
            deliver(shop, &mut redis, division, sale, lender, borrower, loan).await?;
            finished += 1;
        }
    }
    Ok(finished)
}

fn tell(division: &Division, part: Part, epoch: i64, left: Left) {
    let seen = Seen {
        remaining: left.remaining,
        admitted: None,
        lent: Some(left.lent),
    };
    division.tell_remaining(part, epoch, left.change, seen);
}

async fn reach(shop: &Shop, point: &'static str) -> Result<(), redis::RedisError> {
    shop.fail_points
        .at(point)
        .await
        .map_err(redis::RedisError::from)
}
