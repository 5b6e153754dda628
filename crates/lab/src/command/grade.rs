//! `flash-sale lab grade NAME`: the conformance suite on one strategy, case by case.

use super::table;
use crate::{
    Lab, LabError, Strategy, Trial,
    conformance::{Said, cases, contradictions, lonely_crashes, missing_demonstrations},
    strategy::{Language, Words},
    verdict::Verdict,
};
use serde::Serialize;

/// What holds and what breaks.
#[derive(Serialize)]
pub struct Grade {
    strategy: &'static str,
    pub holds: bool,
    /// What is declared as possible, and shown by no demonstration.
    not_shown: Vec<String>,
    cases: Vec<Graded>,
}

#[derive(Serialize)]
struct Graded {
    case: String,
    /// What contradicts the promise.
    breaks: Vec<String>,
    verdict: Verdict,
}

/// Runs all cases, one at a time; `watch` is told how many are done, and of how many.
pub async fn grade(
    strategy: &'static Strategy,
    lab: &Lab,
    language: Language,
    watch: impl Fn(usize, usize),
) -> Result<Grade, LabError> {
    let said = |found: Vec<Said>| found.iter().map(|one| one.say(language).to_owned()).collect();
    let not_shown: Vec<String> = said(missing_demonstrations(strategy, strategy.promise));
    let all: Vec<_> = cases(strategy).into_iter().chain(lonely_crashes(strategy)).collect();
    let mut graded = Vec::new();
    for case in &all {
        watch(graded.len(), all.len());
        let verdict = Trial::of(strategy, &case.scenario).run(lab, language, |_| {}).await?;
        let breaks = said(contradictions(strategy.promise, case, &verdict));
        graded.push(Graded { case: case.name.say(language).to_owned(), breaks, verdict });
    }
    let holds = not_shown.is_empty() && graded.iter().all(|case| case.breaks.is_empty());
    Ok(Grade { strategy: strategy.id, holds, not_shown, cases: graded })
}

impl Grade {
    pub fn in_words(&self, language: Language) -> String {
        let say = |en, zh| Words::new(en, zh).say(language).to_owned();
        let mut rows = vec![[
            say("case", "场景"),
            say("stock", "库存"),
            say("sold", "卖出"),
            say("verdict", "裁决"),
        ]];
        let between = say(", ", "、");
        rows.extend(self.cases.iter().map(|graded| {
            let verdict = &graded.verdict;
            let breaks = match &graded.breaks[..] {
                [] => say("holds", "守住"),
                breaks => say("BREAKS: ", "破了：") + &breaks.join(&between),
            };
            [graded.case.clone(), verdict.stock.to_string(), verdict.sold.to_string(), breaks]
        }));
        let mut words = table(&rows, &[0, 3]);
        for missing in &self.not_shown {
            words += &format!("{missing}\n");
        }
        let holding = self.cases.iter().filter(|graded| graded.breaks.is_empty()).count();
        let (id, all) = (self.strategy, self.cases.len());
        words += &match (self.holds, language) {
            (true, Language::En) => format!("\n{id} keeps what it promises, in all {all} cases.\n"),
            (true, Language::Zh) => format!("\n{id} 在全部 {all} 个场景里都守住了它的承诺。\n"),
            (false, Language::En) => format!("\n{id} is broken: {holding} of {all} cases hold.\n"),
            (false, Language::Zh) => {
                format!("\n{id} 不合格：{all} 个场景里守住了 {holding} 个。\n")
            }
        };
        words
    }
}
