//! A comparison of all locks: what each survives, what it costs, and the test behind each claim.
//!
//! The four properties are those of 《分布式锁的三种实现》. What they leave out stands in [`FENCING`].

use super::{
    Acquired, AdvisoryLock, Guard, Lock, LockError, MultiLock, Redlock, ReentrantLock,
    SetPxNoOwner, SetnxExpire, SetnxGetset, TableLock, TokenLock, ZooKeeperLock,
    wire::{Clock, Line, Meter, RoundTrips, Sql},
    zookeeper::Zoo,
};
use std::time::Duration;
use tokio::time::{Instant, error::Elapsed, timeout};

/// A text in both languages.
#[derive(Debug, Clone, Copy)]
pub struct Text {
    pub en: &'static str,
    pub zh: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    Yes,
    No,
    /// Under a condition, which the text names.
    Partly,
}

impl Holds {
    pub fn id(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Partly => "partly",
        }
    }
}

/// A claim and the test that would fail if it were wrong: `file::test` in a folder `locks` of the
/// tests, or `lessons::lesson/act`, which `tests/it/lessons` plays.
#[derive(Debug, Clone, Copy)]
pub struct Cell {
    pub holds: Holds,
    pub why: Text,
    pub test: &'static str,
}

/// One lock.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    pub id: &'static str,
    pub title: Text,
    /// In the order of [`PROPERTIES`].
    pub cells: [Cell; 4],
    pub use_when: Text,
    pub not_given: Text,
}

#[derive(Debug, Clone, Copy)]
pub struct Property {
    pub id: &'static str,
    pub title: Text,
    pub explanation: Text,
}

pub const PROPERTIES: [Property; 4] = [
    Property {
        id: "mutual_exclusion",
        title: text("Mutual exclusion", "互斥"),
        explanation: text(
            "At any moment at most one client believes to hold the lock.",
            "任何时刻,最多只有一个客户端认为自己持有锁。",
        ),
    },
    Property {
        id: "no_deadlock",
        title: text("No deadlock", "不会死锁"),
        explanation: text(
            "If the holder dies, the lock ends by itself and somebody else can have it.",
            "持有者崩溃后,锁会自己失效,别人能够拿到。",
        ),
    },
    Property {
        id: "node_failure",
        title: text("Tolerance of failed nodes", "容错"),
        explanation: text(
            "If a server of the lock fails or comes back without its data, the lock goes on \
             working.",
            "锁服务的某个节点故障,或丢失数据后重启,锁仍然正确可用。",
        ),
    },
    Property {
        id: "only_owner_unlocks",
        title: text("Only the owner unlocks", "解铃还须系铃人"),
        explanation: text(
            "Nobody gives back a lock that is not theirs, however late they come.",
            "无论来得多晚,谁也不能释放别人的锁。",
        ),
    },
];

/// A limit of all locks with an expiry.
pub const FENCING: Text = text(
    "No lock with an expiry can keep a holder that stands still (a long GC pause, a suspended \
     machine) from writing when it wakes. The lock has gone to somebody else by then, and no \
     release, token or majority changes that. Only the resource can refuse it: each holder gets a \
     higher number than the one before, sends it along with every write, and the resource rejects \
     a number that is older than one it has seen.",
    "任何会过期的锁,都拦不住一个停顿了的持有者(长时间 GC、机器挂起)在醒来之后继续写入。那时锁早已属于别人,安全释放、唯一标识、多数派都无济于事。只有资源自己能拒绝它:每个持有者得到一个比\
     前一个更大的编号(fencing token),写入时带上,资源拒绝比它见过的更旧的编号。",
);

const fn text(en: &'static str, zh: &'static str) -> Text {
    Text { en, zh }
}

const fn cell(holds: Holds, en: &'static str, zh: &'static str, test: &'static str) -> Cell {
    Cell { holds, why: text(en, zh), test }
}

use Holds::{No, Partly, Yes};

