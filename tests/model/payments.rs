//! One order and its payments in every state (I13). A step is a transaction of the ledger
//! (crates/payments/src/ledger) or what the provider does; between two anything else may happen.
//!
//! A webhook comes at any time after its event, again and again, or never: the inbox is left out. A
//! process that dies loses its calls one by one, like answers that are lost. The provider charges a
//! reference once, as long as the order is not closed for long, and would refund any number of
//! times. **Not in the model**: a provider that charges twice or refunds by itself (`it/payments`).

use payments::ledger::PaymentState::{self, Captured, Declined, Pending, Refunded, Refunding};
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::collections::BTreeSet;

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
enum Step {
    Charges,
    Refunds,
    LooksUp { was_over: bool },
    Told(Charge),
    ToldNothing { was_over: bool },
    ToldRefunded,
}

/// What a process asked the provider about a payment, or was told and has not noted yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Call {
    payment: usize,
    step: Step,
    /// Otherwise it may still be carried out, and nobody hears of it.
    is_awaited: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    order: Order,
    time: Time,
    payments: Vec<Payment>,
    calls: Vec<Call>,
    units_returned: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// `Ledger::attempt`, then `charge` is called.
    Pay,
    /// `Ledger::attempt`, then `checkout`; the shopper may decide on the page.
    Checkout,
    Decide(usize, bool),
    /// The provider carries a call out.
    Runs(usize, bool),
    AnswerIsLost(usize),
    /// `apply`, `abandon`, or the end of `carry_out`.
    Noted(usize),
    /// `receive`
    Webhook(usize, Charge),
    /// `reconcile`
    LookUp(usize),
    /// `carry_out`
    CarryOut(usize),
    /// `Ledger::refund`, by an operator, who may return the unit.
    Refund(bool),
    /// The shopper cancels; `expire_due`.
    Close,
    TimePasses,
}

struct Shop {
    without: Option<Rule>,
}

impl State {
    fn find(&self, state: PaymentState) -> Option<usize> {
        self.payments.iter().position(|one| one.state == state)
    }

    fn any(&self, is_it: impl Fn(&Payment) -> bool) -> bool {
        self.payments.iter().any(is_it)
    }

    fn is_payable(&self) -> bool {
        (self.order, self.time) == (Order::Unpaid, Time::Open)
    }

    fn is_at_rest(&self) -> bool {
        self.calls.is_empty() && self.find(Pending).or(self.find(Refunding)).is_none()
    }

    fn call(&mut self, payment: usize, step: Step) {
        self.calls.push(Call { payment, step, is_awaited: true });
    }

    fn close(&mut self) {
        self.order = Order::Closed;
        self.units_returned += 1;
    }

    fn attempt(&mut self) -> Option<usize> {
        let may_add = self.find(Captured).is_none() && self.payments.len() < ATTEMPTS;
        if self.is_payable() && self.find(Pending).is_none() && may_add {
            let (state, is_operators, has_page, charge) = (Pending, false, false, None);
            self.payments.push(Payment { state, is_operators, has_page, charge });
        }
        self.find(Pending).filter(|_| self.is_payable())
    }

    fn charge(&mut self, payment: usize, succeeded: bool) -> Charge {
        *self.payments[payment].charge.get_or_insert(Charge { succeeded, refunds: 0 })
    }

    fn operator_refunds(&mut self, return_unit: bool) {
        if let Some(kept) = self.find(Captured) {
            (self.payments[kept].state, self.payments[kept].is_operators) = (Refunding, true);
        }
        let is_refunded = self.any(|one| one.is_operators);
        if is_refunded && return_unit && self.order == Order::Paid {
            self.close();
        }
    }
}

