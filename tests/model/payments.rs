//! One order and its payments in every state (I13). A step is a transaction of the ledger
//! (crates/payments/src/ledger) or what the provider does; between two anything else may happen.
//!
//! A webhook comes at any time after its event, again and again, or never: the inbox is left out. A
//! process that dies loses its calls one by one, like answers that are lost. The provider charges a
//! reference once, as long as the order is not closed for long, and would refund any number of
//! times. **Not in the model**: a provider that charges twice or refunds by itself (`it/payments`).

use crate::explorer::{Next, Step, breaks, visit};
use payments::ledger::PaymentState::{self, Captured, Declined, Pending, Refunded, Refunding};
use stateright::{Checker, Model, Property};

const ATTEMPTS: usize = 2;
/// Of all processes together.
const CALLS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    ApplyingAgainChangesNothing,
    LateMoneyGoesBack,
    ExpiryLeavesPaidOrders,
    RefundsAskTheProvider,
    RefundsHaveAKey,
    /// The order was closed for long before the provider knew nothing of the attempt.
    GivesUpWhatWasOver,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Order {
    Unpaid,
    Paid,
    /// Cancelled or expired.
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Hash)]
enum Time {
    Open,
    Due,
    /// Over for so long that no charge is on its way.
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Charge {
    succeeded: bool,
    refunds: u8,
}

/// A row of the ledger, and what the provider has under its reference.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Payment {
    state: PaymentState,
    is_operators: bool,
    has_page: bool,
    charge: Option<Charge>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum What {
    Charge,
    Refund,
    LookUp { was_over: bool },
}

/// What a process asked the provider about a payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Call {
    payment: usize,
    what: What,
    /// Otherwise it may still be carried out, and nobody hears of it.
    is_awaited: bool,
    /// The charge as it was then, if there was one: about to be noted.
    answer: Option<Option<Charge>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    order: Order,
    time: Time,
    payments: Vec<Payment>,
    calls: Vec<Call>,
    units_returned: u8,
}

struct Shop {
    without: Option<Rule>,
}

impl State {
    fn any(&self, is_it: impl Fn(&Payment) -> bool) -> bool {
        self.payments.iter().any(is_it)
    }

    fn find(&self, state: PaymentState) -> Option<usize> {
        self.payments.iter().position(|one| one.state == state)
    }

    fn is_payable(&self) -> bool {
        (self.order, self.time) == (Order::Unpaid, Time::Open)
    }

    fn close(&mut self) {
        self.order = Order::Closed;
        self.units_returned += 1;
    }

    fn call(&mut self, payment: usize, what: What) {
        self.calls.push(Call { payment, what, is_awaited: true, answer: None });
    }

    /// `Ledger::attempt`: the open one, or a new one.
    fn attempt(&mut self, then: impl FnOnce(&mut Self, usize)) {
        let is_free = self.find(Captured).is_none() && self.payments.len() < ATTEMPTS;
        if self.is_payable() && self.find(Pending).is_none() && is_free {
            let (state, is_operators, has_page, charge) = (Pending, false, false, None);
            self.payments.push(Payment { state, is_operators, has_page, charge });
        }
        if let Some(open) = self.find(Pending).filter(|_| self.is_payable()) {
            then(self, open);
        }
    }

    fn charge(&mut self, payment: usize, succeeded: bool) {
        self.payments[payment].charge.get_or_insert(Charge { succeeded, refunds: 0 });
    }

    /// `Ledger::refund`
    fn operator_refunds(&mut self, return_unit: bool) {
        if let Some(kept) = self.find(Captured) {
            (self.payments[kept].state, self.payments[kept].is_operators) = (Refunding, true);
        }
        if return_unit && self.order == Order::Paid && self.any(|one| one.is_operators) {
            self.close();
        }
    }
}

