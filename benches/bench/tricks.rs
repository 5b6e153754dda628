//! What each trick brings: a server with it and one without, in turns, each run between two of bare.
//!
//! Every server has its own stores and nothing else to do while the other is measured. A trick that is a
//! setting is left out by it; the allocator is compiled in, so that one is compared with another build of
//! the program (`--other-program`, built with `--features system-allocator`).

use crate::{
    Error, Options,
    cpu::Usage,
    load::Requests,
    process::Workspace,
    scenarios::{BARE_COUNT, ORDERS_LOOKED_AT, Scenario},
    section::{Section, median, spread_text, thousands},
    stage::{Run, Stage, Target},
};
use serde_json::{Value, json};
use std::{path::Path, sync::Arc};

struct Trick {
    title: &'static str,
    /// What leaves it out.
    without: &'static [(&'static str, &'static str)],
    /// Where it shows.
    scenario: Scenario,
    /// Left out by another build.
    by_build: bool,
}

const TRICKS: &[Trick] = &[
    Trick {
        title: "micro-batching (512 buyers a script call, not 1)",
        without: &[("BATCH_LIMIT", "1")],
        scenario: Scenario::Accepted,
        by_build: false,
    },
    Trick {
        title: "one shared connection for the gates, not the pool",
        without: &[("WITHOUT", "shared-connection")],
        scenario: Scenario::Accepted,
        by_build: false,
    },
    Trick {
        title: "the same, one buyer a script call",
        without: &[("BATCH_LIMIT", "1"), ("WITHOUT", "shared-connection")],
        scenario: Scenario::Accepted,
        by_build: false,
    },
    Trick {
        title: "COPY, not INSERT",
        without: &[("WITHOUT", "copy")],
        scenario: Scenario::Accepted,
        by_build: false,
    },
    Trick {
        title: "sold out from memory, not from Redis",
        without: &[("WITHOUT", "refusal-from-memory")],
        scenario: Scenario::SoldOutKeyless,
        by_build: false,
    },
    Trick {
        title: "sold out with a retry key: one is asked about, not everybody",
        without: &[("WITHOUT", "one-for-all")],
        scenario: Scenario::SoldOut,
        by_build: false,
    },
    Trick {
        title: "shared looks at orders, not a query each",
        without: &[("WITHOUT", "shared-look")],
        scenario: Scenario::OrderStatus,
        by_build: false,
    },
    Trick {
        title: "purchases past the router (refused from memory)",
        without: &[("WITHOUT", "express")],
        scenario: Scenario::SoldOutKeyless,
        by_build: false,
    },
    Trick {
        title: "one timer a connection, not one a request (the same)",
        without: &[("WITHOUT", "lazy-timer")],
        scenario: Scenario::SoldOutKeyless,
        by_build: false,
    },
    Trick {
        title: "mimalloc, not the system's allocator",
        without: &[],
        scenario: Scenario::Accepted,
        by_build: true,
    },
];

/// What is given up for durability rather than won: for comparison.
const PRICE: Trick = Trick {
    title: "(price of durability: fsync once a second, not before the answer)",
    without: &[("REDIS_FSYNC", "everysec")],
    scenario: Scenario::Accepted,
    by_build: false,
};

pub async fn run(options: &Options, workspace: &Workspace) -> Result<Section, Error> {
    let mut stage = Stage::new(options, workspace)?;
    let headings = [
        "trick",
        "measured by",
        "on, req/s",
        "off, req/s",
        "on ÷ off",
        "app µs on",
        "off",
        "redis µs on",
        "off",
        "postgres µs on",
        "off",
    ];
    let mut section = Section::new("tricks", "Tricks, on and off", &headings);
    let mut figures = Vec::new();
    let with = stage.serve("with", &[("LAB", "off")])?;
    stage
        .sell_some("warming up", &with, options.scaled(20_000))
        .await?;
    for (number, trick) in TRICKS.iter().chain([&PRICE]).enumerate() {
        let program = match (trick.by_build, options.other_program.as_deref()) {
            (true, None) => {
                section.note(format!(
                    "Not measured: {} (needs --other-program).",
                    trick.title
                ));
                continue;
            }
            (true, other) => other,
            (false, _) => options.program.as_deref(),
        };
        let compared = compare(&mut stage, trick, number, &with, program).await?;
        eprintln!(
            "{}: {}",
            trick.title,
            spread_text(compared.ratios.iter().copied(), 2)
        );
        section.row(compared.row(trick));
        figures.push(compared.json(trick));
    }
    section.note(
        "Runs alternate, on, off, on, …; on ÷ off is the ratio of a run without to the mean of the two with it beside it, \
         turned over: above 1 the trick helps. Median (least–most) of the rounds.",
    );
    stage.check_alive([with].iter_mut());
    section.failures = stage.failures;
    section.figures = json!(figures);
    Ok(section)
}

