//! The faults: what is done, how one knows that it happened, and what may be expected meanwhile.

pub mod churn;
pub mod clock;
pub mod crowds;
pub mod network;
pub mod points;
pub mod postgres;
pub mod processes;
pub mod redis;

use crate::cluster::Cluster;
use crate::instance::{Instance, Role, Settings};
use crate::payments;
use crate::support::driver::World;
use crate::support::driver::client::{Buyer, Client};
use crate::support::history::{Answer, Kind, NO_ORDER, user_id};
use crate::support::prelude::*;
use crate::support::processes::{family, status_of};
use crate::support::proxy::{Fault as NetFault, Lost};
use crate::support::stores::{Error, Result, Stores};
use crate::trial::{Healed, Plan};
use std::{os::unix::process::ExitStatusExt, sync::LazyLock};

macro_rules! faults {
    ($($variant:ident $name:literal $about:literal $strike:path $(, $how:expr)?;)*) => {
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

            async fn strike(self, stage: &mut Stage<'_>) -> Result {
                match self { $(Self::$variant => $strike(stage $(, $how)?).await),* }
            }
        }
    };
}

faults! {
    Calm "calm" "nothing: the load alone" nothing;
    AppKill "app-kill" "kill -9 one instance, start it again, over and over" processes::kill_one;
    AppKillAll "app-kill-all" "kill -9 all instances at once" processes::kill_all;
    AppStop "app-stop" "SIGSTOP an instance for longer than leases and grace periods, then SIGCONT"
        processes::stop_one;
    AppStopLong "app-stop-long" "the same for 70 s, with a lock that the others need; takes 200 s"
        processes::stop_one_for_long;
    WorkerKill "worker-kill" "instances without a writer and a worker; kill -9 of either"
        processes::kill_one;
    Many "many" "five instances, two of them without a writer, come and go by SIGKILL and SIGTERM"
        churn::come_and_go;
    ManyWithoutWriter "many-without-writer"
        "four instances without a writer and two workers come and go" churn::come_and_go;
    RedisKill "redis-kill" "kill -9 Redis; it restarts with everything it had confirmed"
        redis::kill;
    RedisEmpty "redis-empty" "kill -9 Redis; it restarts without its data" redis::restart_empty;
    RedisCut "redis-cut" "kill -9 Redis; its append-only file is cut at a random byte"
        redis::restart_cut;
    RedisFlush "redis-flush" "FLUSHALL" redis::flush;
    RedisBackup "redis-backup" "Redis restarts from an older copy of its data folder"
        redis::restore_backup;
    RedisFailover "redis-failover" "a replica that lags is promoted" redis::fail_over;
    RedisStop "redis-stop" "SIGSTOP Redis for up to 3.5 s" redis::stop, 300..3_500;
    RedisStopLong "redis-stop-long" "the same for 70 s, longer than every timeout; takes 100 s"
        processes::for_long, redis::stop;
    PostgresKill "postgres-kill" "kill -9 Postgres; it recovers" postgres::kill;
    PostgresStop "postgres-stop" "SIGSTOP all of Postgres for up to 3.5 s"
        postgres::stop, 500..3_500;
    PostgresStopLong "postgres-stop-long"
        "the same for 70 s, longer than every timeout; takes 100 s"
        processes::for_long, postgres::stop;
    PostgresRefuse "postgres-refuse" "Postgres refuses connections, and loses those it has"
        postgres::refuse;
    PostgresFailover "postgres-failover" "a synchronous standby is promoted" postgres::fail_over;
    PostgresSlowCommits "postgres-slow-commits" "every order transaction sleeps before it commits"
        nothing;
    PostgresSerialization "postgres-serialization"
        "transactions fail with SQLSTATE 40001 or 40P01 now and then" nothing;
    EverythingKill "everything-kill" "kill -9 all processes at once" processes::kill_everything;
    NetCut "net-cut" "connections to both stores are cut at random, also inside a request"
        network::cut;
    NetLostReplies "net-lost-replies" "requests run, and their replies are lost"
        network::lose_replies;
    NetBlackHole "net-black-hole" "connections fall silent without closing, and stay silent"
        network::black_hole;
    NetLatency "net-latency" "200 ms each way to both stores" network::latency;
    NetThrottle "net-throttle" "both stores at some kilobytes a second" network::throttle;
    StaleInstance "stale-instance" "an instance is stopped through a whole rebuild, then continues"
        processes::stale;
    Clock "clock" "instances a day ahead and a day behind, stepping back and forth" clock::strike;
    FailPoints "fail-points" "exit at every named point of the program"
        points::strike;
    Payments "payments"
        "a payment provider that loses, doubles, declines and dies, with all the rest"
        payments::strike;
    Overload "overload" "waves of thousands of connections, more than the queues take"
        crowds::overload;
    Clients "clients" "idle, endless and silent connections that hang up all at once"
        crowds::nuisances;
    Mixed "mixed" "random faults of all kinds, overlapping, without loss of data" mixed, MIXED;
    MixedLoss "mixed-loss" "the same, and Redis loses data too"
        mixed, &[MIXED, LOSSES].concat();
}

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
const LOSSES: &[Fault] =
    &[Fault::RedisEmpty, Fault::RedisCut, Fault::RedisFlush, Fault::StaleInstance];

