//! What every measurement needs: servers that share one secret, users with signed tokens, runs of the
//! generator with their CPU time, and the check that every accepted order is in Postgres.

use crate::{
    Error, Options,
    client::{Audit, Client, Metrics},
    cpu::{self, Usage},
    load::{Expected, Follower, Load, Outcome, Requests, Schedule, User, histogram},
    process::{Process, Workspace},
    scenarios::{BARE_COUNT, BARE_EXPECTED},
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
pub const PAUSE: Duration = Duration::from_millis(200);

pub const ACCEPTED: Expected = Expected {
    status: 202,
    marker: "\"status\":\"queued\"",
};
pub const SOLD_OUT: Expected = Expected {
    status: 409,
    marker: "\"code\":\"sold_out\"",
};

/// One measured run.
#[derive(Clone)]
pub struct Run {
    pub requests: usize,
    /// Of each kind of right answer.
    pub kinds: Vec<usize>,
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
    pub fn new(outcome: Outcome) -> Self {
        Self {
            requests: outcome.answered,
            kinds: outcome.kinds,
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

    pub fn set_cpu(&mut self, before: Option<Usage>, after: Option<Usage>) {
        let requests = self.requests.max(1) as f64;
        self.cpu = before
            .zip(after)
            .map(|(before, after)| (after - before) / requests);
    }

    pub fn milliseconds(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64 / 1e6
    }
}

/// A server and its operator.
pub struct Target {
    pub process: Process,
    pub client: Client,
}

impl Target {
    pub fn address(&self) -> SocketAddr {
        self.process.address
    }
}

pub struct Stage<'a> {
    pub options: &'a Options,
    pub workspace: &'a Workspace,
    secret: String,
    signer: TokenSigner,
    /// What was answered or stored wrongly, in words.
    pub failures: Vec<String>,
}

/// What a run of purchases is.
pub struct Sell<'a> {
    /// For the words of a failure.
    pub name: &'a str,
    pub target: &'a Target,
    /// The sale whose audit has to agree, and which nobody else buys from.
    pub sale: &'a str,
    pub requests: Arc<Requests>,
    pub count: usize,
    pub connections: usize,
    pub schedule: Option<Schedule>,
    pub follower: Option<Follower>,
}

impl<'a> Stage<'a> {
    pub fn new(options: &'a Options, workspace: &'a Workspace) -> Result<Self, Error> {
        let secret = format!("{}{}", uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
        Ok(Self {
            options,
            workspace,
            signer: TokenSigner::new(secret.as_bytes())?,
            secret,
            failures: Vec::new(),
        })
    }

    pub fn bare(&self) -> Result<Process, Error> {
        Process::bare(self.workspace, &self.secret)
    }

    /// A flash-sale server with its own data, or on somebody else's if `more` says so.
    pub fn serve(&self, name: &str, more: &[(&str, &str)]) -> Result<Target, Error> {
        let mut settings = vec![
            ("RATE_LIMIT", "off"), // everybody comes from one address
            ("ADMIN_TOKEN", ADMIN_TOKEN),
            ("TOKEN_SECRET", self.secret.as_str()),
        ];
        settings.extend_from_slice(more);
        let own = &self.options.server_env;
        settings.extend(own.iter().map(|(key, value)| (&key[..], &value[..])));
        let program = self.options.program.as_deref();
        let process = Process::flash_sale(name, program, self.workspace, &settings)?;
        let client = Client::new(process.address, ADMIN_TOKEN)?;
        Ok(Target { process, client })
    }

    /// New users with signed tokens.
    pub fn users(&self, count: usize) -> Vec<User> {
        let expires_at = OffsetDateTime::now_utc() + time::Duration::DAY;
        let mint = |_| User {
            token: self.signer.mint(UserId::random(), "load", expires_at),
        };
        (0..count).map(mint).collect()
    }

    pub fn purchases(&self, address: SocketAddr, sale: &str, users: &[User]) -> Arc<Requests> {
        let keys = !self.options.no_keys;
        Arc::new(Requests::purchases(address, sale, users, keys))
    }

    pub fn connections(&self) -> usize {
        usize::from(self.options.connections)
    }

    /// A closed loop.
    pub fn load(
        &self,
        address: SocketAddr,
        requests: Arc<Requests>,
        count: usize,
        expected: Expected,
    ) -> Load {
        Load {
            address,
            requests,
            count,
            connections: self.connections(),
            threads: usize::from(self.options.generator_threads),
            expected: vec![expected],
            schedule: None,
            follower: None,
        }
    }

    /// A run against the server `pid`, timed and checked.
    pub async fn measure(&mut self, name: &str, pid: u32, load: Load) -> Result<Run, Error> {
        tokio::time::sleep(PAUSE).await;
        let before = cpu::used(&[pid]);
        let mut run = Run::new(load.run().await?);
        run.set_cpu(before, cpu::used(&[pid]));
        self.check_answers(name, &run);
        Ok(run)
    }

    /// A run against the bare endpoint.
    pub async fn measure_bare(
        &mut self,
        bare: &Process,
        requests: &Arc<Requests>,
    ) -> Result<Run, Error> {
        let count = self.options.scaled(BARE_COUNT);
        let load = self.load(bare.address, requests.clone(), count, BARE_EXPECTED);
        self.measure("bare", bare.pid(), load).await
    }

    /// Sells `count` units of a new sale and nothing else, in a closed loop.
    pub async fn sell_some(
        &mut self,
        name: &str,
        target: &Target,
        count: usize,
    ) -> Result<(String, Run), Error> {
        let sale = target.client.create_sale(name, count * 2).await?;
        let users = self.users(count);
        let run = self.sell_closed(name, target, &sale, &users).await?;
        Ok((sale, run))
    }

    /// Everybody buys from this sale, in a closed loop.
    pub async fn sell_closed(
        &mut self,
        name: &str,
        target: &Target,
        sale: &str,
        users: &[User],
    ) -> Result<Run, Error> {
        let requests = self.purchases(target.address(), sale, users);
        self.sell(Sell {
            name,
            target,
            sale,
            requests,
            count: users.len(),
            connections: self.connections(),
            schedule: None,
            follower: None,
        })
        .await
    }

    /// A run whose every request buys; not over before every order is in Postgres and audited.
    pub async fn sell(&mut self, what: Sell<'_>) -> Result<Run, Error> {
        tokio::time::sleep(PAUSE).await;
        let (target, sale) = (what.target, what.sale);
        let pids = [target.process.pid()];
        let load = Load {
            address: target.address(),
            requests: what.requests,
            count: what.count,
            connections: what.connections,
            threads: usize::from(self.options.generator_threads),
            expected: vec![ACCEPTED],
            schedule: what.schedule,
            follower: what.follower,
        };
        let live_before = target.client.audit(sale).await?.live;
        let metrics = target.client.metrics().await?;
        let before = cpu::used(&pids);
        let mut run = Run::new(load.run().await?);
        let answered = Instant::now();
        let drained = wait_until_written(&target.client, &metrics, run.requests).await?;
        run.set_cpu(before, cpu::used(&pids));
        run.drain_seconds = drained.map(|drained| (drained - answered).as_secs_f64());
        let after = target.client.metrics().await?;
        run.batch_size = batch_size(&metrics, &after);
        let more = |name: &str| after.total(name) - metrics.total(name);
        let transactions = more("flash_sale_writer_seconds_count");
        run.write_size = (transactions > 0.0).then(|| more(WRITTEN) / transactions);
        self.check_answers(what.name, &run);
        if drained.is_none() {
            let late = format!("orders were not written within {DRAINED_WITHIN:?}");
            self.fail(what.name, &late);
        }
        let audit = quiescent_audit(target, sale).await?;
        if !audit.quiescent {
            self.fail(what.name, "the sale did not come to rest");
        }
        if !audit.ok {
            self.fail(what.name, &format!("the audit says {}", audit.problems));
        }
        let (bought, live) = (run.requests, audit.live - live_before);
        if usize::try_from(live) != Ok(bought) {
            let lost = format!("{bought} purchases were answered 202, {live} more orders are live");
            self.fail(what.name, &lost);
        }
        Ok(run)
    }

    pub fn fail(&mut self, name: &str, what: &str) {
        self.failures.push(format!("{name}: {what}"));
    }

    pub fn check_answers(&mut self, name: &str, run: &Run) {
        for (what, count) in &run.unexpected {
            self.fail(name, &format!("{count} unexpected answers: {what}"));
        }
    }

    pub fn check_alive<'t>(&mut self, targets: impl Iterator<Item = &'t mut Target>) {
        for target in targets {
            if target.process.has_ended() {
                self.failures.push("a server ended by itself".to_owned());
            }
        }
    }
}

/// When the writer had written `count` orders more than at `before`; `None` if they did not in time.
pub async fn wait_until_written(
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

/// The audit of a sale that nobody buys from any more.
pub async fn quiescent_audit(target: &Target, sale: &str) -> Result<Audit, Error> {
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

/// All of some runs' latencies.
pub fn latencies<'a>(runs: impl Iterator<Item = &'a Run>) -> Histogram<u64> {
    let mut all = histogram();
    for run in runs {
        // Of equal bounds, so this cannot fail.
        all.add(&run.latency).ok();
    }
    all
}
