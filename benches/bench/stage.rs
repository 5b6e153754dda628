//! What every measurement needs: servers that share one secret, users with signed tokens, runs of
//! the generator with their CPU time, and the check that every accepted order is in Postgres.

use crate::client::{Audit, Client, Metrics};
use crate::load::{Expected, Load, Requests, Run, histogram};
use crate::process::{Process, Workspace, poll};
use crate::scenarios::{ACCEPTED, BARE_COUNT};
use crate::{Error, Options, Result, cpu, report::median};
use flash_sale::{auth::TokenSigner, domain::UserId};
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};
use std::{net::SocketAddr, sync::Arc};
use time::OffsetDateTime;

const ADMIN_TOKEN: &str = "the benchmark's operator";

/// How long accepted orders may take to be in Postgres after the last answer.
const DRAINED_WITHIN: Duration = Duration::from_secs(60);

/// Counts the orders that the writer has put into Postgres.
const WRITTEN: &str = "flash_sale_writer_orders_total";

/// Between two runs, so that none pays for what the last one left to do.
pub const PAUSE: Duration = Duration::from_millis(200);

/// A server and its operator.
pub struct Target {
    pub process: Process,
    pub client: Client,
}

pub struct Stage<'a> {
    pub options: &'a Options,
    workspace: &'a Workspace,
    secret: String,
    signer: TokenSigner,
    /// What was answered or stored wrongly, in words.
    pub failures: Vec<String>,
}

impl<'a> Stage<'a> {
    pub fn new(options: &'a Options, workspace: &'a Workspace) -> Result<Self> {
        let secret = format!("{}{}", uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
        Ok(Self {
            options,
            workspace,
            signer: TokenSigner::new(secret.as_bytes())?,
            secret,
            failures: Vec::new(),
        })
    }

    pub fn bare(&self) -> Result<Process> {
        Process::bare(self.workspace, &self.secret)
    }

    /// A flash-sale server with its own data.
    pub fn serve(&self, name: &str, fsync: &str, lab: &str) -> Result<Target> {
        let mut settings = vec![
            ("RATE_LIMIT", "off"), // everybody comes from one address
            ("ADMIN_TOKEN", ADMIN_TOKEN),
            ("TOKEN_SECRET", self.secret.as_str()),
            ("REDIS_FSYNC", fsync),
            ("LAB", lab),
        ];
        let own = &self.options.server_env;
        settings.extend(own.iter().map(|(key, value)| (&key[..], &value[..])));
        let program = self.options.program.as_deref();
        let process = Process::flash_sale(name, program, self.workspace, &settings)?;
        let client = Client::new(process.address, ADMIN_TOKEN)?;
        Ok(Target { process, client })
    }

    /// Signed tokens of new users.
    pub fn tokens(&self, count: usize) -> Vec<String> {
        let until = OffsetDateTime::now_utc() + time::Duration::DAY;
        let mint = |_| self.signer.mint(UserId::random(), "load", until);
        (0..count).map(mint).collect()
    }

    /// A closed loop.
    pub fn load(&self, at: SocketAddr, of: &Arc<Requests>, count: usize, right: Expected) -> Load {
        Load {
            address: at,
            requests: of.clone(),
            count,
            connections: usize::from(self.options.connections),
            expected: vec![right],
            schedule: None,
            follower: None,
        }
    }

    /// A run against a server, timed and checked.
    pub async fn measure(&mut self, name: &str, of: &Process, load: Load) -> Result<Run> {
        tokio::time::sleep(PAUSE).await;
        let before = cpu::used(of.pid());
        let mut run = load.run().await?;
        run.cpu = cpu::since(before, of.pid(), run.requests);
        self.check_answers(name, &run);
        Ok(run)
    }

    /// A run against the bare endpoint.
    pub async fn measure_bare(&mut self, bare: &Process, of: &Arc<Requests>) -> Result<Run> {
        let load = self.load(bare.address, of, self.options.scaled(BARE_COUNT), ACCEPTED);
        self.measure("bare", bare, load).await
    }

    /// Sells `count` units of a new sale and nothing else, in a closed loop.
    pub async fn sell_some(&mut self, name: &str, at: &Target, count: usize) -> Result<Run> {
        let sale = at.client.create_sale(name, count * 2).await?;
        let tokens = self.tokens(count);
        self.sell_to(name, at, &sale, &tokens, true).await
    }

    /// Each of these users buys from this sale, in a closed loop.
    pub async fn sell_to(
        &mut self,
        name: &str,
        target: &Target,
        sale: &str,
        tokens: &[String],
        keys: bool,
    ) -> Result<Run> {
        let requests = Requests::purchases(target.process.address, sale, tokens, keys);
        let load = self.load(target.process.address, &Arc::new(requests), tokens.len(), ACCEPTED);
        self.sell(name, target, sale, load).await
    }

    /// A run in which every request buys from a sale that nobody else buys from; not over before
    /// every order is in Postgres and audited.
    pub async fn sell(&mut self, name: &str, at: &Target, sale: &str, load: Load) -> Result<Run> {
        tokio::time::sleep(PAUSE).await;
        let live_before = at.client.audit(sale).await?.live;
        let (metrics, pid) = (at.client.metrics().await?, at.process.pid());
        let before = cpu::used(pid);
        let mut run = load.run().await?;
        let answered = Instant::now();
        let drained = written(&at.client, &metrics, run.requests).await?;
        run.cpu = cpu::since(before, pid, run.requests);
        run.drain_seconds = drained.map(|drained| (drained - answered).as_secs_f64());
        run.batch_size = batch_size(&metrics, &at.client.metrics().await?);
        self.check_answers(name, &run);
        if drained.is_none() {
            self.fail(name, format!("orders were not written within {DRAINED_WITHIN:?}"));
        }
        self.check_sold(name, at, sale, live_before + run.requests).await?;
        Ok(run)
    }

    /// The sale comes to rest with so many live orders, and its audit agrees.
    pub async fn check_sold(&mut self, name: &str, at: &Target, sale: &str, sold: usize) -> Result {
        let audit = quiescent_audit(at, sale).await?;
        if !audit.quiescent {
            self.fail(name, "the sale did not come to rest".to_owned());
        }
        if !audit.ok {
            self.fail(name, format!("the audit says {}", audit.problems));
        }
        if audit.live != sold {
            let live = audit.live;
            self.fail(name, format!("{sold} purchases were answered 202, {live} orders are live"));
        }
        Ok(())
    }

    pub fn fail(&mut self, name: &str, what: String) {
        self.failures.push(format!("{name}: {what}"));
    }

    fn check_answers(&mut self, name: &str, run: &Run) {
        for (what, count) in &run.unexpected {
            self.fail(name, format!("{count} unexpected answers: {what}"));
        }
    }

    /// All failures, also that a server has ended by itself.
    pub fn finish<'t>(mut self, all: impl IntoIterator<Item = &'t mut Target>) -> Vec<String> {
        let ended = all.into_iter().filter_map(|one| one.process.has_ended().then_some("a server"));
        self.failures.extend(ended.map(|server| format!("{server} ended by itself")));
        self.failures
    }
}

