//! The paired session: every scenario's run has a bare run on either side and is compared with
//! their mean. Each round begins with another scenario, so that none always has the same place.

use crate::{
    Error, Options, cpu,
    load::{Load, Requests},
    process::{Process, Workspace},
    scenarios::{BARE_COUNT, ORDERS_LOOKED_AT, Scenario, Server},
    stage::{Run, Stage, Target, batch_size},
};
use flash_sale::lab::MOST_STOCK;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// A scenario's run and the bare runs on either side of it.
pub struct Paired {
    pub run: Run,
    pub bare_per_second: [f64; 2],
}

impl Paired {
    pub fn ratio(&self) -> f64 {
        self.run.per_second() / (self.bare_per_second.iter().sum::<f64>() / 2.0)
    }
}

pub struct Results {
    pub bare: Vec<Run>,
    pub scenarios: Vec<(Scenario, Vec<Paired>)>,
    /// The most memory that the program had resident, in bytes.
    pub peak_memory: Option<u64>,
    /// What was answered or stored wrongly, in words.
    pub failures: Vec<String>,
}

impl Results {
    /// Only what was measured: a session that failed while it warmed up has nothing to show.
    pub fn measured(&self) -> impl Iterator<Item = (Scenario, &[Paired])> {
        self.scenarios
            .iter()
            .filter(|(_, runs)| !runs.is_empty())
            .map(|(scenario, runs)| (*scenario, &runs[..]))
    }

    pub fn of(&self, wanted: Scenario) -> Option<&[Paired]> {
        self.measured()
            .find_map(|(scenario, runs)| (scenario == wanted).then_some(runs))
    }
}

pub async fn run(options: &Options, workspace: &Workspace) -> Result<Results, Error> {
    let mut session = Session::start(options, workspace)?;
    let scenarios = options.scenarios();
    let mut measured: Vec<(Scenario, Vec<Paired>)> = scenarios
        .iter()
        .map(|scenario| (*scenario, Vec::new()))
        .collect();
    let mut bare = Vec::new();
    if !measured.is_empty() {
        session.warm_up().await?;
        // What goes wrong while warming up would only go wrong again.
        let rounds = if session.stage.failures.is_empty() {
            options.rounds()
        } else {
            0
        };
        for round in 0..rounds {
            eprint!("round {}/{rounds}:", round + 1);
            let mut last = session.measure_bare().await?;
            let places = measured.len();
            for place in 0..places {
                let (scenario, runs) = &mut measured[(round + place) % places];
                let run = session.measure(*scenario).await?;
                let next = session.measure_bare().await?;
                let bare_per_second = [last.per_second(), next.per_second()];
                let paired = Paired {
                    run,
                    bare_per_second,
                };
                eprint!(" {} {:.2}", scenario.name(), paired.ratio());
                runs.push(paired);
                bare.push(std::mem::replace(&mut last, next));
            }
            bare.push(last);
            eprintln!();
        }
    }
    let servers = [Some(&mut session.always), session.everysec.as_mut()];
    session.stage.check_alive(servers.into_iter().flatten());
    Ok(Results {
        peak_memory: cpu::peak_memory(session.always.process.pid()),
        bare,
        scenarios: measured,
        failures: session.stage.failures,
    })
}

const ALWAYS: &str = "always";
const EVERYSEC: &str = "everysec";

struct Session<'a> {
    stage: Stage<'a>,
    bare: Process,
    always: Target,
    /// Only if something is measured on it.
    everysec: Option<Target>,
    /// What is asked over and over; made by `warm_up`.
    prepared: Prepared,
}

#[derive(Default)]
struct Prepared {
    bare: Arc<Requests>,
    sold_out: Arc<Requests>,
    sold_out_keyless: Arc<Requests>,
    duplicate: Arc<Requests>,
    browse: Arc<Requests>,
    order_status: Arc<Requests>,
}

impl<'a> Session<'a> {
    fn start(options: &'a Options, workspace: &'a Workspace) -> Result<Self, Error> {
        let stage = Stage::new(options, workspace)?;
        eprintln!("starting the servers");
        let everysec = options.scenarios().contains(&Scenario::AcceptedEverysec);
        Ok(Self {
            bare: stage.bare()?,
            always: stage.serve(ALWAYS, &[("REDIS_FSYNC", "always"), ("LAB", "on")])?,
            everysec: everysec
                .then(|| stage.serve(EVERYSEC, &[("REDIS_FSYNC", "everysec"), ("LAB", "off")]))
                .transpose()?,
            stage,
            prepared: Prepared::default(),
        })
    }

    fn count(&self, scenario: Scenario) -> usize {
        let most = if scenario == Scenario::Baseline {
            usize::try_from(MOST_STOCK).unwrap_or(usize::MAX)
        } else {
            usize::MAX
        };
        self.stage.options.scaled(scenario.usual_count()).min(most)
    }

