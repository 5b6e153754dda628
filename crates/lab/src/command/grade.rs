//! `flash-sale lab grade NAME`: the conformance suite on one strategy, case by case.

use crate::conformance::{cases, contradictions, lonely_crashes, missing_demonstrations, untried};
use crate::strategy::{Language, Strategy};
use crate::{
    arena::Arena, error::Result, lessons::timeline::Said, service::Lab, trial::Trial,
    verdict::Verdict,
};
use serde::Serialize;

/// The result of all cases.
#[derive(Serialize)]
pub struct Grade {
    strategy: &'static str,
    pub holds: bool,
    /// Harms that are declared as possible and that no demonstration shows; missing trials.
    not_shown: Vec<String>,
    cases: Vec<Graded>,
}

#[derive(Serialize)]
struct Graded {
    case: String,
    /// Contradictions to the promise.
    breaks: Vec<String>,
    verdict: Verdict,
}

/// Runs all cases, one at a time; `watch` is told how many are done, and of how many.
pub async fn grade(
    strategy: &'static Strategy,
    lab: &Lab,
    language: Language,
    watch: impl Fn(usize, usize),
) -> Result<Grade> {
    let said = |found: Vec<Said>| found.iter().map(|one| one.say(language).to_owned()).collect();
    let mut not_shown = missing_demonstrations(strategy, strategy.promise);
    let all: Vec<_> = cases(strategy).into_iter().chain(lonely_crashes(strategy)).collect();
    let (mut graded, mut interleaves) = (Vec::new(), false);
    for case in &all {
        watch(graded.len(), all.len());
        let mut arena = None;
        let keep = |own: &Arena| arena = Some(own.shared.clone());
        let verdict = Trial::of(strategy, &case.scenario).run(lab, language, keep).await?;
        interleaves |= arena.is_some_and(|arena| arena.points.were_tried());
        let breaks = said(contradictions(strategy.promise, case, &verdict));
        graded.push(Graded { case: case.name.say(language).to_owned(), breaks, verdict });
    }
    not_shown.extend(untried(strategy, interleaves));
    let not_shown: Vec<String> = said(not_shown);
    let holds = not_shown.is_empty() && graded.iter().all(|case| case.breaks.is_empty());
    Ok(Grade { strategy: strategy.id, holds, not_shown, cases: graded })
}