impl Shop {
    fn keeps(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

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

    fn run(&self, state: &mut State, at: usize, succeeds: bool) {
        let Call { payment, step, is_awaited } = state.calls[at];
        state.calls[at].step = match (step, &mut state.payments[payment].charge) {
            (Step::Charges, _) => Step::Told(state.charge(payment, succeeds)),
            (Step::Refunds, Some(charge)) => {
                let is_new = charge.refunds == 0 || !self.keeps(Rule::RefundsHaveAKey);
                charge.refunds += u8::from(is_new);
                Step::ToldRefunded
            }
            (Step::LooksUp { .. }, Some(charge)) => Step::Told(*charge),
            (Step::LooksUp { was_over }, None) => Step::ToldNothing { was_over },
            (told, _) => told,
        };
        if !is_awaited {
            state.calls.remove(at);
        }
    }

    fn note(&self, state: &mut State, Call { payment, step, .. }: Call) {
        let asked_too_early = !self.keeps(Rule::GivesUpWhatWasOver);
        let is_over = |was_over| was_over || asked_too_early && state.time == Time::Over;
        let known = &mut state.payments[payment].state;
        match (step, &known) {
            (Step::Told(charge), _) => self.apply(state, payment, charge),
            (Step::ToldNothing { was_over }, Pending) if is_over(was_over) => *known = Declined,
            (Step::ToldRefunded, Refunding) => *known = Refunded,
            _ => {}
        }
    }
}

impl Model for Shop {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let (order, time) = (Order::Unpaid, Time::Open);
        vec![State { order, time, payments: vec![], calls: vec![], units_returned: 0 }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        use Action::*;
        let has_room = state.calls.len() < CALLS;
        let closes_paid = !self.keeps(Rule::ExpiryLeavesPaidOrders) && state.time > Time::Open;
        let may_close = state.order == Order::Unpaid || closes_paid && state.order == Order::Paid;
        let charges = state.calls.iter().any(|call| call.step == Step::Charges);
        let may_pass = state.time == Time::Open || state.time == Time::Due && !charges;
        let mut may = |condition: bool, some: &[Action]| {
            actions.extend_from_slice(if condition { some } else { &[] });
        };
        may(true, &[Checkout, Refund(true), Refund(false)]);
        may(has_room, &[Pay]);
        may(may_close, &[Close]);
        may(may_pass, &[TimePasses]);
        for (at, Call { step, is_awaited, .. }) in state.calls.iter().enumerate() {
            let is_told =
                matches!(step, Step::Told(_) | Step::ToldNothing { .. } | Step::ToldRefunded);
            may(!is_told, &[Runs(at, true), Runs(at, false)]);
            may(is_told && *is_awaited, &[Noted(at)]);
            may(true, &[AnswerIsLost(at)]);
        }
        for (at, Payment { state: known, has_page, charge, .. }) in
            state.payments.iter().enumerate()
        {
            may(*has_page && state.time < Time::Over, &[Decide(at, true), Decide(at, false)]);
            may(has_room && *known == Pending, &[LookUp(at)]);
            may(has_room && *known == Refunding, &[CarryOut(at)]);
            let Some(charge) = charge else { continue };
            (0..=charge.refunds).for_each(|refunds| {
                may(true, &[Webhook(at, Charge { refunds, ..*charge })]);
            });
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        let was_over = state.time == Time::Over;
        match action {
            Action::Pay => {
                let payment = state.attempt()?;
                state.call(payment, Step::Charges);
            }
            Action::Checkout => {
                let payment = state.attempt()?;
                state.payments[payment].has_page = true;
            }
            Action::Decide(payment, succeeds) => drop(state.charge(payment, succeeds)),
            Action::Runs(call, succeeds) => self.run(&mut state, call, succeeds),
            Action::AnswerIsLost(at) => match &mut state.calls[at] {
                Call { step: Step::Charges | Step::Refunds, is_awaited, .. } if *is_awaited => {
                    *is_awaited = false;
                }
                _ => drop(state.calls.remove(at)),
            },
            Action::Noted(at) => {
                let call = state.calls.remove(at);
                self.note(&mut state, call);
            }
            Action::Webhook(payment, charge) => self.apply(&mut state, payment, charge),
            Action::LookUp(payment) => state.call(payment, Step::LooksUp { was_over }),
            Action::CarryOut(payment) if self.keeps(Rule::RefundsAskTheProvider) => {
                state.call(payment, Step::Refunds);
            }
            Action::CarryOut(payment) => state.payments[payment].state = Refunded,
            Action::Refund(return_unit) => state.operator_refunds(return_unit),
            Action::Close => state.close(),
            Action::TimePasses if state.time == Time::Open => state.time = Time::Due,
            Action::TimePasses => state.time = Time::Over,
        }
        state.calls.sort_unstable();
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ADDS_UP, |_, state: &State| {
                let charges = || state.payments.iter().filter_map(|one| one.charge);
                let captured = charges().filter(|charge| charge.succeeded).count();
                let refunded: u8 = charges().map(|charge| charge.refunds).sum();
                let is_returned = state.any(|one| one.is_operators);
                let kept = usize::from(state.order == Order::Paid && !is_returned);
                !state.is_at_rest() || captured == kept + usize::from(refunded)
            }),
            Property::always(PAID_HAS_MONEY, |_, state: &State| {
                let has_money = state.any(|one| one.state == Captured || one.is_operators);
                state.order != Order::Paid || has_money
            }),
            Property::always(MONEY_HAS_AN_ORDER, |_, state: &State| {
                let is_kept = state.any(|one| one.state == Captured);
                !is_kept || state.order == Order::Paid
            }),
            Property::always(REFUNDED_ONCE, |_, state: &State| {
                !state.any(|one| one.charge.is_some_and(|charge| charge.refunds > 1))
            }),
            Property::always(UNIT_RETURNED_ONCE, |_, state: &State| {
                state.units_returned == u8::from(state.order == Order::Closed)
            }),
            Property::sometimes("late money is back", |_, state: &State| {
                state.any(|one| one.state == Refunded && !one.is_operators)
            }),
            Property::sometimes("a refund is asked for twice at once", |_, state: &State| {
                state.calls.iter().all(|call| call.step == Step::Refunds) && state.calls.len() == 2
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
const UNIT_RETURNED_ONCE: &str = "a unit is returned if its order is closed, once";

#[test]
fn money_is_never_lost() {
    let checker = Shop { without: None }.checker().spawn_bfs().join();
    println!("{} states, up to {} steps deep", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
}

macro_rules! breaks {
    ($($name:ident: $rule:ident, $property:expr;)*) => {$(
        #[test]
        fn $name() {
            let is_found = HasDiscoveries::AnyOf(BTreeSet::from([$property]));
            let model = Shop { without: Some(Rule::$rule) };
            let checker = model.checker().finish_when(is_found).spawn_bfs().join();
            let steps = checker.discovery($property).map(|path| path.into_actions());
            println!("not always: {}\n    {steps:?}", $property);
            assert!(steps.is_some(), "the model does not miss the rule");
        }
    )*};
}

breaks! {
    a_webhook_that_is_applied_twice: ApplyingAgainChangesNothing, PAID_HAS_MONEY;
    late_money_that_is_kept: LateMoneyGoesBack, ADDS_UP;
    an_expiry_that_wins_after_a_capture: ExpiryLeavesPaidOrders, MONEY_HAS_AN_ORDER;
    a_refund_that_is_forgotten: RefundsAskTheProvider, ADDS_UP;
    a_refund_without_a_key: RefundsHaveAKey, REFUNDED_ONCE;
    an_attempt_that_is_given_up_too_early: GivesUpWhatWasOver, ADDS_UP;
}