#[derive(Debug, Default)]
pub struct Strikes {
    pub count: u64,
    pub kills: u64,
    pub healed: Vec<Healed>,
    pub crashes: Vec<String>,
    /// What should have happened and did not: the trial is void.
    pub missing: Option<String>,
    pub notes: Vec<String>,
}

const GRACE: Duration = Duration::from_secs(30);

pub struct Stage<'a> {
    pub cluster: &'a mut Cluster,
    pub world: Arc<World>,
    pub random: Random,
    plan: Plan,
    until: Instant,
    pub strikes: Strikes,
    /// What was proven to happen: fail points that fired; days; pauses.
    pub reached: BTreeSet<String>,
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
        }
    }

    /// Strikes until the time is over, at least once, and until there is something to judge.
    pub async fn run(&mut self, fault: Fault) -> Result {
        fault.prepare(self).await?;
        let latest = self.until + if fault == Fault::Payments { GRACE * 40 } else { GRACE };
        loop {
            let accepted = self.world.accepted.iter().map(|one| one.load(Relaxed));
            let too_little = accepted.sum::<u64>() < self.plan.least_accepted;
            let is_due = self.strikes.count < fault.least_strikes()
                || Instant::now() < self.until
                || (fault == Fault::FailPoints && points::is_due(self))
                || (too_little && Instant::now() < latest);
            if !is_due {
                return fault.verify(self).await;
            }
            fault.strike(self).await?;
            self.strikes.count += 1;
            self.tend()?;
        }
    }

    pub async fn finish(mut self) -> Result<Strikes> {
        self.tend()?;
        self.cluster.heal().await?;
        self.healed(None)?;
        Ok(self.strikes)
    }

    /// Starts again what has ended, which is no crash while a store is away at its start.
    pub fn tend(&mut self) -> Result {
        for instance in &mut self.cluster.instances {
            if instance.is_running() {
                continue;
            }
            if let Some(status) = instance.ended_by_itself.take() {
                let (number, age) = (instance.number, instance.age());
                let what = format!(
                    "instance {number} ended by itself ({status}); noticed {age:.1?} after it was \
                     started"
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

    pub fn healed(&mut self, instance: Option<u8>) -> Result {
        self.strikes.healed.push(Healed { at: self.world.now(), instance });
        Ok(())
    }

    pub async fn wait(&mut self, millis: Range<u64>) {
        tokio::time::sleep(self.random.millis(millis)).await;
    }

    pub fn note(&mut self, what: String) {
        self.strikes.notes.push(what);
    }

    pub fn miss(&mut self, what: impl Into<String>) {
        self.strikes.missing = Some(what.into());
    }

    pub fn any_instance(&mut self) -> usize {
        self.random.index(self.cluster.instances.len())
    }

    pub fn kill(&mut self, number: usize) {
        self.strikes.kills += u64::from(self.cluster.instances[number].kill());
    }

    pub fn kill_all(&mut self) {
        (0..self.cluster.instances.len()).for_each(|number| self.kill(number));
    }

    pub fn start(&mut self, number: usize) -> Result {
        self.cluster.instances[number].start(&[])
    }
}

impl Fault {
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|fault| fault.name() == name)
    }

    pub fn roles(self) -> &'static [Role] {
        use Role::{Server, ServerWithoutWriter as Taker, Worker};
        match self {
            Self::WorkerKill => &[Taker, Taker, Worker],
            Self::Many => &[Server, Server, Server, Taker, Taker],
            Self::ManyWithoutWriter => &[Taker, Taker, Taker, Taker, Worker, Worker],
            _ => &[Server, Server],
        }
    }

    fn least_strikes(self) -> u64 {
        match self {
            // Each offset once by a new process, then steps of those that run.
            Self::Clock => 12,
            // Both ways of going, by several instances, most likely.
            Self::Many | Self::ManyWithoutWriter => 4,
            // One of everything.
            Self::Payments => 9,
            // Once with rows locked, once with the lock of the rebuild.
            Self::AppStopLong => 2,
            _ => 1,
        }
    }

    /// A pause of over a minute, and the load that comes before and after it.
    pub fn least_length(self) -> Duration {
        Duration::from_secs(if self.is_long_stop() { 100 } else { 0 })
    }

    /// However long that takes.
    pub fn least_accepted(self) -> Option<u64> {
        (self == Self::Payments).then_some(21_000)
    }

    fn is_long_stop(self) -> bool {
        matches!(self, Self::AppStopLong | Self::RedisStopLong | Self::PostgresStopLong)
    }

    pub fn settings(self) -> Settings {
        match self {
            // Small queues: full in a moment.
            Self::Overload => vec![("BACKLOG_LIMIT", "500".to_owned())],
            _ => Vec::new(),
        }
    }

    pub fn loses_redis_data(self) -> bool {
        let other = matches!(self, Self::MixedLoss | Self::RedisBackup | Self::RedisFailover);
        other || LOSSES.contains(&self)
    }

    /// With the log of Redis and the process that had them; a stopped one never heard the reply.
    pub fn may_lose_accepted(self) -> bool {
        matches!(self, Self::MixedLoss | Self::StaleInstance)
    }

    /// Two seconds to pay and two of grace; a silent connection is given up after up to 20 s.
    pub fn terminal_within(self) -> Duration {
        let falls_silent = matches!(self, Self::NetBlackHole | Self::Mixed | Self::MixedLoss);
        Duration::from_secs(if falls_silent { 40 } else { 15 })
    }

    /// How long a request whose connection was lost may still take effect.
    pub fn late_effects(self) -> Duration {
        Duration::from_secs(match self {
            Self::NetThrottle | Self::NetBlackHole | Self::Mixed | Self::MixedLoss => 60,
            // What was sent to a process that stands still is read when it goes on.
            _ if self.is_long_stop() => 90,
            _ => 8,
        })
    }

    async fn prepare(self, stage: &mut Stage<'_>) -> Result {
        match self {
            Self::PostgresSlowCommits => postgres::plant(stage, postgres::SLOW_COMMITS).await,
            Self::PostgresSerialization => postgres::plant(stage, postgres::FAILURES).await,
            Self::RedisBackup => redis::back_up(stage),
            Self::Clock => clock::prepare(stage),
            Self::FailPoints => points::prepare(stage).await,
            _ => Ok(()),
        }
    }

    async fn verify(self, stage: &mut Stage<'_>) -> Result {
        match self {
            Self::PostgresSlowCommits | Self::PostgresSerialization => {
                postgres::remove_trigger(stage).await?;
            }
            Self::Clock => clock::verify(stage),
            Self::FailPoints => points::verify(stage),
            Self::Many | Self::ManyWithoutWriter => churn::verify(stage),
            _ if self.is_long_stop() => processes::verify_stop(stage),
            Self::NetCut => network::verify(stage, "connections were cut", |all| all.cut),
            Self::NetLostReplies => {
                network::verify(stage, "replies were lost", |all| all.lost_replies);
            }
            Self::NetBlackHole => {
                network::verify(stage, "bytes were swallowed", |all| all.swallowed_bytes);
            }
            Self::NetLatency | Self::NetThrottle => {
                network::verify(stage, "pieces were delayed", |all| all.delayed);
            }
            _ if self.name().contains("-kill") && stage.strikes.kills == 0 => {
                stage.miss("nothing was killed");
            }
            _ => {}
        }
        Ok(())
    }
}

async fn nothing(stage: &mut Stage<'_>) -> Result {
    stage.wait(200..500).await;
    Ok(())
}

async fn mixed(stage: &mut Stage<'_>, faults: &[Fault]) -> Result {
    let fault = faults[stage.random.index(faults.len())];
    let bad = stage.random.chance(0.5);
    if bad {
        network::worsen(stage).await;
    }
    // Boxed, because it strikes by way of the others.
    let struck = Box::pin(fault.strike(stage)).await;
    if bad {
        network::everywhere(stage, NetFault::None).await;
    }
    stage.tend()?;
    struck
}
