//! A cluster of three primaries with a replica each, and a primary under three Sentinels.

use super::connect_redis;
use super::driver::{Error, Result};
use super::launch::end_with_this_process;
use super::proxy::{Network, Ports};
use crate::support::prelude::*;
use redis::{FromRedisValue, InfoDict, RedisResult, Value};
use std::io;

/// How long a node may be silent before the others hold it dead, in ms. Short, for the tests' sake.
pub const SILENCE_MS: &str = "1000";

pub struct RedisProcess {
    pub port: u16,
    pub dir: PathBuf,
    arguments: Vec<String>,
    child: Mutex<Option<Child>>,
}

impl RedisProcess {
    pub fn start(dir: &Path, port: u16, arguments: &[&str]) -> Self {
        fs::create_dir_all(dir).expect("a folder");
        let ordinary =
            format!("--port {port} --bind 127.0.0.1 --appendonly yes --appendfsync no --save");
        let all = ordinary.split(' ').chain([""]).chain(arguments.iter().copied());
        Self::launch(dir, port, all.map(str::to_owned).collect())
    }

    /// A Sentinel. It writes into its settings, so they are a file.
    pub fn sentinel(dir: &Path, port: u16, settings: &str) -> Self {
        fs::create_dir_all(dir).expect("a folder");
        let file = dir.join("sentinel.conf");
        let text = format!("port {port}\nbind 127.0.0.1\ndir {}\n{settings}", dir.display());
        fs::write(&file, text).expect("its settings");
        Self::launch(dir, port, vec![file.display().to_string(), "--sentinel".to_owned()])
    }

    fn launch(dir: &Path, port: u16, arguments: Vec<String>) -> Self {
        let process = Self { port, dir: dir.to_owned(), arguments, child: Mutex::default() };
        process.start_again();
        process
    }

    pub async fn come_back(&self) -> Result {
        self.start_again();
        self.ready().await
    }

    pub fn start_again(&self) {
        let log = fs::File::options().create(true).append(true).open(self.dir.join("log"));
        let mut command = Command::new("redis-server");
        command.args(&self.arguments).current_dir(&self.dir);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        end_with_this_process(&mut command, Signal::SIGKILL);
        let child = command.stdout(log.expect("a log")).spawn();
        let child = child.expect("redis-server runs (scripts/setup.sh installs it)");
        *locked(&self.child) = Some(child);
    }

    pub fn pid(&self) -> Option<u32> {
        locked(&self.child).as_ref().map(Child::id)
    }

    pub fn kill(&self) {
        if let Some(mut child) = locked(&self.child).take() {
            child.kill().expect("SIGKILL");
            child.wait().expect("it is gone");
        }
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    pub fn target(&self) -> Address {
        Address::Tcp((Ipv4Addr::LOCALHOST, self.port).into())
    }

    pub async fn connection(&self) -> RedisResult<MultiplexedConnection> {
        connect_redis(&self.url()).await
    }

    pub async fn ask<T: FromRedisValue>(&self, words: &[&str]) -> RedisResult<T> {
        let mut connection = self.connection().await?;
        redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await
    }

    pub async fn command<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.ask(words).await.unwrap_or_else(|error| panic!("{words:?} at {}: {error}", self.port))
    }

