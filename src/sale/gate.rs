//! The admission gate: one task per sale that carries everybody who waits at this moment to Redis in
//! one call, and their verdicts back. It is group commit for a stock counter: the more people wait, the
//! more share one round trip, one log append and one fsync.
//!
//! ```text
//! handler ─▶ bounded queue ─▶ batch (≤ batch_limit) ─▶ admit.lua ─▶ verdicts ─▶ handlers
//!                                                           └─▶ accepted orders ─▶ writer's channel
//! ```
//!
//! One batch is in flight at a time; the next one fills meanwhile. Buyers are judged in the order in
//! which they joined the queue.
//!
//! **When something fails.** A batch whose reply is lost is asked again with the same order ids, and
//! Redis recognises an attempt that it has accepted already. When that does not succeed within
//! [`PATIENCE`], everybody in it gets 503. Whether such an order exists is then not known here and
//! not guessed: if it does, the log has it, and the buyer's retry names it.
//!
//! On a crash the queue is lost, nobody in it was answered, and what was accepted is in the log.

use crate::{
    domain::{Admission, IdempotencyKey, OrderId, Sale, UserId},
    fail_point::Injected,
    redis::{
        functions::{self, AdmitOptions, Admitted, Buyer, Fenced, Verdict},
        is_passing, is_wrong_type,
    },
    sale::{
        Shop, ShopError,
        board::Listing,
        ids::IdError,
        log::{AcceptedBatch, AcceptedOrder},
    },
    telemetry::traces,
};
use futures_util::FutureExt;
use opentelemetry::trace::SpanContext;
use std::{
    borrow::Borrow,
    panic::AssertUnwindSafe,
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, oneshot};
use tracing::Instrument;

/// The most buyers of a sale that may wait for a batch; beyond it they get 503 at once.
const QUEUE: usize = 65_536;

/// How long a batch is retried, and how long a buyer may wait for their batch to begin.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// The pause between two attempts of a batch.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

const SHUT: &str = "purchases are briefly suspended while the stock is checked";
const MOVING: &str = "purchases are briefly suspended while the sale moves to another server";
const OVERLOADED: &str = "too many people are waiting for this sale";
const BACKLOG_FULL: &str = "too many accepted orders are waiting to be written";
const NO_ANSWER: &str = "the stock could not be asked in time; if the purchase went through, a retry will name its order";

/// How long clients are asked to wait before they try again.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

type Answer = Result<Admission, &'static str>;

/// A buyer in the queue.
pub struct Waiting {
    user: UserId,
    key: Option<IdempotencyKey>,
    since: Instant,
    trace: Option<Box<SpanContext>>,
    answer: oneshot::Sender<Answer>,
}

/// Joins the sale's queue and waits for the verdict.
pub async fn ask(
    shop: &Arc<Shop>,
    listing: &Arc<Listing>,
    user: UserId,
    key: Option<IdempotencyKey>,
) -> Result<Admission, ShopError> {
    let (answer, verdict) = oneshot::channel();
    let waiting = Waiting {
        user,
        key,
        since: Instant::now(),
        trace: traces::here(),
        answer,
    };
    let joined = join(shop, listing, waiting);
    let answered = match joined {
        Ok(()) => {
            let verdict = verdict.instrument(traces::below_here("admission"));
            verdict.await.unwrap_or(Err(NO_ANSWER))
        }
        Err(_) => {
            shop.metrics.unavailable.increment(1);
            Err(OVERLOADED)
        }
    };
    answered.map_err(|what| ShopError::Unavailable {
        what,
        retry_after: RETRY_AFTER,
    })
}

/// Joins the sale's queue. The error: there is no room.
fn join(shop: &Arc<Shop>, listing: &Arc<Listing>, waiting: Waiting) -> Result<(), Waiting> {
    let queue = listing.queue.get_or_init(|| open(shop, listing));
    queue.try_send(waiting).map_err(|full| full.into_inner())
}

