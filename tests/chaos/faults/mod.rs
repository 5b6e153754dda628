//! The faults: what is done to the program, how one knows that it happened, and what may be expected
//! of the program meanwhile.

pub mod churn;
pub mod clock;
pub mod crowds;
pub mod network;
pub mod points;
pub mod postgres;
pub mod processes;
pub mod redis;

use crate::{
    Error,
    cluster::{Cluster, Shape},
    support::{history::Operation, random::Random},
    trial::{Healed, Plan},
    world::World,
};
use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Declares the faults: variant, name, and a line for `--help`.
macro_rules! faults {
    ($($variant:ident $name:literal $about:literal)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Fault { $($variant),* }

        impl Fault {
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            pub fn about(self) -> &'static str {
                match self { $(Self::$variant => $about),* }
            }
        }
    };
}

faults! {
    Calm "calm" "nothing: the load alone"
    AppKill "app-kill" "kill -9 one instance, start it again, over and over"
    AppKillAll "app-kill-all" "kill -9 all instances at once"
    AppStop "app-stop" "SIGSTOP an instance for longer than leases and grace periods, then SIGCONT"
    AppStopLong "app-stop-long" "the same for 70 s, with a lock that the others need; takes 200 s"
    WorkerKill "worker-kill" "instances without a writer and a worker; kill -9 of either"
    Many "many" "five instances, two of them without a writer, come and go by SIGKILL and SIGTERM"
    ManyWithoutWriter "many-without-writer" "four instances without a writer and two workers come and go"
    RedisKill "redis-kill" "kill -9 Redis; it restarts with everything it had confirmed"
    RedisEmpty "redis-empty" "kill -9 Redis; it restarts without its data"
    RedisCut "redis-cut" "kill -9 Redis; its append-only file is cut at a random byte"
    RedisFlush "redis-flush" "FLUSHALL"
    RedisBackup "redis-backup" "Redis restarts from an older copy of its data folder"
    RedisFailover "redis-failover" "a replica that lags is promoted"
    RedisStop "redis-stop" "SIGSTOP Redis for up to 3.5 s"
    RedisStopLong "redis-stop-long" "the same for 70 s, longer than every timeout; takes 100 s"
    PostgresKill "postgres-kill" "kill -9 Postgres; it recovers"
    PostgresStop "postgres-stop" "SIGSTOP all of Postgres for up to 3.5 s"
    PostgresStopLong "postgres-stop-long" "the same for 70 s, longer than every timeout; takes 100 s"
    PostgresRefuse "postgres-refuse" "Postgres refuses connections, and loses those it has"
    PostgresFailover "postgres-failover" "a synchronous standby is promoted"
    PostgresSlowCommits "postgres-slow-commits" "every order transaction sleeps before it commits"
    PostgresSerialization "postgres-serialization" "transactions fail with SQLSTATE 40001 now and then"
    EverythingKill "everything-kill" "kill -9 all processes at once"
    NetCut "net-cut" "connections to both stores are cut at random, also inside a request"
    NetLostReplies "net-lost-replies" "requests run, and their replies are lost"
    NetBlackHole "net-black-hole" "connections fall silent without closing, and stay silent"
    NetLatency "net-latency" "200 ms each way to both stores"
    NetThrottle "net-throttle" "both stores at some kilobytes a second"
    StaleInstance "stale-instance" "an instance is stopped through a whole rebuild, then continues"
    Clock "clock" "instances a day ahead and a day behind, stepping back and forth"
    FailPoints "fail-points" "exit, error, pause and panic at every named point of the program"
    Overload "overload" "waves of thousands of connections, more than the queues take"
    Clients "clients" "idle, endless and silent connections that hang up all at once"
    Mixed "mixed" "random faults of all kinds, overlapping, without loss of data"
    MixedLoss "mixed-loss" "the same, and Redis loses data too"
}

