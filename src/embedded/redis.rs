//! A private Redis: one `redis-server` on a unix socket, its append-only file in the data folder.
//!
//! What happens on a crash: Redis replays the append-only file. With [`RedisFsync::Always`] everything it had
//! answered is on disk; with [`RedisFsync::EverySec`] up to a second may be missing after a power failure (not after
//! a mere `kill -9`: the kernel still has those writes). A tail torn by a power failure is cut off. A restarted Redis
//! has a new `run_id`, and clients have to reconnect to the same socket.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::error::EmbeddedError;
use super::place::{self, DataLock, RunAs, SocketDir};
use super::process::{Program, Readiness, Supervisor};
use super::{binaries, blocking};

const SOCKET: &str = "redis.sock";

/// When an answered write is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RedisFsync {
    /// Before the answer. The micro-batched admission makes this affordable: one fsync for hundreds of buyers.
    #[default]
    Always,
    /// At most a second later.
    EverySec,
}

#[derive(Debug, Clone, Default)]
pub struct RedisSettings {
    pub fsync: RedisFsync,
    /// More flags of `redis-server`, each name and value an element of its own: `["--port", "7001"]`.
    /// They come last, and so win.
    pub extra_args: Vec<String>,
}

impl RedisSettings {
    /// A node that keeps nothing: killed, it comes back empty. For the locks of the lab, which are to survive (or not)
    /// exactly that.
    pub fn without_persistence() -> Self {
        Self {
            extra_args: ["--appendonly", "no"].map(String::from).to_vec(),
            ..Self::default()
        }
    }
}

/// A running Redis that is restarted when it dies. Dropping it ends it.
pub struct RedisServer {
    // Dropped in this order: the process, then its socket's folder, then the lock.
    supervisor: Supervisor,
    socket_dir: SocketDir,
    _lock: DataLock,
}

impl RedisServer {
    /// Starts Redis with its files in `dir` (created if need be) and returns once it answers.
    pub async fn start(dir: &Path, settings: RedisSettings) -> Result<RedisServer, EmbeddedError> {
        let dir = dir.to_path_buf();
        let server = blocking(move || RedisServer::launch(&dir, &settings)).await?;
        server.wait_ready().await?;
        Ok(server)
    }

    fn launch(dir: &Path, settings: &RedisSettings) -> Result<RedisServer, EmbeddedError> {
        let path = binaries::find_redis()?;
        let dir = place::data_dir(dir)?;
        let lock = DataLock::acquire(&dir.join("redis.lock"), &dir)?;
        let data = dir.join("redis");
        let run_as = RunAs::owner_of(&data);
        place::private_dir(&data, run_as)?;
        let socket_dir = SocketDir::create(&dir, "redis", SOCKET, run_as, |_| true)?;
        let socket = socket_dir.path.join(SOCKET);
        let supervisor = Supervisor::start(Program {
            name: "redis",
            path,
            args: arguments(&data, &socket, settings),
            directory: data,
            run_as,
            log: dir.join("redis.log"),
            pid_file: dir.join("redis.pid"),
            second_pid_file: None,
            markers: vec![String::from("-server"), socket.display().to_string()],
            // Redis saves and fsyncs on SIGTERM in any case, and without clients that takes a millisecond.
            graceful: Signal::SIGTERM,
            immediate: Signal::SIGTERM,
            prepare: Box::new(|| Ok(())),
        })?;
        Ok(RedisServer {
            supervisor,
            socket_dir,
            _lock: lock,
        })
    }

    /// Returns once the server answers, also after it was restarted and while it loads a large file.
    pub async fn wait_ready(&self) -> Result<(), EmbeddedError> {
        let socket = self.socket();
        self.supervisor
            .wait_ready(async |_| ping(&socket).await)
            .await
    }

    /// As the `redis` crate takes it. The path holds nothing that would have to be escaped.
    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    pub fn socket(&self) -> PathBuf {
        self.socket_dir.path.join(SOCKET)
    }

    /// `None` for the moment between a death and the restart.
    pub fn pid(&self) -> Option<u32> {
        self.supervisor.pid()
    }

    /// `kill -9`, for tests and demonstrations: Redis is started again on the same socket.
    pub fn kill(&self) {
        self.supervisor.kill();
    }

    /// Flushes to disk and ends.
    pub async fn stop(mut self) {
        self.supervisor.stop().await;
    }
}

fn arguments(data: &Path, socket: &Path, settings: &RedisSettings) -> Vec<OsString> {
    let fsync = match settings.fsync {
        RedisFsync::Always => "always",
        RedisFsync::EverySec => "everysec",
    };
    let mut arguments: Vec<OsString> = Vec::new();
    let mut set = |name: &str, value: &dyn AsRef<std::ffi::OsStr>| {
        arguments.push(OsString::from(format!("--{name}")));
        arguments.push(value.as_ref().to_owned());
    };
    // Only the owner of the socket's folder can connect, and nobody over the network.
    set("port", &"0");
    set("unixsocket", &socket);
    set("unixsocketperm", &"700");
    set("dir", &data);
    set("daemonize", &"no");
    set("loglevel", &"notice");
    // The append-only file is the durability; snapshots would only double the writing.
    set("appendonly", &"yes");
    set("appendfsync", &fsync);
    set("no-appendfsync-on-rewrite", &"no");
    set("aof-use-rdb-preamble", &"yes");
    set("save", &"");
    // Full is an error that the caller sees. Evicting a buyer would sell to them twice.
    set("maxmemory-policy", &"noeviction");
    // Keeps the socket's path in the command line, where the next start looks for it (see `process.rs`).
    set("proc-title-template", &"{title} {unixsocket}");
    arguments.extend(settings.extra_args.iter().map(OsString::from));
    arguments
}

/// Any answer but LOADING means that commands are served; PING's wording differs for replicas and passwords.
async fn ping(socket: &Path) -> Readiness {
    let exchange = async {
        let mut stream = UnixStream::connect(socket).await?;
        stream.write_all(b"PING\r\n").await?;
        let mut answer = [0; 64];
        let length = stream.read(&mut answer).await?;
        Ok::<_, std::io::Error>(if length == 0 {
            Readiness::NotYet
        } else if answer.starts_with(b"-LOADING") {
            Readiness::Recovering
        } else {
            Readiness::Ready
        })
    };
    match tokio::time::timeout(Duration::from_secs(1), exchange).await {
        Ok(Ok(readiness)) => readiness,
        Ok(Err(_)) | Err(_) => Readiness::NotYet,
    }
}