/// Starts the task of a sale's gate; it ends with the shop.
fn open(shop: &Arc<Shop>, listing: &Arc<Listing>) -> mpsc::Sender<Waiting> {
    let (sender, mut receiver) = mpsc::channel(QUEUE);
    let (shop, listing) = (Arc::downgrade(shop), Arc::downgrade(listing));
    tokio::spawn(async move {
        // After a panic the next batch is judged by a fresh run: the sale must not end with it.
        while AssertUnwindSafe(run(&shop, &listing, &mut receiver))
            .catch_unwind()
            .await
            .is_err()
        {}
    });
    sender
}

async fn run(shop: &Weak<Shop>, listing: &Weak<Listing>, queue: &mut mpsc::Receiver<Waiting>) {
    let mut waiting = Vec::new();
    let mut spare = SpareIds::default();
    loop {
        // Only as many are taken out as one batch may carry.
        let limit = shop.upgrade().map_or(1, |shop| shop.settings.batch_limit);
        if queue.recv_many(&mut waiting, limit).await == 0 {
            return;
        }
        // The queue's sender is the listing's own, so holding that would keep this task alive for ever.
        let (Some(shop), Some(listing)) = (shop.upgrade(), listing.upgrade()) else {
            return;
        };
        let began = Instant::now();
        // Who has hung up is not sold anything; who has waited too long has been told to come back
        // by their own client, most likely.
        waiting.retain(|buyer| !buyer.answer.is_closed());
        let (on_time, late): (Vec<_>, Vec<_>) = waiting
            .drain(..)
            .partition(|buyer| began.duration_since(buyer.since) < PATIENCE);
        refuse(&shop, late, OVERLOADED);
        if on_time.is_empty() {
            continue;
        }
        listing.touch();
        shop.metrics.batch_size.record(on_time.len() as f64);
        serve(&shop, &listing, on_time, &mut spare).await;
        shop.metrics
            .gate_seconds
            .record(began.elapsed().as_secs_f64());
    }
}

/// Answers everybody in a batch.
async fn serve(
    shop: &Arc<Shop>,
    listing: &Arc<Listing>,
    waiting: Vec<Waiting>,
    spare: &mut SpareIds,
) {
    let began = Instant::now();
    let requests = waiting.iter().filter_map(|buyer| buyer.trace.as_deref());
    let span = traces::shared("admission batch", requests);
    let judging = judge_crowd(shop, listing, &waiting, spare).instrument(span);
    let judged = AssertUnwindSafe(judging).catch_unwind().await;
    // A panic is a bug, and must not end the sale: whether the batch was accepted is then not
    // known here, as after any other failure.
    let judged = judged.unwrap_or(Err(NO_ANSWER));
    shop.capacity
        .note(judged.as_ref().map_or(0, Vec::len), began.elapsed());
    match judged {
        Ok(answers) => {
            for (buyer, answer) in waiting.into_iter().zip(answers) {
                count(shop, &answer);
                // A receiver that has gone is a client that hung up: its order stands.
                let _ = buyer.answer.send(answer);
            }
        }
        Err(why) => refuse(shop, waiting, why),
    }
}

fn count(shop: &Shop, answer: &Answer) {
    match answer {
        Ok(admission) => shop.metrics.verdicts(admission).increment(1),
        Err(_) => shop.metrics.unavailable.increment(1),
    }
}

fn refuse(shop: &Shop, waiting: Vec<Waiting>, why: &'static str) {
    shop.metrics.unavailable.increment(waiting.len() as u64);
    for buyer in waiting {
        let _ = buyer.answer.send(Err(why));
    }
}

/// Ids that were offered and not used: nobody was accepted under them, and the script said so.
/// Keeping them saves the day's numbers (and a lease) when a crowd is refused.
#[derive(Default)]
struct SpareIds {
    ids: Vec<OrderId>,
    since: Option<Instant>,
}

impl SpareIds {
    /// Ids stay close to the time of their order.
    const LIFE: Duration = Duration::from_secs(1);