const ONE_REDIS: Cell = cell(
    No,
    "One Redis: if it comes back without its data, a second client gets the lock while the first \
     still believes. (So it does if a replica takes over that had not heard of the lock: lesson \
     9.)",
    "只有一个 Redis:它丢失数据后重启,第二个客户端就会拿到锁,而第一个仍以为自己持有。(由尚未同步到锁的从节点接管也一样:见第 9 课。)",
    "checker::checker_one_redis_that_forgets_makes_two_holders",
);

pub const ROWS: &[Row] = &[
    Row {
        id: "setnx-expire",
        title: text("SETNX, then EXPIRE", "先 SETNX 再 EXPIRE"),
        cells: [
            cell(
                No,
                "Two who repair a lock without an expiry both take it, because SETNX's answer is \
                 not looked at.",
                "两个客户端同时修复没有过期时间的锁,都不看 SETNX 的返回值,于是都以为拿到了锁。",
                "lessons::b01/take-over",
            ),
            cell(
                No,
                "A crash between the two commands leaves a lock without an expiry.",
                "两条命令之间崩溃,锁永远没有过期时间。",
                "lessons::b01/for-ever",
            ),
            ONE_REDIS,
            cell(
                No,
                "DEL never asks whose lock it is.",
                "DEL 从不检查锁属于谁。",
                "historical::setnx_expire_deletes_somebody_elses_lock",
            ),
        ],
        use_when: text("Never: to learn from.", "不要使用,只用于学习。"),
        not_given: text("One step instead of two; an owner.", "原子的一步操作;锁的主人。"),
    },
    Row {
        id: "setnx-getset",
        title: text("SETNX with a time stamp, GETSET", "SETNX 存时间戳,GETSET 抢占"),
        cells: [
            cell(
                No,
                "Clients compare their own clocks: a fast one steals a living lock.",
                "客户端各自比较自己的时钟:时钟快的会抢走仍然有效的锁。",
                "lessons::b02/clock-skew",
            ),
            cell(
                Yes,
                "The stamp of a dead holder ends, and the next one takes over.",
                "持有者崩溃后时间戳到期,后来者接管。",
                "historical::setnx_getset_ends_when_its_holder_has_died",
            ),
            ONE_REDIS,
            cell(
                No,
                "It checks its own time and then deletes: what happens in between belongs to \
                 somebody else.",
                "先检查自己的时间再删除:两步之间锁可能已属于别人。",
                "historical::setnx_getset_check_then_delete_deletes_somebody_elses_lock",
            ),
        ],
        use_when: text("Never since SET NX PX exists.", "有了 SET NX PX 之后不再需要。"),
        not_given: text(
            "Independence of the clients' clocks; an owner.",
            "不依赖客户端时钟;锁的主人。",
        ),
    },
    Row {
        id: "set-px-no-owner",
        title: text("SET NX PX, released by DEL", "SET NX PX,用 DEL 释放"),
        cells: [
            cell(
                No,
                "A late release opens the next holder's lock, and a third client walks in beside \
                 them.",
                "迟到的释放会打开后来者的锁,第三个客户端就进来了。",
                "checker::checker_finds_a_release_that_deletes_without_comparing",
            ),
            cell(
                Yes,
                "Taken and given its expiry in one command.",
                "加锁和过期时间在一条命令里完成。",
                "historical::set_px_no_owner_ends_by_itself",
            ),
            ONE_REDIS,
            cell(
                No,
                "Everybody's value is the same, so nothing can be compared.",
                "大家的值都一样,无从比较。",
                "historical::set_px_no_owner_deletes_somebody_elses_lock",
            ),
        ],
        use_when: text("Never: a token costs nothing.", "不要使用:加上唯一标识没有任何代价。"),
        not_given: text("An owner.", "锁的主人。"),
    },
    Row {
        id: "token-lock",
        title: text("SET NX PX with a unique token", "SET NX PX 加唯一标识"),
        cells: [
            cell(
                Partly,
                "As long as the work is shorter than the lease, or the holder stops when it is \
                 told.",
                "只要工作时间短于租期,或持有者在被告知失效时停手。",
                "checker::checker_token_pauses_beyond_the_lease_make_two_holders\
                 _and_fencing_no_stale_write",
            ),
            cell(
                Yes,
                "The lease ends, renewed or not, once the holder has gone.",
                "持有者消失后,无论是否续期,租期都会结束。",
                "regressions::a_watchdog_of_a_dropped_guard",
            ),
            ONE_REDIS,
            cell(
                Yes,
                "Compared and deleted in one script.",
                "在一个脚本里比较并删除。",
                "regressions::an_unlock_of_somebody_elses_lock_reported_as_success",
            ),
        ],
        use_when: text(
            "To thin traffic, or with fencing: cheap and well understood.",
            "用来削减流量,或配合 fencing:便宜,原理清楚。",
        ),
        not_given: text(
            "Fairness, waking of waiters, reentrancy, survival of a Redis that forgets.",
            "公平性、唤醒等待者、可重入、Redis 丢数据后的安全。",
        ),
    },
    Row {
        id: "reentrant-lock",
        title: text("Reentrant, with watchdog", "可重入锁与看门狗"),
        cells: [
            cell(
                Partly,
                "Renewed while the holder lives; a holder that stands still for longer than the \
                 lease has company.",
                "持有者活着就续期;停顿超过租期的持有者,锁会被别人拿到。",
                "checker::checker_reentrant_with_watchdog_amid_cuts_and_lost_replies",
            ),
            cell(
                Yes,
                "The renewal dies with its holder. A holder that merely hangs keeps the lock.",
                "续期随持有者一起结束。但只是卡住的持有者会一直占着锁。",
                "regressions::a_watchdog_of_a_dropped_guard",
            ),
            ONE_REDIS,
            cell(
                Yes,
                "The script asks for the owner, and for this very holding.",
                "脚本检查主人,并检查是不是这一次持有。",
                "regressions::an_unlock_of_somebody_elses_lock_reported_as_success",
            ),
        ],
        use_when: text(
            "Work of unknown length, code that calls itself, many who wait.",
            "工作时长不定、代码会重入、等待者很多时。",
        ),
        not_given: text(
            "Fairness; survival of a Redis that forgets.",
            "公平性;Redis 丢数据后的安全。",
        ),
    },
    Row {
        id: "multi-lock",
        title: text("All of several Redis nodes", "多个独立 Redis 全部加锁(联锁)"),
        cells: [
            cell(
                Partly,
                "One node of three has forgotten, and still nobody else gets in. (For as long as \
                 the lease, like every lock that has one.)",
                "三个节点中有一个丢了数据,别人仍然进不来。(与所有带租期的锁一样,只在租期之内。)",
                "checker::checker_multi_lock_that_loses_a_node_again_and_again",
            ),
            cell(
                Yes,
                "The lease ends on every node.",
                "每个节点上的租期都会结束。",
                "nodes::several_nodes_end_by_themselves",
            ),
            cell(
                Partly,
                "A node that is down keeps everybody out; what was taken on the others is given \
                 back. (One that forgets is survived: see mutual exclusion.)",
                "只要有一个节点宕机,就谁也拿不到锁;在其他节点上拿到的会还回去。(节点丢数据则能承受:见“互斥”。)",
                "nodes::a_failed_acquire_that_leaves_nodes_locked",
            ),
            cell(
                Yes,
                "Compared and deleted on each node.",
                "在每个节点上比较并删除。",
                "nodes::a_late_release_of_several_nodes_touches_nobody_elses",
            ),
        ],
        use_when: text(
            "Better no lock than two holders, and short outages are bearable.",
            "宁可没有锁也不能有两个持有者,并且能接受短暂不可用时。",
        ),
        not_given: text("A fencing token; availability.", "fencing token;可用性。"),
    },
    Row {
        id: "redlock",
        title: text("Redlock: a majority of Redis nodes", "红锁:多数派 Redis"),
        cells: [
            cell(
                Partly,
                "While clocks run alike and no node comes back empty within a lease.",
                "只要各节点时钟一致,且没有节点在租期内丢数据重启。",
                "checker::checker_redlock_a_node_that_restarts_empty_inside_the_lease\
                 _makes_two_holders",
            ),
            cell(
                Yes,
                "The lease ends on every node.",
                "每个节点上的租期都会结束。",
                "nodes::several_nodes_end_by_themselves",
            ),
            cell(
                Partly,
                "A minority may be down. But one node that comes back without its data within a \
                 lease makes a second majority: it must stay away for longer than a lease.",
                "少数节点可以宕机。但只要有一个节点在租期之内丢了数据回来,就会出现第二个多数派:它必须等待超过一个租期才能回来。",
                "lessons::b10/restarts-empty",
            ),
            cell(
                Yes,
                "Compared and deleted on each node.",
                "在每个节点上比较并删除。",
                "nodes::a_late_release_of_several_nodes_touches_nobody_elses",
            ),
        ],
        use_when: text(
            "Rarely: for thinning traffic one node is enough, and for safety fencing is needed \
             anyway.",
            "很少需要:削减流量一个节点就够,要安全反正还得 fencing。",
        ),
        not_given: text(
            "A fencing token; safety when clocks jump.",
            "fencing token;时钟跳变时的安全。",
        ),
    },
    Row {
        id: "advisory-lock",
        title: text("Postgres advisory lock", "Postgres 咨询锁"),
        cells: [
            cell(
                Yes,
                "For work in the lock's own transaction: there is no lease to outlast, and commit \
                 and unlock are one.",
                "对在锁自己的事务里完成的工作成立:没有会过期的租期,提交与解锁是同一步。",
                "checker::checker_advisory_amid_pauses_never_two",
            ),
            cell(
                Yes,
                "The connection of a dead holder ends, and with it the lock and the work.",
                "持有者的连接断开,锁和未提交的工作一起消失。",
                "postgres::advisory_a_dead_connection_frees_the_lock_and_tells_the_holder",
            ),
            cell(
                Partly,
                "What was done under the lock is committed or undone together with it. There is \
                 one Postgres: while it is away nobody gets in (which no test here shows).",
                "在锁下完成的工作与锁一起提交或一起回滚。Postgres 只有一个:它不可用时谁也进不来(这一点没有测试演示)。",
                "postgres::advisory_the_unlock_is_the_commit_of_the_work",
            ),
            cell(
                Yes,
                "An unlock from another session answers false and changes nothing. (The \
                 session-level kind, behind a pool, cannot even be unlocked by its owner.)",
                "别的会话来解锁,得到 false,什么也不会改变。(会话级的那种在连接池里,连主人自己都可能解不开。)",
                "postgres::advisory_lets_one_in_and_the_next_waits_its_turn",
            ),
        ],
        use_when: text("The work is in this Postgres anyway.", "工作本来就在这个 Postgres 里时。"),
        not_given: text(
            "Protection of anything outside the transaction; many waiters (each keeps a \
             connection).",
            "对事务之外的东西的保护;大量等待者(每个占一个连接)。",
        ),
    },
    Row {
        id: "db-lock-table",
        title: text("A lock as a row", "数据库锁表"),
        cells: [
            cell(
                Partly,
                "As long as the holder stops when its lease is over; the version is a fencing \
                 token.",
                "只要持有者在租期结束时停手;版本号就是 fencing token。",
                "checker::checker_table_amid_pauses_is_alone_and_numbered",
            ),
            cell(
                Yes,
                "The row expires, by the database's clock.",
                "按数据库的时钟过期。",
                "postgres::table_ends_by_itself_and_a_late_release_touches_nobody_elses",
            ),
            cell(
                Partly,
                "A lost reply is recognised: taken once, freed once. There is one Postgres: while \
                 it is away nobody gets in (which no test here shows).",
                "丢失的应答能被识别:只算拿到一次,只释放一次。Postgres 只有一个:它不可用时谁也进不来(这一点没有测试演示)。",
                "postgres::table_replies_that_are_lost",
            ),
            cell(
                Yes,
                "The update asks for the owner.",
                "更新时检查主人。",
                "postgres::table_ends_by_itself_and_a_late_release_touches_nobody_elses",
            ),
        ],
        use_when: text(
            "Few, long holdings that somebody wants to look at.",
            "持有次数少、时间长、需要能查看时。",
        ),
        not_given: text("Speed; waking of waiters.", "速度;唤醒等待者。"),
    },
    Row {
        id: "zookeeper-lock",
        title: text("ZooKeeper", "ZooKeeper"),
        cells: [
            cell(
                Partly,
                "Within the session: a holder that is cut off is told before the next comes in; \
                 one that stands still is not.",
                "在会话有效期内成立:被断开的持有者会在下一个进来之前得到通知;停顿的持有者则不会。",
                "checker::checker_zookeeper_a_holder_that_is_cut_off_is_told_and_alone",
            ),
            cell(
                Yes,
                "The node is ephemeral: it goes with its session.",
                "临时节点随会话消失。",
                "zookeeper::zookeeper_a_holder_whose_session_ends_is_told_before_the_next_comes_in",
            ),
            cell(
                Yes,
                "A server that was killed and restarted still knows the lock, and its holder's \
                 session goes on. (An ensemble also goes on without a minority of its servers; the \
                 test has one server.)",
                "服务器被杀掉又重启后,锁仍然在,持有者的会话也继续有效。(集群还能承受少数服务器宕机;测试里只有一台。)",
                "zookeeper::zookeeper_that_is_restarted_keeps_the_lock",
            ),
            cell(
                Partly,
                "Anybody with access may remove the node; the holder is told.",
                "任何有权限的人都能删除节点;持有者会得到通知。",
                "zookeeper::zookeeper_a_node_that_somebody_removes",
            ),
        ],
        use_when: text(
            "Leaders and other long holdings, where a ZooKeeper runs already.",
            "选主等长期持有的场景,并且已有 ZooKeeper 时。",
        ),
        not_given: text(
            "Speed. Safety of a holder that stands still, unless the resource checks the czxid.",
            "速度。停顿的持有者的安全(除非资源检查 czxid)。",
        ),
    },
];

