//! A private ZooKeeper: one standalone server on a loopback port, its files in a folder of its own.
//!
//! Only the lab needs it, so it is started when it is first wanted, and a machine without Java does without it.
//! Java cannot listen on a unix socket: the port is a free one, and only this machine reaches it.
//!
//! What happens on a crash: it is started again on the same port with its data; sessions whose clients come
//! back in time go on. `forceSync` is off: after a power failure the last locks of a lesson may be missing.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::error::{Doing, EmbeddedError};
use super::place::{self, DataLock, RunAs};
use super::process::{Program, Readiness, Supervisor};
use super::{binaries, blocking};

const MAIN: &str = "org.apache.zookeeper.server.ZooKeeperServerMain";

#[derive(Debug, Clone)]
pub struct ZooKeeperSettings {
    /// ZooKeeper's unit of time. Sessions last at least two of them; shorter ticks make shorter lessons.
    pub tick: Duration,
}

impl Default for ZooKeeperSettings {
    fn default() -> Self {
        Self {
            tick: Duration::from_millis(200),
        }
    }
}

/// A running ZooKeeper that is restarted when it dies. Dropping it ends it.
pub struct ZooKeeperServer {
    // Dropped in this order: the process, then the lock.
    supervisor: Supervisor,
    address: SocketAddr,
    _lock: DataLock,
}

impl ZooKeeperServer {
    /// Whether this machine has what it takes; if not, the error says how to install it.
    pub async fn check() -> Result<(), EmbeddedError> {
        blocking(|| binaries::find_zookeeper().map(|_| ())).await
    }

    /// Starts ZooKeeper with its files in `dir` (created if need be) and returns once it answers: about a second.
    pub async fn start(
        dir: &Path,
        settings: ZooKeeperSettings,
    ) -> Result<ZooKeeperServer, EmbeddedError> {
        let dir = dir.to_path_buf();
        let server = blocking(move || ZooKeeperServer::launch(&dir, &settings)).await?;
        server.wait_ready().await?;
        Ok(server)
    }

    fn launch(dir: &Path, settings: &ZooKeeperSettings) -> Result<ZooKeeperServer, EmbeddedError> {
        let binaries = binaries::find_zookeeper()?;
        let dir = place::data_dir(dir)?;
        let lock = DataLock::acquire(&dir.join("zookeeper.lock"), &dir)?;
        let data = dir.join("zookeeper");
        let run_as = RunAs::owner_of(&data);
        place::private_dir(&data, run_as)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port(&dir)?));
        // Not in `data`, which may belong to another user.
        let configuration = dir.join("zookeeper.cfg");
        fs::write(&configuration, configured(&data, address, settings))
            .doing(|| format!("write {}", configuration.display()))?;
        let supervisor = Supervisor::start(Program {
            name: "zookeeper",
            path: binaries.java,
            args: arguments(&binaries.classpath, &configuration),
            directory: dir.clone(),
            run_as,
            log: dir.join("zookeeper.log"),
            pid_file: dir.join("zookeeper.pid"),
            second_pid_file: None,
            markers: vec![String::from(MAIN), configuration.display().to_string()],
            graceful: Signal::SIGTERM,
            // Its log is all it has, and that is written as it goes.
            immediate: Signal::SIGKILL,
            prepare: Box::new(|| Ok(())),
        })?;
        Ok(ZooKeeperServer {
            supervisor,
            address,
            _lock: lock,
        })
    }

    /// Returns once the server answers, also after it was restarted.
    pub async fn wait_ready(&self) -> Result<(), EmbeddedError> {
        let address = self.address;
        self.supervisor
            .wait_ready(async |_| are_you_ok(address).await)
            .await
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// As ZooKeeper's clients take it.
    pub fn cluster(&self) -> String {
        self.address.to_string()
    }

    /// `None` for the moment between a death and the restart.
    pub fn pid(&self) -> Option<u32> {
        self.supervisor.pid()
    }

    /// `kill -9`, for tests and demonstrations: it is started again on the same port.
    pub fn kill(&self) {
        self.supervisor.kill();
    }

    pub async fn stop(mut self) {
        self.supervisor.stop().await;
    }
}

/// A port that nobody listens on, below the range from which the kernel takes those of outgoing connections: it has to
/// be free again for a restart. Folders begin their search far from each other.
fn free_port(dir: &Path) -> Result<u16, EmbeddedError> {
    const FIRST: u16 = 15_000;
    const COUNT: u16 = 17_000;
    let start = place::path_hash(dir) ^ u64::from(std::process::id());
    let start = u16::try_from(start % u64::from(COUNT)).unwrap_or(0);
    (0..COUNT)
        .map(|offset| FIRST + (start + offset) % COUNT)
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .ok_or(std::io::ErrorKind::AddrNotAvailable)
        .map_err(std::io::Error::from)
        .doing(|| String::from("find a free port for zookeeper"))
}

fn configured(data: &Path, address: SocketAddr, settings: &ZooKeeperSettings) -> String {
    // A properties file: a backslash would be an escape.
    let data = data.display().to_string().replace('\\', "\\\\");
    format!(
        "tickTime={tick}\n\
         dataDir={data}\n\
         clientPort={port}\n\
         clientPortAddress={ip}\n\
         minSessionTimeout={shortest}\n\
         maxSessionTimeout=60000\n\
         maxClientCnxns=0\n\
         admin.enableServer=false\n\
         4lw.commands.whitelist=ruok,srvr\n",
        tick = settings.tick.as_millis().max(1),
        shortest = settings.tick.as_millis().max(1) * 2,
        port = address.port(),
        ip = address.ip(),
    )
}

fn arguments(classpath: &str, configuration: &Path) -> Vec<OsString> {
    [
        // Small and quick to start: a lesson is not a data centre.
        "-Xmx128m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Xshare:auto",
        "-Djava.net.preferIPv4Stack=true",
        "-Dzookeeper.forceSync=no",
        "-Dzookeeper.jmx.log4j.disable=true",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-cp",
        classpath,
        MAIN,
    ]
    .into_iter()
    .map(OsString::from)
    .chain([configuration.into()])
    .collect()
}

/// ZooKeeper's own question of four letters.
async fn are_you_ok(address: SocketAddr) -> Readiness {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"ruok").await?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await?;
        Ok::<_, std::io::Error>(answer == *b"imok")
    };
    match tokio::time::timeout(Duration::from_secs(1), exchange).await {
        Ok(Ok(true)) => Readiness::Ready,
        Ok(_) | Err(_) => Readiness::NotYet,
    }
}

/// Java, and where ZooKeeper's classes are.
#[derive(Debug, Clone)]
pub(super) struct ZooKeeperBinaries {
    pub java: PathBuf,
    pub classpath: String,
}
