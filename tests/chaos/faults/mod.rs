//! The faults: what is done, how one knows that it happened, and what may be expected meanwhile.

pub mod clock;
pub mod crowds;
pub mod network;
pub mod points;
pub mod postgres;
pub mod processes;
pub mod redis;

use crate::cluster::Cluster;
use crate::instance::{Instance, Role, SERVER, Settings, TAKER, WORKER};
use crate::payments;
use crate::support::driver::World;
use crate::support::driver::client::{Buyer, Client};
use crate::support::history::{Answer, Kind, NO_ORDER, user_id};
use crate::support::prelude::*;
use crate::support::processes::{family, status_of};
use crate::support::proxy::{Fault as NetFault, Lost};
use crate::support::stores::{Error, Result, Stores};
use crate::trial::{Healed, Plan, SERVES_WITHIN};
use clap::ValueEnum;
use std::{os::unix::process::ExitStatusExt, sync::LazyLock};

macro_rules! faults {
    ($($variant:ident $about:tt $strike:path $(, $how:expr)?;)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
        pub enum Fault { $(#[doc = $about] $variant),* }

        impl Fault {
            async fn strike(self, stage: &mut Stage<'_>) -> Result {
                match self { $(Self::$variant => $strike(stage $(, $how)?).await),* }
            }
        }
    };
}

faults! {
    Calm "nothing: the load alone" nothing;
    AppKill "kill -9 one instance, start it again, over and over" processes::kill_one;
    AppKillAll "kill -9 all instances at once" processes::kill_all;
    AppStop "SIGSTOP an instance for longer than leases and grace periods, then SIGCONT"
        processes::stop_one;
    AppStopLong "the same for 70 s, with a lock that the others need; takes 200 s"
        processes::for_long, processes::stop_in_the_worst_place;
    WorkerKill "instances without a writer and a worker; kill -9 of either" processes::kill_one;
    Many "five instances, two of them without a writer, come and go by SIGKILL and SIGTERM"
        processes::come_and_go;
    ManyWithoutWriter "four instances without a writer and two workers come and go"
        processes::come_and_go;
    RedisKill "kill -9 Redis; it restarts with everything it had confirmed" redis::kill;
    RedisEmpty "kill -9 Redis; it restarts without its data" redis::restart_empty;
    RedisCut "kill -9 Redis; its append-only file is cut at a random byte" redis::restart_cut;
    RedisFlush "FLUSHALL" redis::flush;
    RedisBackup "Redis restarts from an older copy of its data folder" redis::restore_backup;
    RedisFailover "a replica that lags is promoted" redis::fail_over;
    RedisStop "SIGSTOP Redis for up to 3.5 s" redis::stop, 300..3_500;
    RedisStopLong "the same for 70 s, longer than every timeout; takes 100 s"
        processes::for_long, redis::stop;
    PostgresKill "kill -9 Postgres; it recovers" postgres::kill;
    PostgresStop "SIGSTOP all of Postgres for up to 3.5 s" postgres::stop, 500..3_500;
    PostgresStopLong "the same for 70 s, longer than every timeout; takes 100 s"
        processes::for_long, postgres::stop;
    PostgresRefuse "Postgres refuses connections, and loses those it has" postgres::refuse;
    PostgresFailover "a synchronous standby is promoted" postgres::fail_over;
    PostgresSlowCommits "every order transaction sleeps before it commits" nothing;
    PostgresSerialization "transactions fail with SQLSTATE 40001 or 40P01 now and then" nothing;
    EverythingKill "kill -9 all processes at once" processes::kill_everything;
    NetCut "connections to both stores are cut at random, also inside a request" network::cut;
    NetLostReplies "requests run, and their replies are lost" network::lose_replies;
    NetBlackHole "connections fall silent without closing, and stay silent" network::black_hole;
    NetLatency "200 ms each way to both stores" network::latency;
    NetThrottle "both stores at some kilobytes a second" network::throttle;
    StaleInstance "an instance is stopped through a whole rebuild, then continues" processes::stale;
    Clock "instances a day ahead and a day behind, stepping back and forth" clock::strike;
    FailPoints "exit at every named point of the program" points::strike;
    Payments "a payment provider that loses, doubles, declines and dies, with all the rest"
        payments::strike;
    Overload "waves of thousands of connections, more than the queues take" crowds::overload;
    Clients "idle, endless and silent connections that hang up all at once" crowds::nuisances;
    Mixed "random faults of all kinds, overlapping, without loss of data" mixed, MIXED;
    MixedLoss "the same, and Redis loses data too" mixed, &[MIXED, LOSSES].concat();
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
            strikes: Strikes::default(),
            reached: BTreeSet::new(),
        }
    }

    /// Strikes until the time is over, at least once, and until there is something to judge.
    pub async fn run(mut self, fault: Fault) -> Result<Strikes> {
        let until = Instant::now() + self.plan.length;
        let latest = until + if fault == Fault::Payments { GRACE * 40 } else { GRACE };
        fault.prepare(&mut self).await?;
        while self.is_due(fault, until, latest) {
            fault.strike(&mut self).await?;
            self.strikes.count += 1;
            self.tend()?;
        }
        fault.verify(&mut self).await?;
        self.tend()?;
        self.cluster.heal().await?;
        self.healed(None)?;
        Ok(self.strikes)
    }

    fn is_due(&self, fault: Fault, until: Instant, latest: Instant) -> bool {
        let accepted = self.world.accepted.iter().map(|one| one.load(Relaxed));
        let come_and_go = matches!(fault, Fault::Many | Fault::ManyWithoutWriter);
        let too_little = accepted.sum::<u64>() < self.plan.least_accepted
            || come_and_go && processes::went_one_way(self);
        self.strikes.count < fault.least_strikes()
            || Instant::now() < until
            || (fault == Fault::FailPoints && points::is_due(self))
            || (too_little && Instant::now() < latest)
    }

    /// Starts again what has ended, which is no crash while a store is away at its start.
    pub fn tend(&mut self) -> Result {
        for instance in &mut self.cluster.instances {
            if !instance.is_running()
                && let Some(status) = instance.ended_by_itself.take()
            {
                let (number, age) = (instance.number, instance.started.elapsed());
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
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    pub fn roles(self) -> &'static [Role] {
        match self {
            Self::WorkerKill => &[TAKER, TAKER, WORKER],
            Self::Many => &[SERVER, SERVER, SERVER, TAKER, TAKER],
            Self::ManyWithoutWriter => &[TAKER, TAKER, TAKER, TAKER, WORKER, WORKER],
            _ => &[SERVER, SERVER],
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
        // Small queues: full in a moment.
        (self == Self::Overload).then(|| ("BACKLOG_LIMIT", "500".to_owned())).into_iter().collect()
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
            Self::Many | Self::ManyWithoutWriter => processes::verify_come_and_go(stage),
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
    if stage.random.chance(0.5) {
        network::worsen(stage).await;
    }
    // Boxed, because it strikes by way of the others.
    let struck = Box::pin(fault.strike(stage)).await;
    network::everywhere(stage, NetFault::None).await;
    stage.tend()?;
    struck
}