// --- what it costs

/// The servers for [`measure`]. Those that are `None` or empty are left out.
#[derive(Clone)]
pub struct Servers {
    pub redis: Line,
    /// Independent nodes, for the multi-lock and redlock.
    pub nodes: Vec<Line>,
    pub sql: Option<Sql>,
    pub zoo: Option<Zoo>,
}

impl Servers {
    /// How many of [`ROWS`] can be measured; fewer [`Cost`]s mean that a lock was too slow.
    pub fn locks(&self) -> usize {
        let nodes = if self.nodes.is_empty() { 0 } else { 2 };
        let sql = if self.sql.is_some() { 2 } else { 0 };
        5 + nodes + sql + usize::from(self.zoo.is_some())
    }
}

/// The cost of taking a free lock and releasing it.
#[derive(Debug, Clone)]
pub struct Cost {
    pub id: &'static str,
    pub acquire: RoundTrips,
    pub release: RoundTrips,
    /// Of acquire and release together.
    pub p50: Duration,
    pub p99: Duration,
    pub samples: usize,
}

/// The time limit of the first round, which connects, loads scripts, prepares statements and makes
/// folders.
const WARM_UP: Duration = Duration::from_secs(10);
/// The bounds of one lock's measurement.
const BUDGET: Duration = Duration::from_millis(80);
const SAMPLES: usize = 200;
/// The time limit beyond the budget, for a lock that hangs.
const SAMPLE_TIMEOUT: Duration = Duration::from_secs(5);
const LEASE: Duration = Duration::from_secs(10);

