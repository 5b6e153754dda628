//! Redis processes that a test may do anything to: a cluster of three primaries with a replica each, and a
//! primary with two replicas under three Sentinels. On loopback, with no password, and gone with the test.

use super::{
    app::eventually,
    hire_janitor,
    network::{Network, Ports, Side},
    proxy::free_port,
};
use nix::sys::signal::Signal;
use redis::{FromRedisValue, RedisResult, Value, aio::MultiplexedConnection};
use std::{
    net::Ipv4Addr,
    ops::Range,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
};

/// How long a node may be silent before the others hold it dead, in ms. Short, for the tests' sake.
const SILENCE_MS: &str = "1000";

/// The slot of a key, as Redis Cluster computes it: CRC16 (XMODEM) of its hash tag.
pub fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    let crc = tag.unwrap_or(key).iter().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            (crc << 1) ^ (0x1021 & (crc >> 15).wrapping_neg())
        })
    });
    crc % 16_384
}

/// One `redis-server`.
pub struct RedisProcess {
    pub port: u16,
    dir: PathBuf,
    arguments: Vec<String>,
    child: Mutex<Option<Child>>,
}

impl RedisProcess {
    /// With its files in `dir`; `arguments` come behind the ordinary ones.
    pub fn start(dir: &Path, port: u16, arguments: &[&str]) -> Self {
        std::fs::create_dir_all(dir).expect("a folder");
        let ordinary = [
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "yes",
            "--appendfsync",
            "no",
        ];
        let mut all = vec!["--port".to_owned(), port.to_string()];
        all.extend(
            ordinary
                .iter()
                .chain(arguments)
                .map(|word| (*word).to_owned()),
        );
        Self::launch(dir, port, all)
    }

    /// A Sentinel. It writes into its settings, so they are a file.
    pub fn sentinel(dir: &Path, port: u16, settings: &str) -> Self {
        std::fs::create_dir_all(dir).expect("a folder");
        let file = dir.join("sentinel.conf");
        std::fs::write(
            &file,
            format!(
                "port {port}\nbind 127.0.0.1\ndir {}\n{settings}",
                dir.display()
            ),
        )
        .expect("its settings");
        Self::launch(
            dir,
            port,
            vec![file.display().to_string(), "--sentinel".to_owned()],
        )
    }

    fn launch(dir: &Path, port: u16, arguments: Vec<String>) -> Self {
        let process = Self {
            port,
            dir: dir.to_owned(),
            arguments,
            child: Mutex::default(),
        };
        process.start_again();
        process
    }

    /// Starts it on its files after [`RedisProcess::kill`].
    pub fn start_again(&self) {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.dir.join("log"));
        let child = Command::new("redis-server")
            .args(&self.arguments)
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stdout(log.expect("a log"))
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server runs (scripts/setup.sh installs it)");
        *self.child() = Some(child);
    }

    fn child(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn pid(&self) -> Option<u32> {
        self.child().as_ref().map(Child::id)
    }

    /// `kill -9`; nobody starts it again.
    pub fn kill(&self) {
        if let Some(mut child) = self.child().take() {
            child.kill().expect("SIGKILL");
            child.wait().expect("it is gone");
        }
    }

    /// It stands still, without a word, or goes on.
    pub fn freeze(&self, still: bool) {
        let pid = self.pid().and_then(|pid| i32::try_from(pid).ok());
        let pid = nix::unistd::Pid::from_raw(pid.expect("it runs"));
        let signal = if still {
            Signal::SIGSTOP
        } else {
            Signal::SIGCONT
        };
        nix::sys::signal::kill(pid, signal).expect("a signal");
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub async fn connection(&self) -> RedisResult<MultiplexedConnection> {
        let client = redis::Client::open(format!("redis://{}", self.address()))?;
        client.get_multiplexed_async_connection().await
    }

    pub async fn ask<T: FromRedisValue>(&self, words: &[&str]) -> RedisResult<T> {
        let mut connection = self.connection().await?;
        redis::cmd(words[0])
            .arg(&words[1..])
            .query_async(&mut connection)
            .await
    }

    /// A command that must succeed.
    pub async fn command<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.ask(words)
            .await
            .unwrap_or_else(|error| panic!("{words:?} at {}: {error}", self.port))
    }

    async fn until_ready(&self) {
        eventually("redis answers", async || {
            self.ask::<String>(&["PING"]).await.ok()
        })
        .await;
    }

    /// A line of INFO.
    pub async fn info(&self, section: &str, name: &str) -> Option<String> {
        let info: String = self.ask(&["INFO", section]).await.ok()?;
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(|value| value.trim().to_owned())
    }

    /// What a replica has itself, without sending the question to its primary.
    pub async fn own_word<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let mut connection = self.connection().await.expect("it answers");
        redis::cmd("READONLY")
            .exec_async(&mut connection)
            .await
            .expect("READONLY");
        redis::cmd(words[0])
            .arg(&words[1..])
            .query_async(&mut connection)
            .await
            .expect("an answer")
    }

    /// From now on it follows its primary no more, whatever that one writes, and keeps what it has. (It
    /// offers a password that the primary does not know.)
    pub async fn be_cut_off(&self) {
        let link = async || self.info("replication", "master_link_status").await;
        // One that is still copying its primary would keep nothing.
        eventually("the replica follows", async || {
            (link().await? == "up").then_some(())
        })
        .await;
        let _: String = self
            .command(&["CONFIG", "SET", "masterauth", "nobody knows it"])
            .await;
        let _: i64 = self.command(&["CLIENT", "KILL", "TYPE", "master"]).await;
        eventually("the replica is cut off", async || {
            (link().await? == "down").then_some(())
        })
        .await;
    }
}

