//! A private ZooKeeper: one standalone server on a loopback port, its files in a folder of its own.
//!
//! Only the lab needs it, so it is started on demand, and the rest works without Java. Java cannot
//! listen on unix sockets: it gets a free loopback port.
//!
//! Crashes: it is restarted on the same port with its data, and sessions whose clients return in
//! time go on. `forceSync` is off: a power failure may lose the last locks of a lesson.

use crate::{
    binaries,
    error::{Doing, Result},
    place::{self, Home},
    process::{Program, blocking},
    server::{Kind, Server, ask},
    supervisor::Readiness,
};
use nix::{sys::signal::Signal, unistd::Pid};
use std::{
    ffi::OsString,
    fs, io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::Path,
    time::Duration,
};
use tokio::net::TcpStream;

const MAIN: &str = "org.apache.zookeeper.server.ZooKeeperServerMain";
/// A small heap and a quick start, for lessons.
const JAVA_FLAGS: &str = "-Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto \
    -Djava.net.preferIPv4Stack=true -Dzookeeper.forceSync=no -Dzookeeper.jmx.log4j.disable=true \
    -Dorg.slf4j.simpleLogger.defaultLogLevel=warn";

#[derive(Debug, Clone)]
pub struct ZooKeeperSettings {
    /// ZooKeeper's unit of time. A session lasts at least two ticks; short ticks keep lessons
    /// short.
    pub tick: Duration,
}

impl Default for ZooKeeperSettings {
    fn default() -> Self {
        Self { tick: Duration::from_millis(200) }
    }
}

pub type ZooKeeperServer = Server<ZooKeeper>;

pub struct ZooKeeper {
    address: SocketAddr,
    _home: Home,
}

impl Kind for ZooKeeper {
    type Settings = ZooKeeperSettings;

    fn prepare(dir: &Path, settings: &ZooKeeperSettings) -> Result<(Program, ZooKeeper)> {
        let (java, classpath) = binaries::find_zookeeper()?;
        let home = Home::open(dir, "zookeeper")?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port(&home.dir)?));
        // Not in `data`, which may belong to another user.
        let configuration = home.file("cfg");
        fs::write(&configuration, configured(&home.data, address, settings))
            .doing("write", &configuration)?;
        let program = Program {
            args: arguments(&classpath, &configuration),
            directory: home.dir.clone(),
            markers: vec![String::from(MAIN), configuration.display().to_string()],
            // Its transaction log is written as it goes: nothing to save.
            immediate: Signal::SIGKILL,
            ..Program::new("zookeeper", java, &home)
        };
        let zookeeper = ZooKeeper { address, _home: home };
        Ok((program, zookeeper))
    }

    /// `ruok`, a four-letter command.
    async fn probe(&self, _: Pid) -> Readiness {
        match ask(TcpStream::connect(self.address), b"ruok").await {
            Some(answer) if answer == b"imok" => Readiness::Ready,
            _ => Readiness::NotYet,
        }
    }
}

impl ZooKeeperServer {
    /// Whether this machine has Java and ZooKeeper; if not, the error says how to install them.
    pub async fn check() -> Result<()> {
        blocking(|| binaries::find_zookeeper().map(|_| ())).await
    }

    /// [`ZooKeeperServer::check`] as a bool; blocks on a few file checks.
    pub fn is_installed() -> bool {
        binaries::find_zookeeper().is_ok()
    }

    pub fn address(&self) -> SocketAddr {
        self.kind.address
    }

    /// As ZooKeeper's clients take it.
    pub fn cluster(&self) -> String {
        self.address().to_string()
    }
}

/// A free port below the range of outgoing connections, so that it is free again for a restart.
/// Folders start their search far apart.
fn free_port(dir: &Path) -> Result<u16> {
    const FIRST: u16 = 15_000;
    const COUNT: u16 = 17_000;
    let start = place::path_hash(dir) ^ u64::from(std::process::id());
    let start = u16::try_from(start % u64::from(COUNT)).unwrap_or(0);
    (0..COUNT)
        .map(|offset| FIRST + (start + offset) % COUNT)
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .ok_or(io::ErrorKind::AddrNotAvailable)
        .doing("find a free port for", "zookeeper")
}

fn configured(data: &Path, address: SocketAddr, settings: &ZooKeeperSettings) -> String {
    // In a properties file a backslash is an escape.
    let data = data.display().to_string().replace('\\', "\\\\");
    let (ip, port) = (address.ip(), address.port());
    let tick = settings.tick.as_millis().max(1);
    let shortest = tick * 2;
    format!(
        "tickTime={tick}\ndataDir={data}\nclientPort={port}\nclientPortAddress={ip}\n\
         minSessionTimeout={shortest}\nmaxSessionTimeout=60000\nmaxClientCnxns=0\n\
         admin.enableServer=false\n4lw.commands.whitelist=ruok,srvr\n"
    )
}

fn arguments(classpath: &str, configuration: &Path) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = JAVA_FLAGS.split(' ').map(OsString::from).collect();
    arguments.extend(["-cp", classpath, MAIN].map(OsString::from));
    arguments.push(configuration.into());
    arguments
}
