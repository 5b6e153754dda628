//! One scenario from beginning to end: an arena, a storm, a verdict, and nothing left behind.

use crate::strategy::{Language, Scenario, Strategy};
use crate::{
    arena::Arena, definition::Wanted, error::Result, service::Lab, storm::Storm, verdict::Verdict,
};
use std::time::Duration;

/// An arena and a storm, to be run once.
#[derive(Debug, Clone)]
pub struct Trial {
    pub wanted: Wanted,
    pub storm: Storm,
}

impl Trial {
    pub fn of(strategy: &Strategy, scenario: &Scenario) -> Self {
        Self {
            wanted: Wanted {
                strategy: strategy.id.to_owned(),
                stock: i64::from(scenario.stock),
                nodes: Some(i64::from(scenario.nodes)),
                options: scenario.option_values(),
                ..Wanted::default()
            },
            storm: Storm {
                buyers: scenario.buyers,
                concurrency: scenario.concurrency,
                duplicate_share: Some(scenario.duplicate_share),
            },
        }
    }

    /// Runs it; `watch` is called a few times a second while the storm lasts.
    pub async fn run(
        &self,
        lab: &Lab,
        language: Language,
        mut watch: impl FnMut(&Arena),
    ) -> Result<Verdict> {
        let arena = lab.create(self.wanted.clone()).await?;
        let id = &arena.definition().id;
        let storm_and_judge = async {
            self.storm.start(&arena, None)?;
            while arena.storm.is_running() {
                tokio::time::sleep(Duration::from_millis(10)).await;
                watch(&arena);
            }
            lab.verdict(id, language).await
        };
        let judged = storm_and_judge.await;
        let deleted = lab.delete(id).await;
        let verdict = judged?;
        deleted.map(|()| verdict)
    }
}