    fn take(&mut self, count: usize) -> Vec<OrderId> {
        if self.since.is_none_or(|since| since.elapsed() > Self::LIFE) {
            self.ids.clear();
        }
        let left = self.ids.len().saturating_sub(count);
        self.ids.split_off(left)
    }

    fn give_back(&mut self, unused: impl Iterator<Item = OrderId>) {
        if self.ids.is_empty() {
            self.since = Some(Instant::now());
        }
        self.ids.extend(unused);
    }
}

/// Asks Redis about a batch; of a sale that seems to be sold out only about its first buyer, if that answer
/// goes for the others.
///
/// A buyer with an `Idempotency-Key` cannot be refused from memory: another instance may have sold to this very
/// key a moment ago, after a unit came back. But they need not be asked about one by one. When Redis tells the
/// first "sold out", and everybody whom it had admitted by then is known here by name, it would have told the
/// same to everybody else who was waiting then and is not among them. So the crowd that came too late costs Redis one
/// buyer a batch.
///
/// Nobody is overtaken: if it says anything else, the others are judged in their order.
async fn judge_crowd(
    shop: &Arc<Shop>,
    listing: &Arc<Listing>,
    waiting: &[Waiting],
    spare: &mut SpareIds,
) -> Result<Vec<Answer>, &'static str> {
    let (first, others) = waiting.split_at(waiting.len().min(1));
    let one_may_do = !others.is_empty()
        && listing.is_present()
        && listing.seems_sold_out()
        && listing.has_not_bought(first[0].user);
    if !one_may_do {
        let (answers, _) = judge(shop, listing, waiting, spare).await?;
        return Ok(answers);
    }
    let (mut answers, (epoch, admitted)) = judge(shop, listing, first, spare).await?;
    let is_sold_out = answers[..] == [Ok(Admission::SoldOut)];
    // Whom the first answer does not go for. Looked at once: a purchase elsewhere may add to the buyers.
    let asks = |buyer: &&Waiting| {
        !is_sold_out
            || !listing
                .buyers
                .had_bought_nothing(buyer.user, epoch, admitted)
    };
    let to_ask: Vec<&Waiting> = others.iter().filter(asks).collect();
    let asked = match judge(shop, listing, &to_ask, spare).await {
        Ok((answers, _)) => answers,
        // The first buyer's answer stands whatever becomes of these.
        Err(why) => vec![Err(why); to_ask.len()],
    };
    let mut asked = to_ask.iter().zip(asked).peekable();
    answers.extend(others.iter().map(|buyer| {
        let own = asked.next_if(|(next, _)| std::ptr::eq(**next, buyer));
        own.map_or(Ok(Admission::SoldOut), |(_, answer)| answer)
    }));
    Ok(answers)
}