/// Takes and releases every lock, uncontended, on keys with `prefix`; about a second in all. Locks
/// whose server does not answer are left out.
pub async fn measure(servers: &Servers, prefix: &str) -> Vec<Cost> {
    let meter = Meter::default();
    let redis = servers.redis.clone().counted_by(&meter);
    let nodes = servers.nodes.iter().cloned();
    let nodes: Vec<Line> = nodes.map(|node| node.counted_by(&meter)).collect();
    let mut costs = Vec::new();
    macro_rules! measure {
        ($id:literal, $lock:expr) => {
            let name = format!("{prefix}{}", $id);
            match one($id, &$lock, &name, &meter).await {
                Ok(Ok(cost)) => costs.push(cost),
                Ok(Err(error)) => tracing::debug!(lock = $id, %error, "not measured"),
                Err(_) => tracing::debug!(lock = $id, "too slow to be measured"),
            }
        };
    }
    measure!("setnx-expire", SetnxExpire::new(redis.clone(), LEASE));
    measure!("setnx-getset", SetnxGetset::new(redis.clone(), LEASE, Clock::default()));
    measure!("set-px-no-owner", SetPxNoOwner::new(redis.clone(), LEASE));
    measure!("token-lock", TokenLock::new(redis.clone(), LEASE));
    measure!("reentrant-lock", ReentrantLock::new(redis.clone(), LEASE).renewed());
    if !nodes.is_empty() {
        measure!("multi-lock", MultiLock::new(nodes.clone(), LEASE));
        measure!("redlock", Redlock::new(nodes.clone(), LEASE));
    }
    if let Some(sql) = &servers.sql {
        let sql = sql.clone().counted_by(&meter);
        measure!("advisory-lock", AdvisoryLock::new(sql.clone()));
        measure!("db-lock-table", TableLock::new(sql, LEASE));
    }
    if let Some(zoo) = &servers.zoo {
        measure!("zookeeper-lock", ZooKeeperLock::new(zoo.clone().counted_by(&meter)));
    }
    costs
}