    /// Runs everything once without counting it, and leaves what the other scenarios need: a sale
    /// that many have bought from, one that is sold out, some orders.
    async fn warm_up(&mut self) -> Result<(), Error> {
        eprintln!("warming up");
        let most = [Scenario::Accepted, Scenario::SoldOut, Scenario::Duplicate]
            .map(|scenario| self.count(scenario))
            .into_iter()
            .fold(self.stage.options.scaled(BARE_COUNT), usize::max);
        let users = self.stage.users(most);
        let (address, client) = (self.always.address(), self.always.client.clone());

        self.prepared.bare = self.stage.purchases(self.bare.address, "1", &users);
        self.measure_bare().await?;

        let buyers = &users[..self.count(Scenario::Accepted)];
        let bought = client
            .create_sale("bought by many", buyers.len() * 2)
            .await?;
        self.stage
            .sell_closed("warming up", &self.always, &bought, buyers)
            .await?;
        if !self.stage.failures.is_empty() {
            return Ok(());
        }
        // With other keys than before: the same key would be a replay.
        self.prepared.duplicate = self.stage.purchases(address, &bought, buyers);

        let gone = client.create_sale("sold out", 1).await?;
        client.buy(&gone, &self.stage.users(1)[0]).await?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while client.sale_state(&gone).await? != "sold_out" {
            if Instant::now() > deadline {
                return Err("a sale of one unit was not sold out by one purchase".into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.prepared.sold_out = self.stage.purchases(address, &gone, &users);
        let keyless = Requests::purchases(address, &gone, &users, false);
        self.prepared.sold_out_keyless = Arc::new(keyless);

        let mut browse = Requests::default();
        browse.get(address, &format!("/api/v1/sales/{bought}"), None);
        self.prepared.browse = Arc::new(browse);

        let mut order_status = Requests::default();
        for buyer in buyers.iter().take(ORDERS_LOOKED_AT) {
            let order = client.order_of(buyer).await?;
            order_status.get(address, &format!("/api/v1/orders/{order}"), Some(buyer));
        }
        self.prepared.order_status = Arc::new(order_status);
        let measured = self.stage.options.scenarios();
        for scenario in measured {
            if !matches!(scenario, Scenario::Accepted) {
                self.measure(scenario).await?;
            }
        }
        Ok(())
    }

    async fn measure_bare(&mut self) -> Result<Run, Error> {
        self.stage
            .measure_bare(&self.bare, &self.prepared.bare)
            .await
    }

    async fn measure(&mut self, scenario: Scenario) -> Result<Run, Error> {
        let count = self.count(scenario);
        let requests = match scenario {
            Scenario::Accepted | Scenario::AcceptedEverysec => {
                let target = match scenario.server() {
                    Server::FsyncAlways => &self.always,
                    Server::FsyncEverysec => {
                        self.everysec.as_ref().ok_or("this server is not running")?
                    }
                };
                let (_, run) = self.stage.sell_some(scenario.name(), target, count).await?;
                return Ok(run);
            }
            Scenario::Baseline => return self.measure_baseline().await,
            Scenario::SoldOut => &self.prepared.sold_out,
            Scenario::SoldOutKeyless => &self.prepared.sold_out_keyless,
            Scenario::Duplicate => &self.prepared.duplicate,
            Scenario::Browse => &self.prepared.browse,
            Scenario::OrderStatus => &self.prepared.order_status,
        };
        let load = self.stage.load(
            self.always.address(),
            requests.clone(),
            count,
            scenario.expected(),
        );
        self.measure_load(scenario, load).await
    }

    async fn measure_load(&mut self, scenario: Scenario, load: Load) -> Result<Run, Error> {
        let metrics = self.always.client.metrics().await?;
        let pid = self.always.process.pid();
        let mut run = self.stage.measure(scenario.name(), pid, load).await?;
        run.batch_size = batch_size(&metrics, &self.always.client.metrics().await?);
        Ok(run)
    }

    /// A fresh arena that is sold to its last unit. An order of the lab is in Postgres, committed, when
    /// its buyer is answered, so there is nothing to wait for.
    async fn measure_baseline(&mut self) -> Result<Run, Error> {
        let (name, count) = ("baseline", self.count(Scenario::Baseline));
        let client = self.always.client.clone();
        let arena = client.create_arena("lua-sync", count).await?;
        let address = self.always.address();
        let requests = Arc::new(Requests::lab_purchases(address, &arena, count));
        let expected = Scenario::Baseline.expected();
        let load = self.stage.load(address, requests, count, expected);
        let run = self.measure_load(Scenario::Baseline, load).await?;
        let (sold, kept) = client.verdict(&arena).await?;
        if sold != run.requests as u64 || !kept {
            let answered = run.requests;
            let what =
                format!("{answered} purchases were answered \"sold\", {sold} orders are there");
            self.stage.fail(name, &what);
        }
        client.delete_arena(&arena).await?;
        Ok(run)
    }
}