    pub async fn follow(&self, primary: &Self) {
        let _: String = self.command(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]).await;
        self.until_linked("up").await;
    }

    async fn until_linked(&self, state: &str) {
        wait_for!(self.info("replication", "master_link_status").await.as_deref() == Some(state));
    }

    pub async fn until_ready(&self) {
        self.ready().await.expect("it answers");
    }

    pub async fn ready(&self) -> Result {
        let ready = async || Ok::<_, Error>(self.ask::<String>(&["PING"]).await.ok());
        poll(TEST_TIMEOUT, 10, ready).await?.ok_or("redis does not answer")?;
        Ok(())
    }

    async fn cluster(&self, words: &str) -> String {
        self.command(&["CLUSTER"].into_iter().chain(words.split(' ')).collect::<Vec<_>>()).await
    }

    pub async fn info(&self, section: &str, name: &str) -> Option<String> {
        self.ask::<InfoDict>(&["INFO", section]).await.ok()?.get(name)
    }

    /// What a replica has itself, without sending the question to its primary.
    pub async fn own_word<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let mut connection = self.connection().await.expect("it answers");
        redis::cmd("READONLY").exec_async(&mut connection).await.expect("READONLY");
        redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await.expect("an answer")
    }

    pub async fn configure(&self, name: &str, value: &str) {
        let _: String = self.command(&["CONFIG", "SET", name, value]).await;
    }

    /// It keeps what it has: it offers a password that its primary does not know.
    pub async fn be_cut_off(&self) {
        // One that is still copying its primary would keep nothing.
        self.until_linked("up").await;
        self.configure("masterauth", "nobody knows it").await;
        let _: i64 = self.command(&["CLIENT", "KILL", "TYPE", "master"]).await;
        self.until_linked("down").await;
    }

    fn data(&self) -> PathBuf {
        self.dir.join("appendonlydir")
    }

    pub fn empty(&self) -> io::Result<()> {
        fs::remove_dir_all(self.data())
    }

    /// The file that commands are appended to (Redis 7 keeps a base and increments), its length.
    pub fn last_increment(&self) -> Result<(PathBuf, u64)> {
        let number = |path: &PathBuf| -> Option<u64> {
            path.file_name()?.to_str()?.strip_suffix(".incr.aof")?.rsplit('.').next()?.parse().ok()
        };
        let last = entries(&self.data()).filter(|path| number(path).is_some()).max_by_key(number);
        let last = last.ok_or("no increment")?;
        let length = fs::metadata(&last)?.len();
        Ok((last, length))
    }

    /// Shortens that file, as a power cut shortens what was not on disk yet.
    pub fn cut(&self, length: u64) -> Result {
        let (last, _) = self.last_increment()?;
        Ok(fs::File::options().write(true).open(last)?.set_len(length)?)
    }

    /// A copy of its files, which may be taken while it serves: Redis takes a cut tail.
    pub fn back_up(&self, to: &Path) -> io::Result<()> {
        fs::remove_dir_all(to).ok();
        copy_files(&self.data(), to)
    }

    pub fn restore(&self, from: &Path) -> io::Result<()> {
        self.empty()?;
        copy_files(from, &self.data())
    }
}

impl Drop for RedisProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

pub trait KeyHolder {
    fn holder(&self, key: &str) -> impl Future<Output = &RedisProcess>;
}

/// Three primaries, and then their replicas in the same order.
pub struct RedisCluster {
    pub nodes: Vec<RedisProcess>,
}

impl RedisCluster {
    pub async fn start(dir: &Path) -> Self {
        Self::start_at(dir, &Self::ports(), |_| Ipv4Addr::LOCALHOST, &[]).await
    }

    pub async fn start_on_network(dir: &Path) -> (Self, Network) {
        let ports = Self::ports();
        let network = Network::start(&ports).await;
        // A client reaches a node where it has reached the one that it asked: on its own side.
        let tuning = ["--cluster-preferred-endpoint-type", "unknown-endpoint"];
        (Self::start_at(dir, &ports, Network::address_of, &tuning).await, network)
    }

    fn ports() -> Vec<Ports> {
        (0..6).map(|_| Ports { clients: free_port(), bus: free_port() }).collect()
    }