impl Shop {
    fn keeps(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    /// `Ledger::apply`
    fn apply(&self, state: &mut State, payment: usize, charge: Charge) {
        let known = match state.payments[payment].state {
            Captured if !self.keeps(Rule::ApplyingAgainChangesNothing) => Pending,
            known => known,
        };
        state.payments[payment].state = match (charge.succeeded, known) {
            (false, Pending) => Declined,
            (true, _) if charge.refunds > 0 => Refunded,
            (true, Pending | Declined) if state.is_payable() => {
                state.order = Order::Paid; // `mark_paid`
                Captured
            }
            (true, Pending | Declined) if self.keeps(Rule::LateMoneyGoesBack) => Refunding,
            (true, Pending) => Declined,
            _ => return,
        };
    }

    /// The provider carries a call out.
    fn run(&self, state: &mut State, at: usize, succeeds: bool) {
        let Call { payment, what, is_awaited, .. } = state.calls[at];
        if what == What::Charge {
            state.charge(payment, succeeds);
        }
        let charge = &mut state.payments[payment].charge;
        if let (What::Refund, Some(charge)) = (what, charge.as_mut()) {
            let is_new = charge.refunds == 0 || !self.keeps(Rule::RefundsHaveAKey);
            charge.refunds += u8::from(is_new);
        }
        state.calls[at].answer = Some(*charge);
        if !is_awaited {
            state.calls.remove(at);
        }
    }

    /// `apply`, `abandon`, or the end of `carry_out`.
    fn note(&self, state: &mut State, at: usize, answer: Option<Charge>) {
        let Call { payment, what, .. } = state.calls.remove(at);
        let is_over = !self.keeps(Rule::GivesUpWhatWasOver) && state.time == Time::Over;
        let known = &mut state.payments[payment].state;
        match (what, answer) {
            (What::Refund, _) if *known == Refunding => *known = Refunded,
            (_, Some(charge)) if what != What::Refund => self.apply(state, payment, charge),
            (What::LookUp { was_over }, None) if *known == Pending && (was_over || is_over) => {
                *known = Declined;
            }
            _ => {}
        }
    }

    fn calls(&self, next: &mut Next<'_, State>) {
        for (at, call) in next.before.calls.iter().enumerate() {
            if let Some(answer) = call.answer {
                next.may(format_args!("{call:?} is noted"), |state| self.note(state, at, answer));
            } else {
                for succeeds in [false, true] {
                    let run = |state: &mut State| self.run(state, at, succeeds);
                    next.may(format_args!("{call:?}: {succeeds}"), run);
                }
            }
            next.may(format_args!("{call:?} is lost"), |state| {
                let is_known = call.answer.is_some() || !call.is_awaited;
                state.calls[at].is_awaited = false;
                if is_known || matches!(call.what, What::LookUp { .. }) {
                    state.calls.remove(at);
                }
            });
        }
    }

    /// What may come of a payment: on the provider's page, by the shop's worker, by a webhook.
    fn payment(&self, next: &mut Next<'_, State>, at: usize) {
        let State { time, payments, calls, .. } = next.before;
        let Payment { state: known, has_page, charge, .. } = &payments[at];
        if *has_page && *time < Time::Over {
            for succeeds in [false, true] {
                let what = format_args!("decide {at}, {succeeds}");
                next.may(what, |state| state.charge(at, succeeds));
            }
        }
        let has_room = calls.len() < CALLS;
        match known {
            Pending if has_room => next.may(format_args!("reconcile {at}"), |state| {
                state.call(at, What::LookUp { was_over: *time == Time::Over });
            }),
            Refunding if !self.keeps(Rule::RefundsAskTheProvider) => {
                next.may(format_args!("forget {at}"), |state| state.payments[at].state = Refunded);
            }
            Refunding if has_room => {
                next.may(format_args!("carry out {at}"), |state| state.call(at, What::Refund));
            }
            _ => {}
        }
        if let Some(told) = charge {
            for refunds in 0..=told.refunds {
                next.may(format_args!("webhook {at}, refunds: {refunds}"), |state| {
                    self.apply(state, at, Charge { refunds, ..*told });
                });
            }
        }
    }
}

impl Model for Shop {
    type State = State;
    type Action = Step<State>;

    fn init_states(&self) -> Vec<State> {
        let (order, time) = (Order::Unpaid, Time::Open);
        vec![State { order, time, payments: vec![], calls: vec![], units_returned: 0 }]
    }

