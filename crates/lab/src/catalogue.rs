//! Every strategy in words, as the API, the command and the report show it.

use crate::strategy::{
    ArenaOptionKind, Family, Harm, Harms, Language, Likelihood, OptionSpec, Promise, Scenario,
    Strategy, Words,
};
use crate::{marks::Excerpt, options::GENERAL, strategies::STRATEGIES, texts};
use serde::Serialize;
use utoipa::ToSchema;

#[derive(Serialize, ToSchema)]
pub struct Strategies {
    /// In the order in which they are taught.
    pub strategies: Vec<StrategyBody>,
    /// The knobs that every strategy has.
    pub options: Vec<ArenaOption>,
}

/// One way to sell a scarce thing. Texts are in the language that was asked for.
#[derive(Serialize, ToSchema)]
#[schema(as = Strategy)]
pub struct StrategyBody {
    pub id: &'static str,
    pub number: u8,
    pub title: &'static str,
    /// The idea in one sentence for a beginner.
    lead: &'static str,
    family: Family,
    idea: &'static str,
    /// Where it comes from, and what that gets right or misses.
    source: &'static str,
    fails: &'static str,
    break_it: &'static str,
    instead: &'static str,
    promise: Promise,
    /// Servers that it needs besides Postgres and one Redis.
    needs: Vec<String>,
    available: Availability,
    /// Its own knobs.
    options: Vec<ArenaOption>,
    /// Where a node can be made to crash (`crash_at`).
    crash_points: &'static [&'static str],
    demonstrations: Vec<DemonstrationBody>,
    /// The source of the purchase.
    code: String,
    /// The lines that sell wrong, and those that prevent it; of its locks, too.
    marks: Vec<Excerpt>,
}

#[derive(Serialize, ToSchema)]
pub struct Availability {
    ok: bool,
    /// The server that is missing, and how to start it.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'static str>,
}

/// A knob: a whole number has `min` and `max`, a choice has `values`.
#[derive(Debug, Serialize, ToSchema)]
pub struct ArenaOption {
    name: &'static str,
    teaches: &'static str,
    #[serde(flatten)]
    kind: ArenaOptionKind,
}

/// An arena and a storm that show something every time.
#[derive(Serialize, ToSchema)]
#[schema(as = Demonstration)]
pub struct DemonstrationBody {
    id: &'static str,
    teaches: &'static str,
    strategy: &'static str,
    per_user_limit: u32,
    /// What happens: a harm, `notes` (something that it counts), or `holds`.
    #[schema(value_type = String, example = "oversells")]
    shows: Harm,
    /// The line that does it, or prevents it: its place in `marks`, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    mark: Option<usize>,
    #[serde(flatten)]
    scenario: Scenario,
}

impl Strategies {
    /// All; `lacking` says why one of them cannot run here.
    pub fn all(language: Language, lacking: impl Fn(&Strategy) -> Option<Words>) -> Self {
        let body = |strategy| StrategyBody::of(strategy, lacking(strategy), language);
        let option = |option| ArenaOption::of(option, "options", language);
        Self {
            strategies: STRATEGIES.iter().map(body).collect(),
            options: GENERAL.iter().map(option).collect(),
        }
    }
}

impl ArenaOption {
    pub fn of(option: &OptionSpec, id: &str, language: Language) -> Self {
        Self { name: option.name, teaches: option.teaches(id, language), kind: option.kind }
    }
}

impl StrategyBody {
    pub fn of(strategy: &'static Strategy, lacking: Option<Words>, language: Language) -> Self {
        let demonstrations = strategy.demonstrations.iter().map(|shown| DemonstrationBody {
            id: shown.id,
            teaches: strategy.teaches(shown, language),
            strategy: strategy.id,
            per_user_limit: 1,
            shows: shown.shows,
            mark: shown.mark,
            scenario: shown.scenario,
        });
        let option = |own| ArenaOption::of(own, strategy.id, language);
        let why = lacking.map(|why| why.say(language));
        Self {
            id: strategy.id,
            number: strategy.number,
            title: strategy.title(language),
            lead: strategy.lead(language),
            family: strategy.family,
            idea: strategy.says("Idea", language),
            source: strategy.says("Source", language),
            fails: strategy.says("How it fails", language),
            break_it: strategy.says("Break it", language),
            instead: strategy.says("Instead", language),
            promise: strategy.promise,
            needs: strategy.needs.iter().map(|need| need.name()).collect(),
            available: Availability { ok: why.is_none(), why },
            options: strategy.options.iter().map(option).collect(),
            crash_points: strategy.crash_points,
            demonstrations: demonstrations.collect(),
            code: strategy.purchase_code(),
            marks: strategy.marks(language),
        }
    }
}

/// A promise in a few words.
pub fn in_words(harms: &Harms, language: Language) -> String {
    let keys = [
        ["may-oversell", "oversells"],
        ["may-undersell", "undersells"],
        ["may-sell-twice", "sells-twice"],
    ];
    let said = harms.each().into_iter().zip(keys).filter_map(|((_, likelihood), [may, does])| {
        match likelihood {
            Likelihood::Never => None,
            Likelihood::Possible => Some(may),
            Likelihood::Expected => Some(does),
        }
    });
    let say = |key| texts::item("verdict", "Promises", key, language);
    let said: Vec<&str> = said.map(say).collect();
    match said[..] {
        [] => say("holds").to_owned(),
        _ => said.join(if language == Language::En { ", " } else { "、" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategies::find;

    #[test]
    fn a_promise_is_said_in_words() {
        let said = |id: &str| {
            let promise = find(id).expect("a strategy").promise;
            [promise.one_node, promise.across_nodes].map(|harms| in_words(&harms, Language::En))
        };
        assert_eq!(said("conditional-update"), ["holds", "holds"]);
        assert_eq!(said("process-mutex"), ["holds", "oversells, may sell twice"]);
        assert_eq!(said("version-column")[0], "may undersell");
    }
}
