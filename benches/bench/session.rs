//! One session: start everything, warm it up, measure in rounds, judge.
//!
//! A round is `bare, scenario, bare, scenario, …, bare`; every scenario run has a bare run on either
//! side and is compared with their mean. Each round begins with another scenario, so that none always
//! has the same place.

use crate::{
    Error, Options,
    client::{Audit, Client, Metrics},
    cpu::{self, Usage},
    ids::{self, Ids},
    load::{Load, Outcome, Requests, User, histogram},
    process::{Process, Workspace},
    report::Machine,
    scenarios::{BARE_COUNT, BARE_EXPECTED, ORDERS_LOOKED_AT, Scenario, Server},
};
use flash_sale::{auth::TokenSigner, domain::UserId};
use hdrhistogram::Histogram;
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use time::OffsetDateTime;

const ADMIN_TOKEN: &str = "the benchmark's operator";

/// How long accepted orders may take to be in Postgres after the last answer.
const DRAINED_WITHIN: Duration = Duration::from_secs(60);

/// Counts the orders that the writer has put into Postgres.
const WRITTEN: &str = "flash_sale_writer_orders_total";

/// Between two runs, so that none pays for what the last one left to do.
const PAUSE: Duration = Duration::from_millis(200);

/// One measured run.
#[derive(Clone)]
pub struct Run {
    pub requests: usize,
    pub seconds: f64,
    pub latency: Histogram<u64>,
    /// CPU microseconds a request; for accepted orders until the last of them is in Postgres.
    pub cpu: Option<Usage>,
    /// Buyers in one call of the admission script.
    pub batch_size: Option<f64>,
    /// Orders in one transaction of the writer.
    pub write_size: Option<f64>,
    /// From the last answer until every order was in Postgres.
    pub drain_seconds: Option<f64>,
    pub unexpected: BTreeMap<String, usize>,
}

impl Run {
    fn new(outcome: Outcome) -> Self {
        Self {
            requests: outcome.answered,
            seconds: outcome.elapsed.as_secs_f64(),
            latency: outcome.latency,
            cpu: None,
            batch_size: None,
            write_size: None,
            drain_seconds: None,
            unexpected: outcome.unexpected,
        }
    }

    pub fn per_second(&self) -> f64 {
        self.requests as f64 / self.seconds
    }

    fn set_cpu(&mut self, before: Option<Usage>, after: Option<Usage>) {
        let requests = self.requests.max(1) as f64;
        self.cpu = before.zip(after).map(|(before, after)| {
            let used = after - before;
            Usage {
                app: used.app / requests,
                redis: used.redis / requests,
                postgres: used.postgres / requests,
                generator: used.generator / requests,
            }
        });
    }
}

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
    pub machine: Machine,
    pub options: Options,
    pub seconds: f64,
    pub bare: Vec<Run>,
    pub scenarios: Vec<(Scenario, Vec<Paired>)>,
    pub ids: Option<Ids>,
    /// The most memory that the program had resident, in bytes.
    pub peak_memory: Option<u64>,
    /// What was answered or stored wrongly, in words.
    pub failures: Vec<String>,
}

impl Results {
    /// The scenarios that were run at least once.
    pub fn measured(&self) -> impl Iterator<Item = &(Scenario, Vec<Paired>)> {
        self.scenarios.iter().filter(|(_, runs)| !runs.is_empty())
    }
}

pub async fn run(options: &Options) -> Result<Results, Error> {
    // Outlives the servers in it, which `measure` ends.
    let workspace = Workspace::create(options.data_dir.as_deref())?;
    let results = measure(options, &workspace).await;
    if !results
        .as_ref()
        .is_ok_and(|results| results.failures.is_empty())
    {
        workspace.print_logs();
    }
    results
}

