//! What the models share: steps to the next states, and the visit of all of them.

use stateright::{Checker, CheckerBuilder, HasDiscoveries, Model};
use std::collections::BTreeSet;
use std::fmt::{Debug, Display, Formatter, Result};
use std::{hash::Hash, time::Instant};

/// A table of tests, each of which runs the same check on its own case, and is named to it.
macro_rules! tests {
    ($check:path: $($name:ident: $($given:expr),+;)*) => {$(
        #[test]
        fn $name() {
            $check(stringify!($name), $($given),+);
        }
    )*};
}

/// What happens, and the state that it leads to.
#[derive(Clone, PartialEq)]
pub struct Step<S> {
    what: String,
    pub next: S,
}

impl<S> Debug for Step<S> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(&self.what)
    }
}

/// Collects what may happen next.
pub struct Next<'a, S> {
    pub before: &'a S,
    pub steps: &'a mut Vec<Step<S>>,
    /// Done after each step.
    pub finish: fn(&mut S),
}

impl<S: Clone + PartialEq> Next<'_, S> {
    pub fn may(&mut self, what: impl Display, act: impl FnOnce(&mut S)) {
        let mut next = self.before.clone();
        act(&mut next);
        (self.finish)(&mut next);
        if next != *self.before {
            self.steps.push(Step { what: what.to_string(), next });
        }
    }
}

pub fn visit<M, S>(name: &str, model: CheckerBuilder<M>) -> impl Checker<M>
where
    M: Model<State = S, Action = Step<S>> + Send + Sync + 'static,
    S: Clone + Hash + PartialEq + Send + Sync + 'static,
{
    let began = Instant::now();
    let checker = model.spawn_bfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{name}: {states} states, up to {depth} steps deep, {:?}", began.elapsed());
    checker
}

/// The model lacks a rule: visits states until one breaks the property that needs it.
pub fn breaks<M, S>(name: &str, model: M, property: &'static str)
where
    M: Model<State = S, Action = Step<S>> + Send + Sync + 'static,
    S: Clone + Hash + PartialEq + Send + Sync + 'static,
{
    let is_found = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    // Without the rule there may be no end.
    let model = model.checker().finish_when(is_found).target_state_count(4_000_000);
    let path = visit(name, model).discovery(property);
    let path = path.unwrap_or_else(|| panic!("{name}: the model does not miss the rule"));
    println!("not always: {property}\n    {:#?}", path.into_actions());
}
