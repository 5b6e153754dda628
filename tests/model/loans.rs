//! Loans between the buckets of a sale, in every state: nothing is doubled, nothing is lost, "sold out" is said
//! only of a sale that was sold out, and every loan comes to its end.
//!
//! **The rules**, and where the program keeps them:
//!
//! 1. *Take first, give second*: units leave the lender before the borrower gets them (`lend.lua`, `receive.lua`).
//! 2. *A loan is received once*: the borrower remembers the last number of each lender, for ever (`receive.lua`).
//! 3. *One open loan a pair*, and it is forgotten only after it was received (`lend.lua`, `settle.lua`).
//! 4. *Every step names its epoch*; a rebuild ends them all (`seal.lua`, and the first lines of each script).
//! 5. *"Sold out" needs two looks* without a change between them (`src/sale/lending.rs`, `is_dry`).
//!
//! An action is one script. A process may stand still between any two, die, or go on after the world has changed;
//! whoever comes by may finish what is open. The scripts themselves are compared with a model of each in
//! `tests/it/buckets/loans.rs`.

use stateright::{Checker, HasDiscoveries, Model, Property};
use std::{collections::BTreeSet, time::Instant};

const BUCKETS: usize = 3;
const PROCESSES: usize = 2;

#[derive(Debug, Clone, Copy)]
struct Rules {
    take_first: bool,
    receive_once: bool,
    remember_for_ever: bool,
    settle_after_receiving: bool,
    epoch: bool,
    two_looks: bool,
    lent_counts: bool,
}