    /// `address`: where the others find a node, and where it comes from.
    async fn start_at(
        dir: &Path,
        ports: &[Ports],
        address: fn(usize) -> Ipv4Addr,
        tuning: &[&str],
    ) -> Self {
        let node = |(number, ports): (usize, &Ports)| {
            let (bus, address) = (ports.bus, address(number));
            // Some slots away stop no others; a replica takes over only when the test says so.
            let arguments = format!(
                "--cluster-enabled yes --cluster-node-timeout {SILENCE_MS} \
                 --cluster-require-full-coverage no --cluster-replica-validity-factor 0 \
                 --cluster-replica-no-failover yes \
                 --repl-diskless-sync-delay 0 --cluster-port {bus} \
                 --cluster-announce-ip {address} --bind-source-addr {address}"
            );
            let arguments = [arguments.split(' ').collect(), tuning.to_vec()].concat();
            RedisProcess::start(&dir.join(format!("node-{number}")), ports.clients, &arguments)
        };
        let nodes: Vec<RedisProcess> = ports.iter().enumerate().map(node).collect();
        join_all(nodes.iter().map(RedisProcess::until_ready)).await;
        for (node, share) in nodes.iter().zip(["0 5460", "5461 10922", "10923 16383"]) {
            node.cluster(&format!("ADDSLOTSRANGE {share}")).await;
        }
        let meet = format!("MEET {} {} {}", address(0), ports[0].clients, ports[0].bus);
        for (number, node) in nodes.iter().enumerate() {
            node.cluster(&format!("SET-CONFIG-EPOCH {}", number + 1)).await;
            if number > 0 {
                node.cluster(&meet).await;
            }
        }
        let cluster = Self { nodes };
        for node in &cluster.nodes {
            wait_for!("the nodes know each other and every slot", {
                let info: String = node.ask(&["CLUSTER", "INFO"]).await.ok()?;
                info.contains("cluster_known_nodes:6").then_some(())?;
                info.contains("cluster_state:ok").then_some(())
            });
        }
        for number in 0..3 {
            let (id, replica) = (cluster.id(number).await, &cluster.nodes[number + 3]);
            let words = ["CLUSTER", "REPLICATE", &id];
            wait_for!("a replica knows its primary", replica.ask::<String>(&words).await.ok());
        }
        for (primary, replica) in cluster.nodes.iter().zip(&cluster.nodes[3..]) {
            replica.until_linked("up").await;
            let followers = async || primary.info("replication", "connected_slaves").await;
            wait_for!(followers().await.as_deref() == Some("1"));
        }
        cluster
    }

    pub fn url(&self) -> String {
        self.url_at(Ipv4Addr::LOCALHOST)
    }

    pub fn url_at(&self, address: Ipv4Addr) -> String {
        let seed = |node: &RedisProcess| format!("{address}:{}", node.port);
        let seeds: Vec<String> = self.nodes[..3].iter().map(seed).collect();
        format!("redis+cluster://{}", seeds.join(","))
    }

    pub fn replica_of(&self, primary: usize) -> &RedisProcess {
        &self.nodes[primary + 3]
    }

    pub async fn may_fail_over(&self, primary: usize) {
        self.replica_of(primary).configure("cluster-replica-no-failover", "no").await;
    }

    pub async fn slot_of(&self, key: &str) -> u16 {
        self.nodes[1].command(&["CLUSTER", "KEYSLOT", key]).await
    }

    pub async fn owner(&self, slot: u16) -> usize {
        wait_for!("the slot has an owner", {
            for node in &self.nodes {
                let Some(port) = owner_by(node, slot).await else { continue };
                let owner = self.nodes.iter().position(|node| node.port == port)?;
                let role = self.nodes[owner].info("replication", "role").await;
                if role.as_deref() == Some("master") {
                    return Some(owner);
                }
            }
            None
        })
    }