#[derive(Default)]
struct Compared {
    ratios: Vec<f64>,
    on: Vec<Run>,
    off: Vec<Run>,
}

impl Compared {
    fn row(&self, trick: &Trick) -> [String; 11] {
        let rate = |runs: &[Run]| {
            median(runs.iter().map(Run::per_second)).map_or(String::new(), thousands)
        };
        let cpu = |runs: &[Run], part: fn(&Usage) -> f64| {
            let values = runs.iter().filter_map(|run| run.cpu.as_ref().map(part));
            median(values).map_or(String::new(), |value| format!("{value:.1}"))
        };
        let (on, off) = (&self.on, &self.off);
        [
            trick.title.to_owned(),
            trick.scenario.name().to_owned(),
            rate(on),
            rate(off),
            spread_text(self.ratios.iter().copied(), 2),
            cpu(on, |cpu| cpu.app),
            cpu(off, |cpu| cpu.app),
            cpu(on, |cpu| cpu.redis),
            cpu(off, |cpu| cpu.redis),
            cpu(on, |cpu| cpu.postgres),
            cpu(off, |cpu| cpu.postgres),
        ]
    }

    fn json(&self, trick: &Trick) -> Value {
        json!({
            "trick": trick.title,
            "without": trick.without,
            "scenario": trick.scenario.name(),
            "ratios": self.ratios,
            "on": crate::report::summary_json(self.on.iter()),
            "off": crate::report::summary_json(self.off.iter()),
        })
    }
}

async fn compare(
    stage: &mut Stage<'_>,
    trick: &Trick,
    number: usize,
    with: &Target,
    program: Option<&Path>,
) -> Result<Compared, Error> {
    let mut settings = vec![("LAB", "off")];
    settings.extend_from_slice(trick.without);
    let without = stage.serve_program(&format!("without-{number}"), program, &settings)?;
    let (mut on, mut off) = (Place::new(with), Place::new(&without));
    for place in [&mut on, &mut off] {
        place.prepare(stage, trick.scenario).await?;
        place.measure(stage, trick.scenario, 5).await?;
    }
    let mut compared = Compared::default();
    let mut last = on.measure(stage, trick.scenario, 1).await?;
    for _ in 0..stage.options.rounds() {
        let run = off.measure(stage, trick.scenario, 1).await?;
        let next = on.measure(stage, trick.scenario, 1).await?;
        let beside = f64::midpoint(last.per_second(), next.per_second());
        compared.ratios.push(beside / run.per_second());
        compared.off.push(run);
        compared.on.push(std::mem::replace(&mut last, next));
    }
    compared.on.push(last);
    Ok(compared)
}

/// A server and what is asked of it over and over.
struct Place<'t> {
    target: &'t Target,
    requests: Arc<Requests>,
}

impl<'t> Place<'t> {
    fn new(target: &'t Target) -> Self {
        Self {
            target,
            requests: Arc::default(),
        }
    }

    async fn prepare(&mut self, stage: &mut Stage<'_>, scenario: Scenario) -> Result<(), Error> {
        let (target, client) = (self.target, &self.target.client);
        match scenario {
            Scenario::SoldOut | Scenario::SoldOutKeyless => {
                let with_keys = scenario == Scenario::SoldOut;
                let sale = client.create_sale("sold out", 1).await?;
                client.buy(&sale, &stage.users(1)[0]).await?;
                let users = stage.users(stage.options.scaled(BARE_COUNT));
                let requests = Requests::purchases(target.address(), &sale, &users, with_keys);
                self.requests = Arc::new(requests);
            }
            Scenario::OrderStatus => {
                let buyers = stage.users(ORDERS_LOOKED_AT);
                let sale = client.create_sale("looked at", buyers.len() * 2).await?;
                stage.sell_closed("tricks", target, &sale, &buyers).await?;
                let mut requests = Requests::default();
                for buyer in &buyers {
                    let order = client.order_of(buyer).await?;
                    let path = format!("/api/v1/orders/{order}");
                    requests.get(target.address(), &path, Some(buyer));
                }
                self.requests = Arc::new(requests);
            }
            // Each run sells to users of its own.
            Scenario::Accepted => {}
            other => return Err(format!("no trick is measured by {}", other.name()).into()),
        }
        Ok(())
    }

    /// One run of a fraction of the usual requests.
    async fn measure(
        &self,
        stage: &mut Stage<'_>,
        scenario: Scenario,
        fraction: usize,
    ) -> Result<Run, Error> {
        // Half the usual: without a trick it takes several times as long.
        let count = stage.options.scaled(scenario.usual_count() / 2) / fraction;
        let count = count.max(stage.connections());
        if scenario == Scenario::Accepted {
            let (_, run) = stage.sell_some("tricks", self.target, count).await?;
            return Ok(run);
        }
        let load = stage.load(
            self.target.address(),
            self.requests.clone(),
            count,
            scenario.expected(),
        );
        stage
            .measure("tricks", self.target.process.pid(), load)
            .await
    }
}