/// What a mixed run draws from.
const MIXED: &[Fault] = &[
    Fault::AppKill,
    Fault::AppKill,
    Fault::AppKillAll,
    Fault::RedisKill,
    Fault::PostgresKill,
    Fault::PostgresRefuse,
    Fault::RedisStop,
    Fault::PostgresStop,
    Fault::AppStop,
    Fault::EverythingKill,
    Fault::NetCut,
    Fault::NetLostReplies,
    Fault::NetBlackHole,
];
const LOSSES: &[Fault] = &[
    Fault::RedisEmpty,
    Fault::RedisCut,
    Fault::RedisFlush,
    Fault::StaleInstance,
];

/// What happened to the deployment.
#[derive(Debug, Default)]
pub struct Strikes {
    pub count: u64,
    /// Processes killed with SIGKILL.
    pub kills: u64,
    pub healed: Vec<Healed>,
    /// Instances that ended by themselves while they should have served.
    pub crashes: Vec<String>,
    /// What should have happened and did not: the trial is void.
    pub missing: Option<String>,
    pub notes: Vec<String>,
}

/// How much longer than its time a trial may take to have enough purchases.
const GRACE: Duration = Duration::from_secs(30);

/// What a strike works with.
pub struct Stage<'a> {
    pub cluster: &'a mut Cluster,
    pub world: Arc<World>,
    pub random: Random,
    plan: Plan,
    until: Instant,
    pub strikes: Strikes,
    /// What was proven to happen: fail points that fired, with their action; days believed in; pauses.
    pub reached: BTreeSet<String>,
    /// Connections opened only to be in the way.
    pub nuisances: usize,
    /// What the clients of a fault did, besides those of the load.
    pub operations: Vec<Operation>,
}

impl<'a> Stage<'a> {
    pub fn new(cluster: &'a mut Cluster, world: Arc<World>, plan: Plan) -> Self {
        Self {
            random: Random::of(world.seed, "nemesis", 0),
            cluster,
            world,
            plan,
            until: Instant::now() + plan.length,
            strikes: Strikes::default(),
            reached: BTreeSet::new(),
            nuisances: 0,
            operations: Vec::new(),
        }
    }

    /// Strikes until the time is over, at least once.
    pub async fn run(&mut self, fault: Fault) -> Result<(), Error> {
        fault.prepare(self).await?;
        // Also without time: what was begun is finished, and there must be something to judge.
        let latest = self.until + GRACE;
        let is_due = |stage: &Self| {
            let every_point = fault == Fault::FailPoints
                && stage.plan.length > points::COMPLETE_FROM
                && !points::is_complete(stage);
            let accepted: u64 = stage
                .world
                .accepted
                .iter()
                .map(|one| one.load(Relaxed))
                .sum();
            let too_little = accepted < stage.plan.least_accepted && Instant::now() < latest;
            every_point || too_little
        };
        while self.strikes.count < fault.least_strikes()
            || Instant::now() < self.until
            || is_due(self)
        {
            fault.strike(self).await?;
            self.strikes.count += 1;
            self.tend()?;
        }
        fault.verify(self).await
    }

    /// Everything works again from here on.
    pub async fn finish(mut self) -> Result<(Strikes, Vec<Operation>), Error> {
        self.tend()?;
        self.cluster.heal().await?;
        self.healed(None);
        Ok((self.strikes, self.operations))
    }

    /// Does what a service manager does: what has ended is started again. An instance may end by
    /// itself while it starts and a store is away, but not after that.
    pub fn tend(&mut self) -> Result<(), Error> {
        for instance in &mut self.cluster.instances {
            if instance.is_running() {
                continue;
            }
            if let Some(status) = instance.ended_by_itself.take() {
                let what = format!(
                    "instance {} ended by itself ({status}); noticed {:.1?} after it was started",
                    instance.number,
                    instance.age()
                );
                match instance.may_have_ended() {
                    true => self.strikes.notes.push(what),
                    false => self.strikes.crashes.push(what),
                }
            }
            instance.start(&[])?;
        }
        Ok(())
    }

    /// Something works again, or should.
    pub fn healed(&mut self, instance: Option<u8>) {
        let at = self.world.now();
        self.strikes.healed.push(Healed { at, instance });
    }

    pub async fn wait(&mut self, millis: std::ops::Range<u64>) {
        let pause = self.random.millis(millis);
        tokio::time::sleep(pause).await;
    }
}