    /// From here on the slot is MIGRATING at one and IMPORTING at the other.
    pub async fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let (source, target) = (self.id(from).await, self.id(to).await);
        self.nodes[to].cluster(&format!("SETSLOT {slot} IMPORTING {source}")).await;
        self.nodes[from].cluster(&format!("SETSLOT {slot} MIGRATING {target}")).await;
    }

    pub async fn move_keys(&self, slot: u16, from: usize, to: usize, most: usize) -> usize {
        let (slot, most) = (slot.to_string(), most.to_string());
        let words = ["CLUSTER", "GETKEYSINSLOT", &slot, &most];
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
        let words = format!("SETSLOT {slot} NODE {}", self.id(to).await);
        let others = (0..3).filter(|node| *node != from && *node != to);
        for node in [to, from].into_iter().chain(others) {
            self.nodes[node].cluster(&words).await;
        }
    }

    async fn id(&self, node: usize) -> String {
        self.nodes[node].cluster("MYID").await
    }
}

impl KeyHolder for RedisCluster {
    async fn holder(&self, key: &str) -> &RedisProcess {
        &self.nodes[self.owner(self.slot_of(key).await).await]
    }
}

async fn owner_by(node: &RedisProcess, slot: u16) -> Option<u16> {
    type Server = (Option<String>, u16, String, Value);
    let ranges: Vec<Vec<Value>> = node.ask(&["CLUSTER", "SLOTS"]).await.ok()?;
    ranges.iter().find_map(|range| {
        let [Value::Int(first), Value::Int(last), primary, ..] = &range[..] else { return None };
        let (_, port, ..): Server = redis::from_redis_value(primary.clone()).ok()?;
        (*first..=*last).contains(&i64::from(slot)).then_some(port)
    })
}

pub struct Watched {
    pub servers: Vec<RedisProcess>,
    pub sentinels: Vec<RedisProcess>,
}

impl Watched {
    pub const NAME: &str = "shop";

    pub async fn start(dir: &Path) -> Self {
        let server = |number: usize| {
            let dir = dir.join(format!("server-{number}"));
            RedisProcess::start(&dir, free_port(), &["--repl-diskless-sync-delay", "0"])
        };
        let servers: Vec<RedisProcess> = (0..3).map(server).collect();
        join_all(servers.iter().map(RedisProcess::until_ready)).await;
        join_all(servers[1..].iter().map(|replica| replica.follow(&servers[0]))).await;
        let (name, port) = (Self::NAME, servers[0].port);
        let settings = format!(
            "sentinel monitor {name} 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds {name} {SILENCE_MS}\n\
             sentinel failover-timeout {name} 5000\n"
        );
        let sentinel = |number: usize| {
            RedisProcess::sentinel(&dir.join(format!("sentinel-{number}")), free_port(), &settings)
        };
        let sentinels: Vec<RedisProcess> = (0..3).map(sentinel).collect();
        for sentinel in &sentinels {
            wait_for!("the sentinels know each other", {
                let info: String = sentinel.ask(&["INFO", "sentinel"]).await.ok()?;
                info.contains("status=ok").then_some(())?;
                info.contains("slaves=2,sentinels=3").then_some(())
            });
        }
        Self { servers, sentinels }
    }

    pub fn url(&self) -> String {
        let sentinels: Vec<String> = self.sentinels.iter().map(RedisProcess::address).collect();
        format!("redis-sentinel://{}/{}", sentinels.join(","), Self::NAME)
    }

    pub async fn primary(&self) -> usize {
        let words = ["SENTINEL", "get-master-addr-by-name", Self::NAME];
        wait_for!("the sentinels name a primary", {
            for sentinel in &self.sentinels {
                if let Ok((_, port)) = sentinel.ask::<(String, u16)>(&words).await {
                    return self.servers.iter().position(|server| server.port == port);
                }
            }
            None
        })
    }
}

impl KeyHolder for Watched {
    async fn holder(&self, _key: &str) -> &RedisProcess {
        &self.servers[self.primary().await]
    }
}

fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for file in fs::read_dir(from)? {
        let file = file?;
        fs::copy(file.path(), to.join(file.file_name()))?;
    }
    Ok(())
}
