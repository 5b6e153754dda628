//! A private Redis: one `redis-server` on a unix socket, its append-only file in the data folder.
//!
//! Crashes: Redis replays the append-only file. With [`RedisFsync::Always`] every answered write is
//! on disk; with [`RedisFsync::EverySec`] a power failure may lose a second, and `kill -9`
//! what a slow disk made Redis postpone. A torn tail is cut off. A restarted Redis has a new
//! `run_id`, and clients reconnect to the same socket.

use crate::{
    binaries,
    error::Result,
    place::{Home, SocketDir},
    process::Program,
    server::{Kind, Server, ask},
    supervisor::Readiness,
};
use nix::unistd::Pid;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};
use tokio::net::UnixStream;

const SOCKET: &str = "redis.sock";

/// When an answered write is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RedisFsync {
    /// Before the answer. Batches make this affordable: one fsync for hundreds of buyers.
    #[default]
    Always,
    /// At most a second later.
    EverySec,
}

#[derive(Debug, Clone, Default)]
pub struct RedisSettings {
    pub fsync: RedisFsync,
    /// More flags of `redis-server`, which override ours: `["--port", "7001"]`.
    pub extra_args: Vec<String>,
}

impl RedisSettings {
    /// A node without persistence, for locks in the lab that have to survive its loss or fail by
    /// it.
    pub fn without_persistence() -> Self {
        Self { extra_args: ["--appendonly", "no"].map(String::from).to_vec(), ..Self::default() }
    }
}

pub type RedisServer = Server<Redis>;

pub struct Redis {
    socket_dir: SocketDir,
    _home: Home,
}

impl Kind for Redis {
    type Settings = RedisSettings;

    fn prepare(dir: &Path, settings: &RedisSettings) -> Result<(Program, Redis)> {
        let path = binaries::find_redis()?;
        let home = Home::open(dir, "redis")?;
        let socket_dir = home.socket_dir(SOCKET, |_| true)?;
        let socket = socket_dir.path.join(SOCKET);
        let program = Program {
            args: arguments(&home.data, &socket, settings),
            markers: vec![String::from("-server"), socket.display().to_string()],
            // SIGTERM is immediate enough: it saves and fsyncs within a millisecond.
            ..Program::new("redis", path, &home)
        };
        let redis = Redis { socket_dir, _home: home };
        Ok((program, redis))
    }

    /// Any answer but LOADING means ready; replicas and passwords change PING's answer.
    async fn probe(&self, _: Pid) -> Readiness {
        let connect = UnixStream::connect(self.socket_dir.path.join(SOCKET));
        match ask(connect, b"PING\r\n").await {
            None => Readiness::NotYet,
            Some(answer) if answer.starts_with(b"-LOADING") => Readiness::Recovering,
            Some(_) => Readiness::Ready,
        }
    }
}

impl RedisServer {
    /// The URL for the `redis` crate; the path needs no escaping.
    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    pub fn socket(&self) -> PathBuf {
        self.kind.socket_dir.path.join(SOCKET)
    }
}

fn arguments(data: &Path, socket: &Path, settings: &RedisSettings) -> Vec<OsString> {
    let fsync = match settings.fsync {
        RedisFsync::Always => "always",
        RedisFsync::EverySec => "everysec",
    };
    let fixed = [
        // No TCP: only the owner of the socket's folder can connect.
        ["--port", "0"],
        ["--unixsocketperm", "700"],
        ["--daemonize", "no"],
        ["--loglevel", "notice"],
        // The append-only file is durable; snapshots would double the writing.
        ["--appendonly", "yes"],
        ["--appendfsync", fsync],
        ["--no-appendfsync-on-rewrite", "no"],
        ["--aof-use-rdb-preamble", "yes"],
        ["--save", ""],
        // An error, not an eviction: an evicted buyer could buy twice.
        ["--maxmemory-policy", "noeviction"],
    ];
    let mut arguments: Vec<OsString> = fixed.as_flattened().iter().map(OsString::from).collect();
    arguments.extend(["--unixsocket".into(), socket.into()]);
    // Keeps the socket's path in the command line, where the next start looks for it (see
    // `process.rs`). Redis refuses this before it knows the socket.
    arguments.extend(["--proc-title-template", "{title} {unixsocket}"].map(OsString::from));
    arguments.extend(["--dir".into(), data.into()]);
    arguments.extend(settings.extra_args.iter().map(OsString::from));
    arguments
}
