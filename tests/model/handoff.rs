//! Queue to writer under thousands of schedules (docs/model.md); `SHUTTLE_RANDOM_SEED` replays one.

use futures_util::future::{Either, select};
use shuttle::future::{block_on, spawn, yield_now};
use shuttle::rand::{Rng, thread_rng};
use shuttle::{Config, Runner, scheduler::PctScheduler};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{mpsc, mpsc::error::TrySendError, oneshot};

const BUYERS: u32 = 5;
const STOCK: usize = 3;
const QUEUE: usize = 3;
const BATCH_LIMIT: usize = 2;
const CHANNEL: usize = 1;
const SCHEDULES: usize = 4_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    Accepted(u32),
    AlreadyOrdered,
    SoldOut,
}

struct PendingPurchase {
    user: u32,
    answer: oneshot::Sender<Admission>,
}

type Batch = Vec<u32>;

#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    lost_reply: Option<u32>,
    queue_dies_at: Option<u32>,
    /// The writer's task ends after so many batches, and its channel with it.
    writer_ends_after: Option<u32>,
    hangs_up: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    AnswerBeforeTheLog,
    DropRefusedBatches,
    ForgetABuyer,
    AdmitTheLastFirst,
    RetryUnderFreshIds,
    SellToGoneBuyers,
}

#[derive(Default)]
struct World {
    next_id: u32,
    calls: u32,
    buyers: BTreeMap<u32, u32>,
    log: Vec<Batch>,
    rows: BTreeSet<u32>,
    /// Users in the order of joining the queue, and in that of their admission.
    joined: Vec<u32>,
    admitted: Vec<u32>,
    gone: BTreeSet<u32>,
}

impl World {
    fn is_kept(&self, order: u32) -> bool {
        self.log.iter().any(|batch| batch.contains(&order)) || self.rows.contains(&order)
    }

    /// `admit.lua`
    fn admit(&mut self, buyers: Vec<(u32, u32)>) -> (Vec<Admission>, Option<Batch>) {
        let mut orders = Vec::new();
        let mut verdicts = Vec::new();
        for (user, order) in buyers {
            if !self.admitted.contains(&user) {
                self.admitted.push(user);
            }
            verdicts.push(match self.buyers.get(&user) {
                Some(held) if *held == order => Admission::Accepted(order),
                Some(_) => Admission::AlreadyOrdered,
                None if self.buyers.len() == STOCK => Admission::SoldOut,
                None => {
                    self.buyers.insert(user, order);
                    orders.push(order);
                    Admission::Accepted(order)
                }
            });
        }
        let batch = (!orders.is_empty()).then_some(orders);
        self.log.extend(batch.clone());
        (verdicts, batch)
    }
}

#[derive(Clone)]
struct Run {
    world: Arc<Mutex<World>>,
    faults: Faults,
    bug: Bug,
}