/// When the writer had written `count` orders more than at `before`; `None` if it did not in time.
async fn written(client: &Client, before: &Metrics, count: usize) -> Result<Option<Instant>> {
    let wanted = before.total(WRITTEN) + count as f64;
    let written = async || {
        Ok::<_, Error>((client.metrics().await?.total(WRITTEN) >= wanted).then(Instant::now))
    };
    poll(DRAINED_WITHIN, 2, written).await
}

/// The audit of a sale that nobody buys from any more.
pub async fn quiescent_audit(target: &Target, sale: &str) -> Result<Audit> {
    let deadline = Instant::now() + DRAINED_WITHIN;
    loop {
        let audit = target.client.audit(sale).await?;
        if audit.quiescent || !audit.ok || Instant::now() > deadline {
            return Ok(audit);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub fn batch_size(before: &Metrics, after: &Metrics) -> Option<f64> {
    let more = |suffix: &str| {
        let name = format!("flash_sale_admission_batch_size{suffix}");
        after.total(&name) - before.total(&name)
    };
    let batches = more("_count");
    (batches > 0.0).then(|| more("_sum") / batches)
}

/// The median of a figure that some runs have.
pub fn of_runs(runs: &[&Run], figure: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
    median(runs.iter().filter_map(|run| figure(run)))
}

/// All of some runs' latencies.
pub fn latencies(runs: &[&Run]) -> Histogram<u64> {
    let mut all = histogram();
    for run in runs {
        // Of equal bounds, so this cannot fail.
        all.add(&run.latency).ok();
    }
    all
}