impl Drop for RedisProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Where a key is, whatever the deployment.
pub trait KeyHolder {
    /// The server that has this key now.
    fn holder(&self, key: &str) -> impl Future<Output = &RedisProcess>;
}

/// Three primaries, and then their replicas in the same order.
pub struct RedisCluster {
    pub nodes: Vec<RedisProcess>,
}

impl RedisCluster {
    /// Returns once everybody knows everybody and every replica follows.
    pub async fn start(dir: &Path) -> Self {
        let ports = Self::ports();
        Self::start_at(dir, &ports, |_| Ipv4Addr::LOCALHOST, &[]).await
    }

    /// The same, on a network that can be split in two.
    pub async fn start_on_network(dir: &Path) -> (Self, Network) {
        let ports = Self::ports();
        let network = Network::start(&ports).await;
        // A client reaches a node where it has reached the one that it asked: on its own side.
        let tuning = ["--cluster-preferred-endpoint-type", "unknown-endpoint"];
        let cluster = Self::start_at(dir, &ports, Network::address_of, &tuning).await;
        (cluster, network)
    }

    fn ports() -> Vec<Ports> {
        let ports = || Ports {
            clients: free_port(),
            bus: free_port(),
        };
        std::iter::repeat_with(ports).take(6).collect()
    }

    /// `address`: where the others find a node, and where it comes from.
    async fn start_at(
        dir: &Path,
        ports: &[Ports],
        address: fn(usize) -> Ipv4Addr,
        tuning: &[&str],
    ) -> Self {
        let node = |(number, ports): (usize, &Ports)| {
            let (bus, address) = (ports.bus.to_string(), address(number).to_string());
            let arguments = [
                "--cluster-enabled",
                "yes",
                "--cluster-node-timeout",
                SILENCE_MS,
            ];
            // One part of the slots being away must not stop the others; and a replica that has lost its primary for
            // long may take its place all the same, since the tests cut it off.
            let common = [
                "--cluster-require-full-coverage",
                "no",
                "--cluster-replica-validity-factor",
                "0",
            ];
            let transfer = ["--repl-diskless-sync-delay", "0", "--cluster-port", &bus];
            let place = [
                "--cluster-announce-ip",
                &address,
                "--bind-source-addr",
                &address,
            ];
            let arguments = [&arguments, &common, &transfer, &place, tuning].concat();
            let dir = dir.join(format!("node-{number}"));
            RedisProcess::start(&dir, ports.clients, &arguments)
        };
        let nodes: Vec<RedisProcess> = ports.iter().enumerate().map(node).collect();
        let pids: Vec<Option<u32>> = nodes.iter().map(RedisProcess::pid).collect();
        std::mem::forget(hire_janitor(dir, &pids));
        for node in &nodes {
            node.until_ready().await;
        }
        let shares = [(0, 5_460), (5_461, 10_922), (10_923, 16_383)];
        for (number, (first, last)) in shares.into_iter().enumerate() {
            let words = [
                "CLUSTER",
                "ADDSLOTSRANGE",
                &first.to_string(),
                &last.to_string(),
            ];
            let _: String = nodes[number].command(&words).await;
        }
        for (number, node) in nodes.iter().enumerate() {
            let epoch = (number + 1).to_string();
            let _: String = node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await;
            let words = [
                "CLUSTER",
                "MEET",
                &address(0).to_string(),
                &nodes[0].port.to_string(),
                &ports[0].bus.to_string(),
            ];
            if number > 0 {
                let _: String = node.command(&words).await;
            }
        }
        let cluster = Self { nodes };
        cluster.until_all_say("cluster_known_nodes:6").await;
        cluster.until_all_say("cluster_state:ok").await;
        for number in 0..3 {
            let id: String = cluster.nodes[number].command(&["CLUSTER", "MYID"]).await;
            let replica = &cluster.nodes[number + 3];
            eventually("a replica knows its primary", async || {
                replica
                    .ask::<String>(&["CLUSTER", "REPLICATE", &id])
                    .await
                    .ok()
            })
            .await;
        }
        for number in 0..3 {
            let (primary, replica) = (&cluster.nodes[number], &cluster.nodes[number + 3]);
            eventually("the replica follows", async || {
                let up = replica.info("replication", "master_link_status").await? == "up";
                let seen = primary.info("replication", "connected_slaves").await? == "1";
                (up && seen).then_some(())
            })
            .await;
        }
        cluster
    }