impl Fault {
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|fault| fault.name() == name)
    }

    pub fn shape(self) -> Shape {
        let (servers, without_writer, workers) = match self {
            Self::WorkerKill => (0, 2, 1),
            Self::Many => (3, 2, 0),
            Self::ManyWithoutWriter => (0, 4, 2),
            _ => (2, 0, 0),
        };
        Shape {
            servers,
            without_writer,
            workers,
        }
    }

    /// So often it must strike to have shown what it is about.
    fn least_strikes(self) -> u64 {
        match self {
            // Every clock has stood on every offset, most likely.
            Self::Clock => 12,
            // Both ways of going, by several instances, most likely.
            Self::Many | Self::ManyWithoutWriter => 4,
            // Once with rows locked, once with the lock of the rebuild.
            Self::AppStopLong => 2,
            _ => 1,
        }
    }

    /// So long a trial must be to hold what it is about: a pause of over a minute, and the load that
    /// comes before and after it.
    pub fn least_length(self) -> Duration {
        if self.is_long_stop() {
            Duration::from_secs(100)
        } else {
            Duration::ZERO
        }
    }

    fn is_long_stop(self) -> bool {
        matches!(
            self,
            Self::AppStopLong | Self::RedisStopLong | Self::PostgresStopLong
        )
    }

    /// Environment of the instances, besides the ordinary.
    pub fn settings(self) -> &'static [(&'static str, &'static str)] {
        match self {
            // Small queues: full in a moment.
            Self::Overload => &[("BACKLOG_LIMIT", "500")],
            _ => &[],
        }
    }

    /// Whether Redis loses what it had confirmed.
    pub fn loses_redis_data(self) -> bool {
        matches!(
            self,
            Self::RedisEmpty
                | Self::RedisCut
                | Self::RedisFlush
                | Self::RedisBackup
                | Self::RedisFailover
                | Self::StaleInstance
                | Self::MixedLoss
        )
    }

    /// Whether it may lose accepted orders for good, as documented: with the log of Redis and the
    /// process that still had them in memory. An instance that is stopped while the reply about them is
    /// on its way has never had them: when it goes on, it no longer waits for that reply.
    pub fn may_lose_accepted(self) -> bool {
        matches!(self, Self::MixedLoss | Self::StaleInstance)
    }

    /// Within this time after the last purchase everything is terminal: the time to pay (2 s), the
    /// grace of the recovery (2 s), and what a busy machine needs to write it all down. A connection
    /// that fell silent is only given up after a timeout of up to 20 s.
    pub fn terminal_within(self) -> Duration {
        match self {
            Self::NetBlackHole | Self::Mixed | Self::MixedLoss => Duration::from_secs(40),
            _ => Duration::from_secs(15),
        }
    }

    /// How long a request whose connection was lost may still take effect.
    pub fn late_effects(self) -> Duration {
        match self {
            Self::NetThrottle | Self::NetBlackHole | Self::Mixed | Self::MixedLoss => {
                Duration::from_secs(60)
            }
            // What was sent to somebody who stands still is read when they go on.
            _ if self.is_long_stop() => Duration::from_secs(90),
            _ => Duration::from_secs(8),
        }
    }

    async fn prepare(self, stage: &mut Stage<'_>) -> Result<(), Error> {
        match self {
            Self::PostgresSlowCommits => postgres::slow_commits(stage).await,
            Self::PostgresSerialization => postgres::serialization_failures(stage).await,
            Self::RedisBackup => redis::back_up(stage).await,
            Self::Clock => clock::prepare(stage).await,
            Self::FailPoints => points::prepare(stage).await,
            _ => Ok(()),
        }
    }

    /// One round of the fault, from harm to repair.
    async fn strike(self, stage: &mut Stage<'_>) -> Result<(), Error> {
        match self {
            Self::AppKill => processes::kill_one(stage).await,
            Self::AppKillAll => processes::kill_all(stage).await,
            Self::AppStop => processes::stop_one(stage, 3_000..4_500).await,
            Self::AppStopLong => processes::stop_one_for_long(stage).await,
            Self::WorkerKill => processes::kill_one(stage).await,
            Self::Many | Self::ManyWithoutWriter => churn::come_and_go(stage).await,
            Self::RedisKill => redis::kill(stage).await,
            Self::RedisEmpty => redis::restart_empty(stage).await,
            Self::RedisCut => redis::restart_cut(stage).await,
            Self::RedisFlush => redis::flush(stage).await,
            Self::RedisBackup => redis::restore_backup(stage).await,
            Self::RedisFailover => redis::fail_over(stage).await,
            Self::RedisStop => redis::stop(stage, 300..3_500).await,
            Self::RedisStopLong => processes::for_long(stage, redis::stop).await,
            Self::PostgresKill => postgres::kill(stage).await,
            Self::PostgresStop => postgres::stop(stage, 500..3_500).await,
            Self::PostgresStopLong => processes::for_long(stage, postgres::stop).await,
            Self::PostgresRefuse => postgres::refuse(stage).await,
            Self::PostgresFailover => postgres::fail_over(stage).await,
            Self::Calm | Self::PostgresSlowCommits | Self::PostgresSerialization => {
                stage.wait(200..500).await;
                Ok(())
            }
            Self::Clock => clock::strike(stage).await,
            Self::FailPoints => points::strike(stage).await,
            Self::Overload => crowds::overload(stage).await,
            Self::Clients => crowds::nuisances(stage).await,
            // Boxed, because these strike by way of the others.
            Self::Mixed => Box::pin(mixed(stage, MIXED)).await,
            Self::MixedLoss => {
                let all = [MIXED, LOSSES].concat();
                Box::pin(mixed(stage, &all)).await
            }
            Self::EverythingKill => processes::kill_everything(stage).await,
            Self::NetCut => network::cut(stage).await,
            Self::NetLostReplies => network::lose_replies(stage).await,
            Self::NetBlackHole => network::black_hole(stage).await,
            Self::NetLatency => network::latency(stage).await,
            Self::NetThrottle => network::throttle(stage).await,
            Self::StaleInstance => processes::stale(stage).await,
        }
    }

    /// Looks whether the fault really happened, and undoes what healing does not.
    async fn verify(self, stage: &mut Stage<'_>) -> Result<(), Error> {
        match self {
            Self::PostgresSlowCommits | Self::PostgresSerialization => {
                postgres::remove_trigger(stage).await
            }
            Self::NetCut
            | Self::NetLostReplies
            | Self::NetBlackHole
            | Self::NetLatency
            | Self::NetThrottle => {
                network::verify(self, stage);
                Ok(())
            }
            Self::Clock => {
                clock::verify(stage);
                Ok(())
            }
            Self::FailPoints => {
                points::verify(stage);
                Ok(())
            }
            Self::AppStopLong | Self::RedisStopLong | Self::PostgresStopLong => {
                processes::verify_stop(stage);
                Ok(())
            }
            Self::Many | Self::ManyWithoutWriter => {
                churn::verify(stage);
                Ok(())
            }
            Self::Clients => {
                let count = stage.nuisances;
                stage
                    .strikes
                    .notes
                    .push(format!("{count} nuisances connected"));
                if count < 500 {
                    stage.strikes.missing = Some(format!("only {count} nuisances connected"));
                }
                Ok(())
            }
            Self::AppKill
            | Self::AppKillAll
            | Self::WorkerKill
            | Self::RedisKill
            | Self::PostgresKill
            | Self::EverythingKill
                if stage.strikes.kills == 0 =>
            {
                stage.strikes.missing = Some("nothing was killed".to_owned());
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// One of these faults, half of the time while a link to a store is bad.
async fn mixed(stage: &mut Stage<'_>, faults: &[Fault]) -> Result<(), Error> {
    let fault = faults[stage.random.index(faults.len())];
    let bad = stage.random.chance(0.5);
    if bad {
        network::worsen(stage).await;
    }
    let struck = fault.strike(stage).await;
    if bad {
        network::mend(stage).await;
    }
    stage.tend()?;
    struck
}
