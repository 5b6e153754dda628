//! From the buyers' queue to the writer's channel, under many thousand schedules (the crate
//! `shuttle`). A replica of `gate::ask`, `gate::run` and `writer::run`: docs/model.md.
//! `SHUTTLE_RANDOM_SEED` replays one.

use futures_util::future::{Either, select};
use shuttle::{
    Config, Runner,
    future::{block_on, spawn, yield_now},
    rand::{Rng, thread_rng},
    scheduler::PctScheduler,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher, Hasher, RandomState},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::{mpsc, oneshot};

const BUYERS: u32 = 5;
const STOCK: usize = 3;
const QUEUE: usize = 3;
const BATCH_LIMIT: usize = 2;
const CHANNEL: usize = 1;
const SCHEDULES: usize = 4_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    /// Under this order id.
    Accepted(u32),
    AlreadyOrdered,
    SoldOut,
}

/// `Err`: 503.
type Answer = Result<Admission, &'static str>;

struct Waiting {
    user: u32,
    answer: oneshot::Sender<Answer>,
}

/// A log entry, and its copy in the channel.
#[derive(Clone)]
struct Batch {
    entry: u32,
    orders: Vec<u32>,
}

/// What goes wrong in a run, drawn anew for each schedule.
#[derive(Clone, Copy, Debug, Default)]
struct Trouble {
    /// The reply of this script call is lost: 0 is the first.
    lost_reply: Option<u32>,
    /// The gate's task dies (a panic) before this batch is answered.
    gate_dies_at: Option<u32>,
    /// The writer's task ends after so many batches, and its channel with it.
    writer_ends_after: Option<u32>,
    /// This buyer's client hangs up at some time.
    hangs_up: Option<u32>,
}

/// A mistake in the replica, to see that the properties notice it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    AnswersBeforeTheLog,
    DropsWhatTheChannelRefuses,
    ForgetsABuyer,
    JudgesTheLastFirst,
    RetriesUnderFreshIds,
    SellsToWhoHungUp,
}

#[derive(Default)]
struct World {
    next_id: u32,
    next_entry: u32,
    calls: u32,
    /// In Redis: who has bought, under which order.
    buyers: BTreeMap<u32, u32>,
    log: Vec<Batch>,
    /// In Postgres.
    rows: BTreeSet<u32>,
    /// Users in the order in which they joined the queue, and in which the script saw them.
    joined: Vec<u32>,
    judged: Vec<u32>,
    /// Who had hung up before the script saw them.
    gone: BTreeSet<u32>,
}

impl World {
    fn is_kept(&self, order: u32) -> bool {
        let in_log = self.log.iter().any(|batch| batch.orders.contains(&order));
        in_log || self.rows.contains(&order)
    }

    /// `admit.lua`
    fn admit(&mut self, buyers: &[(u32, u32)]) -> (Vec<Admission>, Option<Batch>) {
        let mut orders = Vec::new();
        let mut verdicts = Vec::new();
        for (user, order) in buyers {
            if !self.judged.contains(user) {
                self.judged.push(*user);
            }
            verdicts.push(match self.buyers.get(user) {
                Some(held) if held == order => Admission::Accepted(*order),
                Some(_) => Admission::AlreadyOrdered,
                None if self.buyers.len() == STOCK => Admission::SoldOut,
                None => {
                    self.buyers.insert(*user, *order);
                    orders.push(*order);
                    Admission::Accepted(*order)
                }
            });
        }
        if orders.is_empty() {
            return (verdicts, None);
        }
        let batch = Batch {
            entry: self.next_entry,
            orders,
        };
        self.next_entry += 1;
        self.log.push(batch.clone());
        (verdicts, Some(batch))
    }
}

/// What all tasks of a run share.
#[derive(Clone)]
struct Run {
    world: Arc<Mutex<World>>,
    trouble: Trouble,
    bug: Bug,
}