    async fn until_all_say(&self, line: &str) {
        for node in &self.nodes {
            eventually(line, async || {
                let info: String = node.ask(&["CLUSTER", "INFO"]).await.ok()?;
                info.lines().any(|said| said.trim() == line).then_some(())
            })
            .await;
        }
    }

    pub fn url(&self) -> String {
        let seeds: Vec<String> = self.nodes[..3].iter().map(RedisProcess::address).collect();
        format!("redis+cluster://{}", seeds.join(","))
    }

    /// The same nodes as they are reached from one side of a network.
    pub fn url_from(&self, side: Side) -> String {
        let seed = |node: &RedisProcess| format!("{}:{}", side.address(), node.port);
        let seeds: Vec<String> = self.nodes[..3].iter().map(seed).collect();
        format!("redis+cluster://{}", seeds.join(","))
    }

    /// The replica that was given to this primary.
    pub fn replica_of(&self, primary: usize) -> &RedisProcess {
        &self.nodes[primary + 3]
    }

    /// Which of the six has this slot, as the first one that answers sees it.
    pub async fn owner(&self, slot: u16) -> usize {
        let found = eventually("the slot has an owner", async || {
            for node in &self.nodes {
                if let Some(port) = owner_by(node, slot).await
                    && let Some(owner) = self.nodes.iter().position(|node| node.port == port)
                    && self.nodes[owner]
                        .info("replication", "role")
                        .await
                        .as_deref()
                        == Some("master")
                {
                    return Some(owner);
                }
            }
            None
        });
        found.await
    }

    /// Moves a slot with everything in it, as `redis-cli --cluster reshard` does.
    pub async fn move_slot(&self, slot: u16, to: usize) {
        let from = self.owner(slot).await;
        if from == to {
            return;
        }
        self.begin_move(slot, from, to).await;
        while self.move_keys(slot, from, to, 10).await > 0 {}
        self.end_move(slot, from, to).await;
    }

    /// From here on the slot is MIGRATING at one and IMPORTING at the other.
    pub async fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let (source, target) = (self.id(from).await, self.id(to).await);
        let slot = slot.to_string();
        let _: String = self.nodes[to]
            .command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source])
            .await;
        let _: String = self.nodes[from]
            .command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target])
            .await;
    }

    /// Moves at most so many keys; how many there were.
    pub async fn move_keys(&self, slot: u16, from: usize, to: usize, most: usize) -> usize {
        let words = [
            "CLUSTER",
            "GETKEYSINSLOT",
            &slot.to_string(),
            &most.to_string(),
        ];
        let keys: Vec<String> = self.nodes[from].command(&words).await;
        if !keys.is_empty() {
            let port = self.nodes[to].port.to_string();
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            let _: Value = self.nodes[from].command(&words).await;
        }
        keys.len()
    }

    pub async fn end_move(&self, slot: u16, from: usize, to: usize) {
        let (target, slot) = (self.id(to).await, slot.to_string());
        let others = (0..3).filter(|node| *node != from && *node != to);
        for node in [to, from].into_iter().chain(others) {
            let _: String = self.nodes[node]
                .command(&["CLUSTER", "SETSLOT", &slot, "NODE", &target])
                .await;
        }
    }

    async fn id(&self, node: usize) -> String {
        self.nodes[node].command(&["CLUSTER", "MYID"]).await
    }
}