async fn measure(options: &Options, workspace: &Workspace) -> Result<Results, Error> {
    let began = Instant::now();
    let machine = Machine::look(&workspace.path);
    let mut session = Session::start(options, workspace).await?;
    let scenarios = options.scenarios();
    let mut measured: Vec<(Scenario, Vec<Paired>)> = scenarios
        .iter()
        .filter(|scenario| **scenario != Scenario::Ids)
        .map(|scenario| (*scenario, Vec::new()))
        .collect();
    let mut bare = Vec::new();
    if !measured.is_empty() {
        session.warm_up().await?;
        // What goes wrong while warming up would only go wrong again.
        let rounds = if session.failures.is_empty() {
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
    let mut ids = None;
    if scenarios.contains(&Scenario::Ids) {
        let count = options.scaled(Scenario::Ids.usual_count());
        let data_dir = Process::data_dir(workspace, ALWAYS);
        let measured = ids::measure(&data_dir, count).await?;
        if !measured.unique {
            session.failures.push("ids: two ids were equal".to_owned());
        }
        ids = Some(measured);
    }
    session.check_processes();
    Ok(Results {
        machine,
        options: options.clone(),
        peak_memory: cpu::peak_memory(session.always.process.pid()),
        seconds: began.elapsed().as_secs_f64(),
        bare,
        scenarios: measured,
        ids,
        failures: session.failures,
    })
}

const ALWAYS: &str = "always";
const EVERYSEC: &str = "everysec";

struct Target {
    process: Process,
    client: Client,
}

struct Session<'a> {
    options: &'a Options,
    signer: TokenSigner,
    bare: Process,
    always: Target,
    /// Only if something is measured on it.
    everysec: Option<Target>,
    /// What is asked over and over; made by `warm_up`.
    prepared: Prepared,
    failures: Vec<String>,
}

#[derive(Default)]
struct Prepared {
    bare: Arc<Requests>,
    sold_out: Arc<Requests>,
    duplicate: Arc<Requests>,
    browse: Arc<Requests>,
    order_status: Arc<Requests>,
}

impl<'a> Session<'a> {
    async fn start(options: &'a Options, workspace: &Workspace) -> Result<Self, Error> {
        let secret = format!("{}{}", uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
        let signer = TokenSigner::new(secret.as_bytes())?;
        let serve = |name, fsync| -> Result<Target, Error> {
            let mut settings = vec![
                ("RATE_LIMIT", "off"), // everybody comes from one address
                ("ADMIN_TOKEN", ADMIN_TOKEN),
                ("TOKEN_SECRET", secret.as_str()),
                ("REDIS_FSYNC", fsync),
            ];
            settings.extend(
                options
                    .server_env
                    .iter()
                    .map(|(key, value)| (key.as_str(), value.as_str())),
            );
            let process = Process::flash_sale(name, workspace, &settings)?;
            let client = Client::new(process.address, ADMIN_TOKEN)?;
            Ok(Target { process, client })
        };
        eprintln!("starting the servers");
        let everysec = options.scenarios().contains(&Scenario::AcceptedEverysec);
        Ok(Self {
            options,
            bare: Process::bare(workspace, &secret)?,
            always: serve(ALWAYS, "always")?,
            everysec: everysec.then(|| serve(EVERYSEC, "everysec")).transpose()?,
            signer,
            prepared: Prepared::default(),
            failures: Vec::new(),
        })
    }

    fn target(&self, server: Server) -> Result<&Target, Error> {
        match server {
            Server::FsyncAlways => Ok(&self.always),
            Server::FsyncEverysec => self
                .everysec
                .as_ref()
                .ok_or("this server is not running".into()),
        }
    }

    fn count(&self, scenario: Scenario) -> usize {
        self.options.scaled(scenario.usual_count())
    }

    /// New users with signed tokens.
    fn users(&self, count: usize) -> Vec<User> {
        let expires_at = OffsetDateTime::now_utc() + time::Duration::DAY;
        let mint = |_| User {
            token: self.signer.mint(UserId::random(), "load", expires_at),
        };
        (0..count).map(mint).collect()
    }

    fn purchases(&self, address: SocketAddr, sale: &str, users: &[User]) -> Arc<Requests> {
        Arc::new(Requests::purchases(
            address,
            sale,
            users,
            !self.options.no_keys,
        ))
    }

    fn load(&self, address: SocketAddr, requests: Arc<Requests>, scenario: Scenario) -> Load {
        Load {
            address,
            requests,
            count: self.count(scenario),
            connections: usize::from(self.options.connections),
            threads: usize::from(self.options.generator_threads),
            expected: scenario.expected(),
        }
    }

    /// Runs everything once without counting it, and leaves what the other scenarios need: a sale
    /// that many have bought from, one that is sold out, some orders.
    async fn warm_up(&mut self) -> Result<(), Error> {
        eprintln!("warming up");
        let most = [Scenario::Accepted, Scenario::SoldOut, Scenario::Duplicate]
            .map(|scenario| self.count(scenario))
            .into_iter()
            .fold(self.options.scaled(BARE_COUNT), usize::max);
        let users = self.users(most);
        let (address, client) = (self.always.process.address, self.always.client.clone());

        self.prepared.bare = self.purchases(self.bare.address, "1", &users);
        self.measure_bare().await?;

        let buyers = &users[..self.count(Scenario::Accepted)];
        let bought = client
            .create_sale("bought by many", buyers.len() * 2)
            .await?;
        let requests = self.purchases(address, &bought, buyers);
        self.sell(Scenario::Accepted, &bought, requests).await?;
        if !self.failures.is_empty() {
            return Ok(());
        }
        if self.everysec.is_some() {
            self.measure(Scenario::AcceptedEverysec).await?;
        }
        // With other keys than before: the same key would be a replay.
        self.prepared.duplicate = self.purchases(address, &bought, buyers);

        let gone = client.create_sale("sold out", 1).await?;
        client.buy(&gone, &self.users(1)[0]).await?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while client.sale_state(&gone).await? != "sold_out" {
            if Instant::now() > deadline {
                return Err("a sale of one unit was not sold out by one purchase".into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.prepared.sold_out = self.purchases(address, &gone, &users);

        let mut browse = Requests::default();
        browse.get(address, &format!("/api/v1/sales/{bought}"), None);
        self.prepared.browse = Arc::new(browse);

        let mut order_status = Requests::default();
        for buyer in buyers.iter().take(ORDERS_LOOKED_AT) {
            let order = client.order_of(buyer).await?;
            order_status.get(address, &format!("/api/v1/orders/{order}"), Some(buyer));
        }
        self.prepared.order_status = Arc::new(order_status);
        for scenario in [
            Scenario::SoldOut,
            Scenario::Duplicate,
            Scenario::Browse,
            Scenario::OrderStatus,
        ] {
            if self.options.scenarios().contains(&scenario) {
                self.measure(scenario).await?;
            }
        }
        Ok(())
    }

    async fn measure_bare(&mut self) -> Result<Run, Error> {
        tokio::time::sleep(PAUSE).await;
        let load = Load {
            count: self.options.scaled(BARE_COUNT),
            expected: BARE_EXPECTED,
            ..self.load(
                self.bare.address,
                self.prepared.bare.clone(),
                Scenario::Accepted,
            )
        };
        let before = cpu::used(self.bare.pid());
        let mut run = Run::new(load.run().await?);
        run.set_cpu(before, cpu::used(self.bare.pid()));
        self.check_answers("bare", &run);
        Ok(run)
    }

    async fn measure(&mut self, scenario: Scenario) -> Result<Run, Error> {
        tokio::time::sleep(PAUSE).await;
        let requests = match scenario {
            Scenario::Accepted | Scenario::AcceptedEverysec => {
                let users = self.users(self.count(scenario));
                let target = self.target(scenario.server())?;
                let sale = target
                    .client
                    .create_sale(scenario.name(), users.len() * 2)
                    .await?;
                let requests = self.purchases(target.process.address, &sale, &users);
                return self.sell(scenario, &sale, requests).await;
            }
            Scenario::SoldOut => &self.prepared.sold_out,
            Scenario::Duplicate => &self.prepared.duplicate,
            Scenario::Browse => &self.prepared.browse,
            Scenario::OrderStatus => &self.prepared.order_status,
            Scenario::Ids => return Err("the id generator is not a load".into()),
        };
        let (address, pid) = (self.always.process.address, self.always.process.pid());
        let load = self.load(address, requests.clone(), scenario);
        let metrics = self.always.client.metrics().await?;
        let before = cpu::used(pid);
        let mut run = Run::new(load.run().await?);
        run.set_cpu(before, cpu::used(pid));
        run.batch_size = batch_size(&metrics, &self.always.client.metrics().await?);
        self.check_answers(scenario.name(), &run);
        Ok(run)
    }

    /// A run whose every request buys; not over before every order is in Postgres and audited.
    async fn sell(
        &mut self,
        scenario: Scenario,
        sale: &str,
        requests: Arc<Requests>,
    ) -> Result<Run, Error> {
        let target = self.target(scenario.server())?;
        let (client, pid) = (target.client.clone(), target.process.pid());
        let load = self.load(target.process.address, requests, scenario);
        let metrics = client.metrics().await?;
        let before = cpu::used(pid);
        let mut run = Run::new(load.run().await?);
        let answered = Instant::now();
        let drained = self
            .wait_until_written(&client, &metrics, run.requests)
            .await?;
        run.set_cpu(before, cpu::used(pid));
        run.drain_seconds = drained.map(|drained| (drained - answered).as_secs_f64());
        let after = client.metrics().await?;
        run.batch_size = batch_size(&metrics, &after);
        let more = |name: &str| after.total(name) - metrics.total(name);
        let transactions = more("flash_sale_writer_seconds_count");
        run.write_size = (transactions > 0.0).then(|| more(WRITTEN) / transactions);
        self.check_answers(scenario.name(), &run);

        let audit = self.quiescent_audit(&client, sale).await?;
        let live = usize::try_from(audit.live)?;
        if !audit.quiescent || drained.is_none() {
            let what = format!(
                "{}: orders were not written within {DRAINED_WITHIN:?}",
                scenario.name()
            );
            self.failures.push(what);
        }
        if !audit.ok {
            self.failures.push(format!(
                "{}: the audit says {}",
                scenario.name(),
                audit.problems
            ));
        }
        if live != run.requests {
            let answered = run.requests;
            self.failures.push(format!(
                "{}: {answered} purchases were answered 202, {live} orders are live",
                scenario.name()
            ));
        }
        Ok(run)
    }

    /// When the writer had written `count` orders more than at `before`; `None` if it did not in time.
    async fn wait_until_written(
        &self,
        client: &Client,
        before: &Metrics,
        count: usize,
    ) -> Result<Option<Instant>, Error> {
        let wanted = before.total(WRITTEN) + count as f64;
        let deadline = Instant::now() + DRAINED_WITHIN;
        loop {
            let written = client.metrics().await?.total(WRITTEN);
            let now = Instant::now();
            if written >= wanted {
                return Ok(Some(now));
            }
            if now > deadline {
                return Ok(None);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    async fn quiescent_audit(&self, client: &Client, sale: &str) -> Result<Audit, Error> {
        let deadline = Instant::now() + DRAINED_WITHIN;
        loop {
            let audit = client.audit(sale).await?;
            if audit.quiescent || !audit.ok || Instant::now() > deadline {
                return Ok(audit);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn check_answers(&mut self, name: &str, run: &Run) {
        for (what, count) in &run.unexpected {
            self.failures
                .push(format!("{name}: {count} unexpected answers: {what}"));
        }
    }

    fn check_processes(&mut self) {
        let servers = [Some(&mut self.always), self.everysec.as_mut()];
        for target in servers.into_iter().flatten() {
            if target.process.has_ended() {
                self.failures.push("a server ended by itself".to_owned());
            }
        }
    }
}

fn batch_size(before: &Metrics, after: &Metrics) -> Option<f64> {
    let more = |suffix: &str| {
        let name = format!("flash_sale_admission_batch_size{suffix}");
        after.total(&name) - before.total(&name)
    };
    let batches = more("_count");
    (batches > 0.0).then(|| more("_sum") / batches)
}

/// All of a scenario's latencies.
pub fn latencies<'a>(runs: impl Iterator<Item = &'a Run>) -> Histogram<u64> {
    let mut all = histogram();
    for run in runs {
        // Of equal bounds, so this cannot fail.
        all.add(&run.latency).ok();
    }
    all
}