impl Run {
    fn world(&self) -> MutexGuard<'_, World> {
        // Never held over an await, so never waited for.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `gate::ask`
async fn ask(run: &Run, queue: &mpsc::Sender<Waiting>, user: u32) -> Answer {
    let (answer, verdict) = oneshot::channel();
    yield_now().await;
    match queue.try_send(Waiting { user, answer }) {
        Ok(()) => {
            run.world().joined.push(user);
            verdict.await.unwrap_or(Err("no answer"))
        }
        Err(_) => Err("overloaded"),
    }
}

/// `gate::run`
async fn serve(run: Run, mut queue: mpsc::Receiver<Waiting>, handoff: mpsc::Sender<Batch>) {
    let mut waiting = Vec::new();
    let mut batches = 0;
    while queue.recv_many(&mut waiting, BATCH_LIMIT).await > 0 {
        yield_now().await;
        if run.bug != Bug::SellsToWhoHungUp {
            waiting.retain(|buyer| !buyer.answer.is_closed());
        }
        for buyer in &waiting {
            if buyer.answer.is_closed() {
                run.world().gone.insert(buyer.user);
            }
        }
        if run.bug == Bug::JudgesTheLastFirst {
            waiting.reverse();
        }
        if waiting.is_empty() {
            continue;
        }
        let (verdicts, batch) = judge(&run, &waiting).await;
        if run.trouble.gate_dies_at == Some(batches) {
            return; // as a panic: everything that the task owns is dropped
        }
        batches += 1;
        if let Some(batch) = batch {
            let refused = handoff.try_send(batch);
            if run.bug == Bug::DropsWhatTheChannelRefuses
                && let Err(error) = refused
            {
                let entry = error.into_inner().entry;
                run.world().log.retain(|batch| batch.entry != entry);
            }
        }
        for (buyer, verdict) in waiting.drain(..).zip(verdicts) {
            if run.bug == Bug::ForgetsABuyer && buyer.user == 0 {
                std::mem::forget(buyer);
                continue;
            }
            let _ = buyer.answer.send(Ok(verdict));
            yield_now().await;
        }
    }
}

/// `gate::judge`: asks until there is a reply, under the same ids.
async fn judge(run: &Run, waiting: &[Waiting]) -> (Vec<Admission>, Option<Batch>) {
    let fresh_ids = || {
        let mut world = run.world();
        let first = world.next_id;
        world.next_id += waiting.len() as u32;
        (first..).take(waiting.len()).collect::<Vec<u32>>()
    };
    let mut ids = fresh_ids();
    if run.bug == Bug::AnswersBeforeTheLog {
        let accepted = ids.iter().map(|id| Admission::Accepted(*id));
        return (accepted.collect(), None);
    }
    loop {
        yield_now().await;
        let users = waiting.iter().map(|buyer| buyer.user);
        let buyers: Vec<(u32, u32)> = users.zip(ids.iter().copied()).collect();
        let (verdicts, batch, call) = {
            let mut world = run.world();
            let call = world.calls;
            world.calls += 1;
            let (verdicts, batch) = world.admit(&buyers);
            (verdicts, batch, call)
        };
        yield_now().await;
        if run.trouble.lost_reply != Some(call) {
            return (verdicts, batch);
        }
        if run.bug == Bug::RetriesUnderFreshIds {
            ids = fresh_ids();
        }
    }
}

/// `writer::run`
async fn write(run: Run, mut channel: mpsc::Receiver<Batch>) {
    let mut batches = 0;
    while run.trouble.writer_ends_after != Some(batches) {
        let Some(batch) = channel.recv().await else {
            return;
        };
        batches += 1;
        yield_now().await;
        run.world().rows.extend(&batch.orders);
        yield_now().await;
        run.world().log.retain(|entry| entry.entry != batch.entry);
    }
}

/// A client, which may hang up, and what it makes of its answer. Whether it got one.
async fn client(run: Run, queue: mpsc::Sender<Waiting>, user: u32) -> bool {
    let asked = pin!(ask(&run, &queue, user));
    let hang_up = async {
        if run.trouble.hangs_up != Some(user) {
            std::future::pending::<()>().await;
        }
        for _ in 0..thread_rng().gen_range(0..8) {
            yield_now().await;
        }
    };
    let answer = match select(asked, pin!(hang_up)).await {
        Either::Left((answer, _)) => answer,
        Either::Right(_) => return false,
    };
    match answer {
        Ok(Admission::Accepted(order)) => assert!(
            run.world().is_kept(order),
            "an order was answered before it was kept"
        ),
        Ok(Admission::AlreadyOrdered) => {
            panic!("somebody who asked once was told that they had ordered before")
        }
        Ok(Admission::SoldOut) | Err(_) => {}
    }
    true
}

fn one_run(bug: Bug, trouble: Trouble) {
    let run = Run {
        world: Arc::default(),
        trouble,
        bug,
    };
    block_on(async {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let (handoff, channel) = mpsc::channel(CHANNEL);
        let gate = spawn(serve(run.clone(), waiting, handoff));
        let writer = spawn(write(run.clone(), channel));
        let clients: Vec<_> = (0..BUYERS)
            .map(|user| spawn(client(run.clone(), queue.clone(), user)))
            .collect();
        drop(queue);
        // That nobody waits for ever: shuttle fails a run in which all tasks are stuck.
        for (user, client) in (0..).zip(clients) {
            let answered = client.await.expect("a client never panics by itself");
            assert!(answered || trouble.hangs_up == Some(user));
        }
        gate.await.expect("the gate ends with its last client");
        writer.await.expect("the writer ends with the gate");
    });

    let world = run.world();
    for order in world.buyers.values() {
        assert!(
            world.is_kept(*order),
            "a batch was neither written nor left in the log"
        );
    }
    let in_order: Vec<u32> = world
        .joined
        .iter()
        .copied()
        .filter(|user| world.judged.contains(user))
        .collect();
    assert_eq!(
        world.judged, in_order,
        "buyers were not judged in the order of their arrival"
    );
    let sold: BTreeSet<u32> = world.buyers.keys().copied().collect();
    assert!(
        sold.is_disjoint(&world.gone),
        "somebody who had hung up was sold something"
    );
}

/// Half of the runs without a given trouble, the other half with it at some point.
fn some_trouble() -> Trouble {
    fn perhaps(below: u32) -> Option<u32> {
        let mut random = thread_rng();
        let drawn = random.gen_range(0..below);
        random.gen_bool(0.5).then_some(drawn)
    }
    Trouble {
        lost_reply: perhaps(3),
        gate_dies_at: perhaps(3),
        writer_ends_after: perhaps(2),
        hangs_up: perhaps(BUYERS),
    }
}

#[test]
fn the_hand_over_holds() {
    shuttle::check_random(|| one_run(Bug::None, some_trouble()), SCHEDULES);
}

/// The same with priorities instead of dice, which reaches long delays of single tasks.
#[test]
fn the_hand_over_holds_with_slow_tasks() {
    let seed = RandomState::new().build_hasher().finish();
    println!("seed {seed}, unless SHUTTLE_RANDOM_SEED is set");
    let schedules = PctScheduler::new_from_seed(seed, 3, SCHEDULES);
    Runner::new(schedules, Config::new()).run(|| one_run(Bug::None, some_trouble()));
}

// ── Each property notices a mistake ─────────────────────────────────────────────────────────────────

fn with(bug: Bug) {
    shuttle::check_random(move || one_run(bug, some_trouble()), SCHEDULES);
}

#[test]
#[should_panic(expected = "answered before it was kept")]
fn answering_before_the_log_is_noticed() {
    with(Bug::AnswersBeforeTheLog);
}

#[test]
#[should_panic(expected = "kept")]
fn dropping_what_the_channel_refuses_is_noticed() {
    with(Bug::DropsWhatTheChannelRefuses);
}

#[test]
#[should_panic(expected = "deadlock")]
fn forgetting_a_buyer_is_noticed() {
    with(Bug::ForgetsABuyer);
}

#[test]
#[should_panic(expected = "order of their arrival")]
fn judging_the_last_first_is_noticed() {
    with(Bug::JudgesTheLastFirst);
}

#[test]
#[should_panic(expected = "had ordered before")]
fn retrying_under_fresh_ids_is_noticed() {
    with(Bug::RetriesUnderFreshIds);
}

#[test]
#[should_panic(expected = "had hung up")]
fn selling_to_who_hung_up_is_noticed() {
    with(Bug::SellsToWhoHungUp);
}