impl KeyHolder for RedisCluster {
    async fn holder(&self, key: &str) -> &RedisProcess {
        &self.nodes[self.owner(slot_of(key.as_bytes())).await]
    }
}

/// The port of a slot's owner, by CLUSTER SLOTS of this node.
async fn owner_by(node: &RedisProcess, slot: u16) -> Option<u16> {
    type Server = (Option<String>, u16, String, Value);
    let Value::Array(ranges) = node.ask(&["CLUSTER", "SLOTS"]).await.ok()? else {
        return None;
    };
    ranges.into_iter().find_map(|range| {
        let Value::Array(range) = range else {
            return None;
        };
        let [Value::Int(first), Value::Int(last), primary, ..] = range.as_slice() else {
            return None;
        };
        let has_it: Range<i64> = *first..*last + 1;
        let (_, port, ..): Server = redis::from_redis_value(primary.clone()).ok()?;
        has_it.contains(&i64::from(slot)).then_some(port)
    })
}

/// A primary, two replicas, and three Sentinels that call it `shop`.
pub struct Watched {
    pub servers: Vec<RedisProcess>,
    pub sentinels: Vec<RedisProcess>,
}

impl Watched {
    pub const NAME: &str = "shop";

    /// Returns once the Sentinels know each other and both replicas.
    pub async fn start(dir: &Path) -> Self {
        let server = |number: usize| {
            let dir = dir.join(format!("server-{number}"));
            RedisProcess::start(&dir, free_port(), &["--repl-diskless-sync-delay", "0"])
        };
        let servers: Vec<RedisProcess> = (0..3).map(server).collect();
        for server in &servers {
            server.until_ready().await;
        }
        let port = servers[0].port.to_string();
        for replica in &servers[1..] {
            let _: String = replica.command(&["REPLICAOF", "127.0.0.1", &port]).await;
            eventually("the replica follows", async || {
                (replica.info("replication", "master_link_status").await? == "up").then_some(())
            })
            .await;
        }
        let name = Self::NAME;
        let settings = format!(
            "sentinel monitor {name} 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds {name} {SILENCE_MS}\n\
             sentinel failover-timeout {name} 5000\n"
        );
        let sentinel = |number: usize| {
            RedisProcess::sentinel(
                &dir.join(format!("sentinel-{number}")),
                free_port(),
                &settings,
            )
        };
        let sentinels: Vec<RedisProcess> = (0..3).map(sentinel).collect();
        let pids: Vec<Option<u32>> = servers
            .iter()
            .chain(&sentinels)
            .map(RedisProcess::pid)
            .collect();
        std::mem::forget(hire_janitor(dir, &pids));
        for sentinel in &sentinels {
            eventually("the sentinels know each other", async || {
                let info: String = sentinel.ask(&["INFO", "sentinel"]).await.ok()?;
                info.contains("status=ok").then_some(())?;
                info.contains("slaves=2,sentinels=3").then_some(())
            })
            .await;
        }
        Self { servers, sentinels }
    }

    pub fn url(&self) -> String {
        let sentinels: Vec<String> = self.sentinels.iter().map(RedisProcess::address).collect();
        format!("redis-sentinel://{}/{}", sentinels.join(","), Self::NAME)
    }

    /// Whom the Sentinels name.
    pub async fn primary(&self) -> usize {
        let words = ["SENTINEL", "get-master-addr-by-name", Self::NAME];
        eventually("the sentinels name a primary", async || {
            for sentinel in &self.sentinels {
                if let Ok((_, port)) = sentinel.ask::<(String, u16)>(&words).await {
                    return self.servers.iter().position(|server| server.port == port);
                }
            }
            None
        })
        .await
    }
}

impl KeyHolder for Watched {
    async fn holder(&self, _key: &str) -> &RedisProcess {
        &self.servers[self.primary().await]
    }
}