/// Asks Redis about a batch until it answers, or for [`PATIENCE`]. Answers for each buyer, in order; and
/// the epoch, and how many Redis had admitted in it by then.
async fn judge<W: Borrow<Waiting>>(
    shop: &Arc<Shop>,
    listing: &Arc<Listing>,
    waiting: &[W],
    spare: &mut SpareIds,
) -> Result<(Vec<Answer>, (i64, i64)), &'static str> {
    if waiting.is_empty() {
        return Ok((Vec::new(), (0, 0)));
    }
    let fail_points = &shop.fail_points;
    if fail_points.at("gate.batched").await.is_err() {
        return Err(NO_ANSWER);
    }
    let began_ms = shop.now().unix_timestamp_nanos() / 1_000_000;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let mut ids = spare.take(waiting.len());
    let (mut reloaded, mut unanswered) = (false, false);
    loop {
        // Not even an order number: another server may be giving out the same ones by now.
        if listing.is_suspect() || shop.redis_is_doubtful.load(Relaxed) {
            return Err(SHUT);
        }
        let sale = listing.sale();
        let attempt_began = tokio::time::Instant::now();
        let attempted = tokio::time::timeout_at(deadline, attempt(shop, &sale, waiting, &mut ids));
        match attempted
            .await
            .unwrap_or_else(|_| Err(Failure::Broken("no answer in time".into())))
        {
            Ok((asked, admitted)) => {
                shop.board.clock.read(admitted.now_ms, asked);
                if fail_points.at("gate.answering").await.is_err() {
                    return Err(NO_ANSWER); // the log has what was accepted
                }
                // An attempt without an answer may still be on its way and use its ids later.
                if !unanswered {
                    let unused = admitted
                        .verdicts
                        .iter()
                        .zip(&ids)
                        .filter_map(|(verdict, id)| {
                            let used = matches!(
                                verdict,
                                Verdict::Accepted { .. } | Verdict::AcceptedBefore { .. }
                            );
                            (!used).then_some(*id)
                        });
                    spare.give_back(unused);
                }
                let counted = (sale.epoch, admitted.admitted);
                let answers = conclude(shop, listing, &sale, waiting, &ids, admitted, began_ms);
                return Ok((answers, counted));
            }
            // Another instance may have rebuilt this sale, or created it a moment ago: look again,
            // once, before calling for a rebuild.
            Err(Failure::Fenced(_)) if !reloaded => {
                reloaded = true;
                let refreshed = async {
                    let listing = shop.refresh(listing.id).await?;
                    shop.adopt(&listing).await
                };
                let refreshed = tokio::time::timeout_at(deadline, refreshed).await;
                if !matches!(refreshed, Ok(Ok(_))) {
                    return Err(SHUT);
                }
            }
            Err(Failure::Fenced(fenced)) => {
                tracing::warn!(sale = %listing.id, ?fenced, "redis has not the state that postgres names");
                if fenced == Fenced::Corrupt {
                    listing.suspect();
                }
                shop.rebuild_bell.notify_one();
                return Err(SHUT);
            }
            Err(Failure::Refused(error)) => {
                // Asking again in 20 ms would change nothing; but it may be another process by then.
                shop.redis.drop_shared();
                if is_wrong_type(&error) {
                    listing.suspect();
                    shop.rebuild_bell.notify_one();
                }
                tracing::warn!(sale = %listing.id, %error, "redis refuses a batch");
                return Err(NO_ANSWER);
            }
            Err(Failure::Later(error)) => {
                // Nobody was judged; an attempt that the deadline cuts short would leave that open.
                let next = RETRY_PAUSE + 2 * attempt_began.elapsed();
                if tokio::time::Instant::now() + next >= deadline {
                    tracing::warn!(sale = %listing.id, %error, buyers = waiting.len(), "redis cannot judge a batch now");
                    return Err(
                        if error.redirect_node().is_some() || error.code() == Some("TRYAGAIN") {
                            MOVING
                        } else {
                            SHUT
                        },
                    );
                }
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            Err(Failure::Broken(error)) => {
                unanswered = true;
                shop.redis.drop_shared();
                if tokio::time::Instant::now() + RETRY_PAUSE >= deadline {
                    tracing::warn!(sale = %listing.id, %error, buyers = waiting.len(), "no answer for a batch");
                    return Err(NO_ANSWER);
                }
                tracing::debug!(sale = %listing.id, %error, "asking again");
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
}

/// Why one attempt of a batch brought no verdicts.
enum Failure {
    /// Redis may not sell the sale in the epoch that this process believes in.
    Fenced(Fenced),
    /// Redis did not judge anybody, for a reason that goes by itself: the sale is on its way to another
    /// node of a cluster, or a node is being elected or loading.
    Later(redis::RedisError),
    /// Redis answered with an error (out of memory, read-only, a key of another type): the function
    /// reads everything that can fail before it writes, so nobody was judged.
    Refused(redis::RedisError),
    /// No connection, no reply, or no ids. The batch may or may not have been judged.
    Broken(String),
}

impl From<redis::RedisError> for Failure {
    fn from(error: redis::RedisError) -> Self {
        if is_passing(&error) {
            return Self::Later(error);
        }
        match error.kind() {
            redis::ErrorKind::Server(_) | redis::ErrorKind::Extension => Self::Refused(error),
            _ => Self::Broken(error.to_string()),
        }
    }
}

impl From<Injected> for Failure {
    fn from(error: Injected) -> Self {
        Self::Broken(error.to_string())
    }
}

async fn attempt<W: Borrow<Waiting>>(
    shop: &Shop,
    sale: &Sale,
    waiting: &[W],
    ids: &mut Vec<OrderId>,
) -> Result<(Instant, Admitted), Failure> {
    let mut connection = shop.redis.shared().await?;
    let missing = waiting.len() - ids.len();
    shop.ids
        .take(&mut connection, missing, ids)
        .await
        .map_err(|error| match error {
            IdError::Redis(error) => Failure::from(error),
            other => Failure::Broken(other.to_string()),
        })?;
    let buyers: Vec<Buyer> = waiting
        .iter()
        .map(Borrow::borrow)
        .zip(ids.iter())
        .map(|(buyer, order_id)| Buyer {
            user: buyer.user,
            order_id: *order_id,
            key: buyer.key,
        })
        .collect();
    let options = AdmitOptions {
        high_water: shop.settings.high_water.max(1),
        own_writer: shop.settings.own_writer,
        readmitted: None,
    };
    shop.fail_points.at("gate.asking").await?;
    let asked = Instant::now();
    shop.round_trips.redis.fetch_add(1, Relaxed);
    let keys = &shop.redis.keys;
    let judged = functions::admit(&mut connection, keys, sale.id, sale.epoch, options, &buyers)
        .instrument(traces::below_here("redis admit.lua"))
        .await?;
    shop.fail_points.at("gate.admitted").await?;
    judged
        .map(|admitted| (asked, admitted))
        .map_err(Failure::Fenced)
}

/// Turns verdicts into answers, tells the board, and hands what was accepted to the writer.
fn conclude<W: Borrow<Waiting>>(
    shop: &Arc<Shop>,
    listing: &Arc<Listing>,
    sale: &Sale,
    waiting: &[W],
    ids: &[OrderId],
    admitted: Admitted,
    began_ms: i128,
) -> Vec<Answer> {
    let epoch = sale.epoch;
    // What this call accepted, and what an earlier one did whose reply was lost.
    let (mut accepted, mut before) = (Vec::new(), Vec::new());
    let mut traced = Vec::new();
    let answers: Vec<Answer> = waiting
        .iter()
        .map(Borrow::borrow)
        .zip(ids)
        .zip(&admitted.verdicts)
        .map(|((buyer, id), verdict)| {
            Ok(match *verdict {
                Verdict::Accepted { slot } => {
                    traced.extend(buyer.trace.as_deref().map(|request| (*id, request.clone())));
                    accepted.push(AcceptedOrder {
                        id: *id,
                        user: buyer.user,
                        slot,
                        key: buyer.key,
                    });
                    Admission::Accepted {
                        order_id: *id,
                        replayed: false,
                    }
                }
                Verdict::AcceptedBefore { slot } => {
                    before.extend(slot.map(|slot| AcceptedOrder {
                        id: *id,
                        user: buyer.user,
                        slot,
                        key: buyer.key,
                    }));
                    Admission::Accepted {
                        order_id: *id,
                        replayed: false,
                    }
                }
                Verdict::Replay(order_id) => Admission::Accepted {
                    order_id,
                    replayed: true,
                },
                Verdict::AlreadyOrdered(order_id) => Admission::AlreadyOrdered { order_id },
                Verdict::SoldOut => Admission::SoldOut,
                Verdict::NotOpen => Admission::NotOpen {
                    opens_at: sale.opens_at,
                },
                Verdict::Paused => Admission::Paused,
                Verdict::Ended => Admission::Ended,
                Verdict::BacklogFull => return Err(BACKLOG_FULL),
            })
        })
        .collect();
    let users = accepted.iter().map(|order: &AcceptedOrder| order.user);
    listing.buyers.saw(epoch, admitted.admitted, users);
    let (change, remaining) = (admitted.change, admitted.remaining);
    listing.tell_remaining(epoch, change, remaining, Some(admitted.admitted));
    let hand_off = |entry: String, created_ms: i64, orders: Vec<AcceptedOrder>, traced| {
        let batch = AcceptedBatch {
            sale: sale.id,
            epoch,
            entry,
            created_ms,
            own_writer: shop.settings.own_writer,
            orders,
            traced,
        };
        if shop.settings.own_writer && shop.handoff.try_send(batch).is_err() {
            // The log has it; the recovery pass writes it once it is older than the grace period.
            shop.metrics.not_handed_off.increment(1);
        }
    };
    if let Some(entry) = admitted.entry {
        hand_off(entry, admitted.now_ms, accepted, traced);
    }
    if !before.is_empty() {
        // Which entry they stand in is not known, only that it is younger than this batch. Writing them
        // all the same keeps a second copy until they are rows, should Redis lose its own.
        let opened_ms = sale.opens_at.unix_timestamp_nanos() / 1_000_000;
        let created_ms = i64::try_from(began_ms.max(opened_ms)).unwrap_or(admitted.now_ms);
        hand_off(String::new(), created_ms, before, Vec::new());
    }
    answers
}

/// What became of orders that asked again.
pub struct Readmitted {
    /// One for each order, in order.
    pub verdicts: Vec<Verdict>,
    /// Those that are live in this epoch: accepted by this call, with their log entry, and accepted by
    /// an earlier one, whose entry is not known.
    pub live: Vec<AcceptedBatch>,
}

/// Admits orders that were accepted at `created_ms` (Unix) under an older epoch into the live one,
/// under their own ids.
pub async fn readmit(
    shop: &Shop,
    sale: &Sale,
    created_ms: i64,
    orders: &[AcceptedOrder],
) -> Result<Result<Readmitted, Fenced>, redis::RedisError> {
    let mut connection = shop.redis.pooled().await?;
    let buyers: Vec<Buyer> = orders
        .iter()
        .map(|order| Buyer {
            user: order.user,
            order_id: order.id,
            key: order.key,
        })
        .collect();
    let options = AdmitOptions {
        high_water: shop.settings.high_water.max(1),
        own_writer: true,
        readmitted: Some(created_ms.max(1)),
    };
    let asked = Instant::now();
    shop.round_trips.redis.fetch_add(1, Relaxed);
    let keys = &shop.redis.keys;
    let admitted =
        match functions::admit(&mut connection, keys, sale.id, sale.epoch, options, &buyers).await?
        {
            Ok(admitted) => admitted,
            Err(fenced) => return Ok(Err(fenced)),
        };
    shop.board.clock.read(admitted.now_ms, asked);
    let (mut accepted, mut before) = (Vec::new(), Vec::new());
    for (order, verdict) in orders.iter().zip(&admitted.verdicts) {
        match *verdict {
            Verdict::Accepted { slot } => accepted.push(AcceptedOrder { slot, ..*order }),
            Verdict::AcceptedBefore { slot: Some(slot) } => {
                before.push(AcceptedOrder { slot, ..*order });
            }
            _ => {}
        }
    }
    let entry = admitted.entry.unwrap_or_default();
    let live = [(entry, accepted), (String::new(), before)]
        .into_iter()
        .filter(|(_, orders)| !orders.is_empty())
        .map(|(entry, orders)| AcceptedBatch {
            sale: sale.id,
            epoch: sale.epoch,
            entry,
            created_ms,
            own_writer: true,
            orders,
            traced: Vec::new(),
        })
        .collect();
    Ok(Ok(Readmitted {
        verdicts: admitted.verdicts,
        live,
    }))
}