impl Run {
    fn world(&self) -> MutexGuard<'_, World> {
        // Never held over an await, so never waited for.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `None`: 503.
async fn ask(run: &Run, queue: &mpsc::Sender<PendingPurchase>, user: u32) -> Option<Admission> {
    let (answer, verdict) = oneshot::channel();
    yield_now().await;
    queue.try_send(PendingPurchase { user, answer }).ok()?;
    run.world().joined.push(user);
    verdict.await.ok()
}

async fn serve(run: Run, mut queue: mpsc::Receiver<PendingPurchase>, handoff: mpsc::Sender<Batch>) {
    let mut waiting = Vec::new();
    let mut batches = 0;
    while queue.recv_many(&mut waiting, BATCH_LIMIT).await > 0 {
        yield_now().await;
        if run.bug != Bug::SellToGoneBuyers {
            waiting.retain(|buyer| !buyer.answer.is_closed());
        }
        let gone = waiting.iter().filter(|buyer| buyer.answer.is_closed());
        run.world().gone.extend(gone.map(|buyer| buyer.user));
        if run.bug == Bug::AdmitTheLastFirst {
            waiting.reverse();
        }
        if waiting.is_empty() {
            continue;
        }
        let (verdicts, batch) = admit(&run, &waiting).await;
        if run.faults.queue_dies_at == Some(batches) {
            return; // as a panic: everything that the task owns is dropped
        }
        batches += 1;
        if let Some(batch) = batch {
            let refused = handoff.try_send(batch).err().map(TrySendError::into_inner);
            if run.bug == Bug::DropRefusedBatches {
                run.world().log.retain(|entry| Some(entry) != refused.as_ref());
            }
        }
        for (buyer, verdict) in waiting.drain(..).zip(verdicts) {
            if run.bug == Bug::ForgetABuyer && buyer.user == 0 {
                std::mem::forget(buyer);
                continue;
            }
            let _ = buyer.answer.send(verdict);
            yield_now().await;
        }
    }
}

async fn admit(run: &Run, waiting: &[PendingPurchase]) -> (Vec<Admission>, Option<Batch>) {
    let fresh_ids = || {
        let mut world = run.world();
        let first = world.next_id;
        world.next_id += waiting.len() as u32;
        (first..world.next_id).collect::<Vec<u32>>()
    };
    let mut ids = fresh_ids();
    if run.bug == Bug::AnswerBeforeTheLog {
        return (ids.iter().map(|id| Admission::Accepted(*id)).collect(), None);
    }
    loop {
        yield_now().await;
        let buyers = waiting.iter().map(|buyer| buyer.user).zip(ids.iter().copied()).collect();
        let call = run.world().calls;
        run.world().calls += 1;
        let reply = run.world().admit(buyers);
        yield_now().await;
        if run.faults.lost_reply != Some(call) {
            return reply;
        }
        if run.bug == Bug::RetryUnderFreshIds {
            ids = fresh_ids();
        }
    }
}

async fn write(run: Run, mut channel: mpsc::Receiver<Batch>) {
    let mut batches = 0;
    while run.faults.writer_ends_after != Some(batches) {
        let Some(batch) = channel.recv().await else { return };
        batches += 1;
        yield_now().await;
        run.world().rows.extend(&batch);
        yield_now().await;
        run.world().log.retain(|entry| *entry != batch);
    }
}

async fn client(run: Run, queue: mpsc::Sender<PendingPurchase>, user: u32) -> bool {
    let asked = pin!(ask(&run, &queue, user));
    let hang_up = async {
        if run.faults.hangs_up != Some(user) {
            std::future::pending::<()>().await;
        }
        for _ in 0..thread_rng().gen_range(0..8) {
            yield_now().await;
        }
    };
    let Either::Left((answer, _)) = select(asked, pin!(hang_up)).await else { return false };
    assert_ne!(answer, Some(Admission::AlreadyOrdered), "a user who asked once had ordered before");
    if let Some(Admission::Accepted(order)) = answer {
        assert!(run.world().is_kept(order), "an order was answered before it was kept");
    }
    true
}

fn one_run(bug: Bug, faults: Faults) {
    let run = Run { world: Arc::default(), faults, bug };
    block_on(async {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let (handoff, channel) = mpsc::channel(CHANNEL);
        let serving = spawn(serve(run.clone(), waiting, handoff));
        let writer = spawn(write(run.clone(), channel));
        let start = |user| spawn(client(run.clone(), queue.clone(), user));
        let clients: Vec<_> = (0..BUYERS).map(start).collect();
        drop(queue);
        // Nobody waits for ever: shuttle fails a run in which all tasks are stuck.
        for (user, client) in (0..).zip(clients) {
            assert!(client.await.expect("no panic") || faults.hangs_up == Some(user));
        }
        serving.await.expect("it ends with its last client");
        writer.await.expect("it ends with the queue");
    });
    let world = run.world();
    let kept = world.buyers.values().all(|order| world.is_kept(*order));
    assert!(kept, "a batch was neither written nor left in the log");
    let mut in_order = world.joined.clone();
    in_order.retain(|user| world.admitted.contains(user));
    assert_eq!(world.admitted, in_order, "not in the order of arrival");
    let sold_to_gone = world.buyers.keys().any(|user| world.gone.contains(user));
    assert!(!sold_to_gone, "a buyer who had hung up was sold something");
}

fn some_faults() -> Faults {
    let perhaps = |below: u32| thread_rng().gen_bool(0.5).then(|| thread_rng().gen_range(0..below));
    Faults {
        lost_reply: perhaps(3),
        queue_dies_at: perhaps(3),
        writer_ends_after: perhaps(2),
        hangs_up: perhaps(BUYERS),
    }
}

fn run_with(bug: Bug) {
    shuttle::check_random(move || one_run(bug, some_faults()), SCHEDULES);
}

#[test]
fn the_hand_over_holds() {
    run_with(Bug::None);
}

/// Priorities instead of dice reach long delays of single tasks.
#[test]
fn the_hand_over_holds_with_slow_tasks() {
    let seed = RandomState::new().build_hasher().finish();
    println!("seed {seed}, unless SHUTTLE_RANDOM_SEED is set");
    let schedules = PctScheduler::new_from_seed(seed, 3, SCHEDULES);
    Runner::new(schedules, Config::new()).run(|| one_run(Bug::None, some_faults()));
}

macro_rules! noticed {
    ($($name:ident: $bug:ident, $words:literal;)*) => {$(
        #[test]
        #[should_panic(expected = $words)]
        fn $name() {
            run_with(Bug::$bug);
        }
    )*};
}

noticed! {
    answering_before_the_log_is_noticed: AnswerBeforeTheLog, "answered before it was kept";
    dropping_refused_batches_is_noticed: DropRefusedBatches, "kept";
    forgetting_a_buyer_is_noticed: ForgetABuyer, "deadlock";
    admitting_the_last_first_is_noticed: AdmitTheLastFirst, "not in the order of arrival";
    retrying_under_fresh_ids_is_noticed: RetryUnderFreshIds, "had ordered before";
    selling_to_gone_buyers_is_noticed: SellToGoneBuyers, "had hung up";
}