async fn one<L: Lock>(
    id: &'static str,
    lock: &L,
    name: &str,
    meter: &Meter,
) -> Result<Result<Cost, LockError>, Elapsed> {
    match timeout(WARM_UP, round(lock, name, meter)).await? {
        Ok(_) => timeout(BUDGET + SAMPLE_TIMEOUT, sampled(id, lock, name, meter)).await,
        Err(error) => Ok(Err(error)),
    }
}

async fn sampled<L: Lock>(
    id: &'static str,
    lock: &L,
    name: &str,
    meter: &Meter,
) -> Result<Cost, LockError> {
    let begun = Instant::now();
    let mut times = Vec::with_capacity(SAMPLES);
    let mut fewest: Option<(RoundTrips, RoundTrips)> = None;
    while times.len() < SAMPLES && (times.is_empty() || begun.elapsed() < BUDGET) {
        let start = Instant::now();
        let trips = round(lock, name, meter).await?;
        times.push(start.elapsed());
        // More round trips are retries after a slow reply.
        let total =
            |(acquire, release): (RoundTrips, RoundTrips)| acquire.total() + release.total();
        if fewest.is_none_or(|fewest| total(trips) < total(fewest)) {
            fewest = Some(trips);
        }
    }
    let (acquire, release) = fewest.unwrap_or_default();
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    Ok(Cost { id, acquire, release, p50: at(50), p99: at(99), samples: times.len() })
}

async fn round<L: Lock>(
    lock: &L,
    name: &str,
    meter: &Meter,
) -> Result<(RoundTrips, RoundTrips), LockError> {
    let before = meter.round_trips();
    let Acquired::Held(guard) = lock.acquire(name, LEASE).await? else {
        // Left over by a measurement that was cut off.
        return Err(LockError::NoQuorum { got: 0, needed: 1 });
    };
    let between = meter.round_trips();
    let _released = guard.release().await?;
    Ok((between - before, meter.round_trips() - between))
}