    fn actions(&self, before: &State, steps: &mut Vec<Self::Action>) {
        let State { order, time, ref calls, .. } = *before;
        let mut next = Next { before, steps, finish: |state| state.calls.sort_unstable() };
        self.calls(&mut next);
        next.may("checkout", |state| state.attempt(|all, at| all.payments[at].has_page = true));
        for return_unit in [false, true] {
            let what = format_args!("refund, {return_unit}");
            next.may(what, |state| state.operator_refunds(return_unit));
        }
        if calls.len() < CALLS {
            next.may("pay", |state| state.attempt(|all, at| all.call(at, What::Charge)));
        }
        let closes_paid = !self.keeps(Rule::ExpiryLeavesPaidOrders) && time > Time::Open;
        if order == Order::Unpaid || closes_paid && order == Order::Paid {
            next.may("cancelled or expired", State::close);
        }
        let charges = |call: &Call| (call.what, call.answer) == (What::Charge, None);
        match time {
            Time::Open => next.may("it is due", |state| state.time = Time::Due),
            Time::Due if !calls.iter().any(charges) => {
                next.may("it is over", |state| state.time = Time::Over);
            }
            _ => {}
        }
        (0..before.payments.len()).for_each(|at| self.payment(&mut next, at));
    }

    fn next_state(&self, _: &State, step: Self::Action) -> Option<State> {
        Some(step.next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ADDS_UP, |_, state: &State| {
                let charges = || state.payments.iter().filter_map(|one| one.charge);
                let captured = charges().filter(|charge| charge.succeeded).count();
                let refunded: u8 = charges().map(|charge| charge.refunds).sum();
                let is_returned = state.any(|one| one.is_operators);
                let kept = usize::from(state.order == Order::Paid && !is_returned);
                let is_open = state.any(|one| matches!(one.state, Pending | Refunding));
                let is_at_rest = state.calls.is_empty() && !is_open;
                !is_at_rest || captured == kept + usize::from(refunded)
            }),
            Property::always(PAID_HAS_MONEY, |_, state: &State| {
                let has_money = state.any(|one| one.state == Captured || one.is_operators);
                state.order != Order::Paid || has_money
            }),
            Property::always(MONEY_HAS_AN_ORDER, |_, state: &State| {
                state.find(Captured).is_none() || state.order == Order::Paid
            }),
            Property::always(REFUNDED_ONCE, |_, state: &State| {
                !state.any(|one| one.charge.is_some_and(|charge| charge.refunds > 1))
            }),
            Property::always("a unit comes back once, if its order closes", |_, state: &State| {
                state.units_returned == u8::from(state.order == Order::Closed)
            }),
            Property::sometimes("late money is back", |_, state: &State| {
                state.any(|one| one.state == Refunded && !one.is_operators)
            }),
            Property::sometimes("a refund is asked for twice at once", |_, state: &State| {
                state.calls.iter().filter(|call| call.what == What::Refund).count() == 2
            }),
            Property::sometimes("an attempt is given up", |_, state: &State| {
                state.any(|one| (one.state, one.charge) == (Declined, None))
            }),
            Property::sometimes("a second attempt is paid", |_, state: &State| {
                state.find(Captured) == Some(1)
            }),
        ]
    }
}

const ADDS_UP: &str = "at rest, captured - refunded = what the order costs if it is paid";
const PAID_HAS_MONEY: &str = "a paid order has its money, or an operator returned it";
const MONEY_HAS_AN_ORDER: &str = "captured money has a paid order";
const REFUNDED_ONCE: &str = "nothing is refunded twice";

#[test]
fn money_is_never_lost() {
    visit("payments", Shop { without: None }.checker()).assert_properties();
}

tests! { breaks:
    a_webhook_that_is_applied_twice:
        Shop { without: Some(Rule::ApplyingAgainChangesNothing) }, PAID_HAS_MONEY;
    late_money_that_is_kept: Shop { without: Some(Rule::LateMoneyGoesBack) }, ADDS_UP;
    an_expiry_that_wins_after_a_capture:
        Shop { without: Some(Rule::ExpiryLeavesPaidOrders) }, MONEY_HAS_AN_ORDER;
    a_refund_that_is_forgotten: Shop { without: Some(Rule::RefundsAskTheProvider) }, ADDS_UP;
    a_refund_without_a_key: Shop { without: Some(Rule::RefundsHaveAKey) }, REFUNDED_ONCE;
    an_attempt_that_is_given_up_too_early:
        Shop { without: Some(Rule::GivesUpWhatWasOver) }, ADDS_UP;
}