const ALL: Rules = Rules {
    take_first: true,
    receive_once: true,
    remember_for_ever: true,
    settle_after_receiving: true,
    epoch: true,
    two_looks: true,
    lent_counts: true,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Loan {
    epoch: u8,
    from: usize,
    to: usize,
    number: u8,
    amount: u8,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Bucket {
    remaining: u8,
    /// Grows with every change of what is above and below.
    change: u8,
    /// By borrower: the last loan's number, and its amount while it is open.
    lent: [(u8, u8); BUCKETS],
    /// By lender: the last number received.
    got: [u8; BUCKETS],
    waiting: u8,
}

impl Bucket {
    fn has_lent(&self) -> bool {
        self.lent.iter().any(|(_, amount)| *amount > 0)
    }
}

/// What a process is in the middle of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Doing {
    Nothing,
    /// The units are taken, or (without rule 1) given.
    Receiving(Loan),
    Settling(Loan),
    /// Without rule 1: has given what it has not taken.
    Taking(Loan),
    /// Without rule 3: has settled what is not received.
    ReceivingSettled(Loan),
    /// Reads one bucket after the other, twice. `was_dry` is what really was, since the look began.
    Looking {
        epoch: u8,
        read: usize,
        changes: [u8; BUCKETS],
        was_dry: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    epoch: u8,
    buckets: [Bucket; BUCKETS],
    live: u8,
    doing: [Doing; PROCESSES],
    /// Somebody heard "sold out", and it was not true at any moment of the look.
    lied: bool,
    said: bool,
    loans: u8,
    crashes: u8,
    rebuilds: u8,
    returns: u8,
}

impl World {
    fn in_flight(&self) -> u8 {
        let mut units = 0;
        for (from, lender) in self.buckets.iter().enumerate() {
            for (to, (number, amount)) in lender.lent.iter().enumerate() {
                if *amount > 0 && self.buckets[to].got[from] < *number {
                    units += amount;
                }
            }
        }
        units
    }

    fn remaining(&self) -> u8 {
        self.buckets.iter().map(|bucket| bucket.remaining).sum()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    /// A buyer who waits in this bucket is judged.
    Admit(usize),
    /// A unit comes back to this bucket.
    Return(usize),
    /// This process lends: from, to.
    Lend(usize, usize, usize),
    /// It makes its next step.
    Step(usize),
    /// It begins to look whether all is sold.
    Look(usize),
    /// It finds this pair's open loan in the lender's books, and goes on with it.
    Find(usize, usize, usize),
    Crash(usize),
    Rebuild,
}

struct Lending {
    rules: Rules,
    stock: u8,
    /// In each bucket.
    buyers: u8,
    loans: u8,
    crashes: u8,
    rebuilds: u8,
    returns: u8,
}

impl Lending {
    fn share(&self, units: u8, bucket: usize) -> u8 {
        units / BUCKETS as u8 + u8::from(bucket < usize::from(units) % BUCKETS)
    }

    fn fenced(&self, world: &World, epoch: u8) -> bool {
        self.rules.epoch && world.epoch != epoch
    }

    fn receive(&self, world: &mut World, loan: Loan) {
        let borrower = &mut world.buckets[loan.to];
        if self.rules.receive_once && borrower.got[loan.from] >= loan.number {
            return;
        }
        borrower.remaining += loan.amount;
        borrower.change += 1;
        borrower.got[loan.from] = loan.number;
    }

    fn settle(&self, world: &mut World, loan: Loan) {
        let lender = &mut world.buckets[loan.from];
        let (number, amount) = &mut lender.lent[loan.to];
        if *number == loan.number && *amount > 0 {
            *amount = 0;
            lender.change += 1;
        }
        if !self.rules.remember_for_ever {
            world.buckets[loan.to].got[loan.from] = 0;
        }
    }

    /// The next step of a process; what it does after it.
    fn step(&self, world: &mut World, process: usize) -> Doing {
        match world.doing[process].clone() {
            Doing::Nothing => Doing::Nothing,
            Doing::Receiving(loan) if self.fenced(world, loan.epoch) => Doing::Nothing,
            Doing::Receiving(loan) => {
                if self.rules.settle_after_receiving {
                    self.receive(world, loan);
                    Doing::Settling(loan)
                } else {
                    self.settle(world, loan);
                    Doing::ReceivingSettled(loan)
                }
            }
            Doing::ReceivingSettled(loan) => {
                if !self.fenced(world, loan.epoch) {
                    self.receive(world, loan);
                }
                Doing::Nothing
            }
            Doing::Settling(loan) => {
                if !self.fenced(world, loan.epoch) {
                    self.settle(world, loan);
                }
                Doing::Nothing
            }
            Doing::Taking(loan) => {
                let lender = &mut world.buckets[loan.from];
                lender.remaining = lender.remaining.saturating_sub(loan.amount);
                lender.change += 1;
                Doing::Nothing
            }
            Doing::Looking {
                epoch,
                read,
                mut changes,
                was_dry,
            } => {
                let bucket = &world.buckets[read % BUCKETS];
                let lent = self.rules.lent_counts && bucket.has_lent();
                if world.epoch != epoch || bucket.remaining > 0 || lent {
                    return Doing::Nothing;
                }
                if read < BUCKETS {
                    changes[read] = bucket.change;
                } else if changes[read - BUCKETS] != bucket.change {
                    return Doing::Nothing;
                }
                let last = if self.rules.two_looks { 2 } else { 1 } * BUCKETS;
                if read + 1 == last {
                    world.said = true;
                    world.lied |= !was_dry;
                    return Doing::Nothing;
                }
                Doing::Looking {
                    epoch,
                    read: read + 1,
                    changes,
                    was_dry,
                }
            }
        }
    }
}

impl Model for Lending {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let buckets = std::array::from_fn(|at| Bucket {
            remaining: self.share(self.stock, at),
            waiting: self.buyers,
            ..Bucket::default()
        });
        vec![World {
            epoch: 1,
            buckets,
            live: 0,
            doing: std::array::from_fn(|_| Doing::Nothing),
            lied: false,
            said: false,
            loans: self.loans,
            crashes: self.crashes,
            rebuilds: self.rebuilds,
            returns: self.returns,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for (at, bucket) in world.buckets.iter().enumerate() {
            if bucket.waiting > 0 && bucket.remaining > 0 {
                actions.push(Action::Admit(at));
            }
            if world.returns > 0 && world.live > 0 {
                actions.push(Action::Return(at));
            }
        }
        for (process, doing) in world.doing.iter().enumerate() {
            if *doing != Doing::Nothing {
                actions.push(Action::Step(process));
                if world.crashes > 0 {
                    actions.push(Action::Crash(process));
                }
                continue;
            }
            if !world.said {
                actions.push(Action::Look(process));
            }
            for from in 0..BUCKETS {
                for to in (0..BUCKETS).filter(|to| *to != from) {
                    let lender = &world.buckets[from];
                    if lender.lent[to].1 > 0 {
                        actions.push(Action::Find(process, from, to));
                    } else if world.loans > 0 && lender.remaining > 0 {
                        actions.push(Action::Lend(process, from, to));
                    }
                }
            }
        }
        if world.rebuilds > 0 {
            actions.push(Action::Rebuild);
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        match action {
            Action::Admit(at) => {
                let bucket = &mut world.buckets[at];
                bucket.waiting -= 1;
                bucket.remaining -= 1;
                bucket.change += 1;
                world.live += 1;
            }
            Action::Return(at) => {
                world.returns -= 1;
                world.live -= 1;
                world.buckets[at].remaining += 1;
                world.buckets[at].change += 1;
            }
            Action::Lend(process, from, to) => {
                world.loans -= 1;
                let epoch = world.epoch;
                let lender = &mut world.buckets[from];
                let amount = lender.remaining.div_ceil(2);
                let number = lender.lent[to].0 + 1;
                let loan = Loan {
                    epoch,
                    from,
                    to,
                    number,
                    amount,
                };
                world.doing[process] = if self.rules.take_first {
                    lender.remaining -= amount;
                    lender.lent[to] = (number, amount);
                    lender.change += 1;
                    Doing::Receiving(loan)
                } else {
                    world.buckets[to].remaining += amount;
                    world.buckets[to].change += 1;
                    Doing::Taking(loan)
                };
            }
            Action::Find(process, from, to) => {
                let (number, amount) = world.buckets[from].lent[to];
                let epoch = world.epoch;
                world.doing[process] = Doing::Receiving(Loan {
                    epoch,
                    from,
                    to,
                    number,
                    amount,
                });
            }
            Action::Look(process) => {
                world.doing[process] = Doing::Looking {
                    epoch: world.epoch,
                    read: 0,
                    changes: [0; BUCKETS],
                    was_dry: false,
                };
            }
            Action::Step(process) => world.doing[process] = self.step(&mut world, process),
            Action::Crash(process) => {
                world.crashes -= 1;
                world.doing[process] = Doing::Nothing;
            }
            Action::Rebuild => {
                world.rebuilds -= 1;
                world.epoch += 1;
                let left = self.stock - world.live;
                for (at, bucket) in world.buckets.iter_mut().enumerate() {
                    let waiting = bucket.waiting;
                    *bucket = Bucket {
                        remaining: self.share(left, at),
                        waiting,
                        ..Bucket::default()
                    };
                }
            }
        }
        // What is really so, for those who look.
        if world.remaining() + world.in_flight() == 0 {
            for doing in &mut world.doing {
                if let Doing::Looking { was_dry, .. } = doing {
                    *was_dry = true;
                }
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(CONSERVED, |model: &Self, world: &World| {
                world.remaining() + world.live + world.in_flight() == model.stock
            }),
            Property::always(HONEST, |_, world: &World| !world.lied),
            Property::always(ENDS, |model: &Self, world: &World| {
                let mut actions = Vec::new();
                model.actions(world, &mut actions);
                let open = world.buckets.iter().any(Bucket::has_lent);
                !(actions.is_empty() && open)
            }),
            Property::sometimes(SAID, |_, world: &World| world.said),
            Property::sometimes(IN_FLIGHT, |_, world: &World| {
                world.in_flight() > 0 && world.doing.iter().all(|doing| *doing == Doing::Nothing)
            }),
        ]
    }
}

const CONSERVED: &str = "I4: what remains, the live orders and what is on its way are the stock";
const HONEST: &str = "I5: sold out is said only if all was sold at some moment of the look";
const ENDS: &str = "nothing comes to rest with an open loan";
const SAID: &str = "somebody hears that all is sold";
const IN_FLIGHT: &str = "units are on their way, and nobody is at it";

/// Two units, and somebody waits in each of three buckets.
fn lending(rules: Rules) -> Lending {
    Lending {
        rules,
        stock: 2,
        buyers: 1,
        loans: 2,
        crashes: 1,
        rebuilds: 0,
        returns: 0,
    }
}

fn holds(name: &str, model: Lending) {
    let began = Instant::now();
    let checker = model.checker().spawn_bfs().join();
    println!(
        "{name}: {} states, up to {} steps deep, {:.1} s",
        checker.unique_state_count(),
        checker.max_depth(),
        began.elapsed().as_secs_f64()
    );
    for property in [CONSERVED, HONEST, ENDS] {
        if let Some(path) = checker.discovery(property) {
            panic!("{name}: not always: {property}\n{:#?}", path.into_actions());
        }
    }
    for corner in [SAID, IN_FLIGHT] {
        assert!(
            checker.discovery(corner).is_some(),
            "{name}: never: {corner}"
        );
    }
}

/// Without one of the rules this property breaks.
fn breaks(name: &str, model: Lending, property: &'static str) {
    let checker = model
        .checker()
        .finish_when(HasDiscoveries::AnyOf(BTreeSet::from([property])))
        .target_state_count(4_000_000)
        .spawn_bfs()
        .join();
    let steps = checker.discovery(property).map(|path| path.into_actions());
    println!(
        "{name}: {} states, not always: {property}\n    {steps:?}",
        checker.unique_state_count()
    );
    assert!(steps.is_some(), "{name}: the model does not miss the rule");
}

#[test]
fn borrowing_with_a_crash() {
    holds("two units, a crash", lending(ALL));
}

#[test]
fn borrowing_while_a_unit_comes_back() {
    let model = Lending {
        returns: 1,
        ..lending(ALL)
    };
    holds("two units, a crash, a unit comes back", model);
}

#[test]
fn borrowing_while_the_sale_is_rebuilt() {
    let model = Lending {
        rebuilds: 1,
        ..lending(ALL)
    };
    holds("two units, a crash, a rebuild", model);
}

#[test]
fn without_taking_first() {
    let rules = Rules {
        take_first: false,
        ..ALL
    };
    breaks("giving first", lending(rules), CONSERVED);
}

#[test]
fn without_receiving_once() {
    let rules = Rules {
        receive_once: false,
        ..ALL
    };
    breaks("receiving twice", lending(rules), CONSERVED);
}

/// Who stood still before it received finds no trace of the loan, which others have finished.
#[test]
fn without_remembering_for_ever() {
    let rules = Rules {
        remember_for_ever: false,
        ..ALL
    };
    breaks("forgetting the number", lending(rules), CONSERVED);
}

#[test]
fn without_settling_last() {
    let rules = Rules {
        settle_after_receiving: false,
        ..ALL
    };
    breaks("settling first", lending(rules), CONSERVED);
}

#[test]
fn without_the_epoch() {
    let rules = Rules {
        epoch: false,
        ..ALL
    };
    let model = Lending {
        rebuilds: 1,
        ..lending(rules)
    };
    breaks("no epoch", model, CONSERVED);
}

#[test]
fn without_a_second_look() {
    let rules = Rules {
        two_looks: false,
        ..ALL
    };
    let model = Lending {
        loans: 3,
        ..lending(rules)
    };
    breaks("one look", model, HONEST);
}

#[test]
fn without_counting_what_is_lent() {
    let rules = Rules {
        lent_counts: false,
        ..ALL
    };
    breaks("not counting what is on its way", lending(rules), HONEST);
}
