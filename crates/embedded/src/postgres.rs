//! A private Postgres: one cluster, one `postgres` on a unix socket, one database.
//!
//! **Access.** `initdb --auth=trust` asks for no password: the socket's folder (0700) admits only
//! the server's user and root, and there is no TCP listener.
//!
//! **As root.** Postgres refuses to run as root, so root runs it as `postgres`, else as `nobody`,
//! who own the cluster. If that user cannot enter DATA_DIR (below a home directory of mode 0700,
//! say), the cluster is in `/var/lib/flash-sale/HASH/pg`, and `DATA_DIR/pg` a symlink to it.
//!
//! **Crashes.**
//! - Of `initdb`: it works in `pg.new`, which is renamed to `pg` when complete.
//! - Of Postgres: it is restarted and replays its log; nothing that was committed is lost.
//! - Of this program: see `process.rs`. A `postmaster.pid` may remain whose pid is another process'
//!   by now, and Postgres would refuse to start. The file stays, because it also shows Postgres
//!   that backends of a killed postmaster still use the data. Only its pid is replaced by that of
//!   this program, the postmaster's parent, which Postgres does not take for a rival.

use crate::{
    binaries,
    error::{Doing, EmbeddedError, Result},
    place::{self, Home, RunAs, SocketDir},
    process::{self, Program},
    server::{Kind, Server},
    supervisor::Readiness,
};
use nix::{sys::signal::Signal, unistd::Pid};
use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};
use tokio::net::UnixStream;

const USER: &str = "flash_sale";
const DATABASE: &str = "flash_sale";
/// Only part of the socket's name: nothing listens on TCP.
const PORT: u16 = 5432;
const SOCKET: &str = ".s.PGSQL.5432";
const FALLBACK: &str = "/var/lib/flash-sale";

/// How to reach the database: `PgConnectOptions::new().socket(…).port(…).username(…).database(…)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresAddress {
    pub socket_dir: PathBuf,
    pub port: u16,
    pub user: String,
    pub database: String,
}

#[derive(Debug, Clone)]
pub struct PostgresTuning {
    pub max_connections: u32,
    /// False trades durability for speed, for tests.
    pub durable: bool,
}

impl Default for PostgresTuning {
    fn default() -> PostgresTuning {
        PostgresTuning { max_connections: 80, durable: true }
    }
}

pub type PostgresServer = Server<Postgres>;

pub struct Postgres {
    _socket_dir: SocketDir,
    address: PostgresAddress,
    home: Home,
}

impl Kind for Postgres {
    type Settings = PostgresTuning;

    fn prepare(dir: &Path, tuning: &PostgresTuning) -> Result<(Program, Postgres)> {
        let (home, installation) = open_cluster(place::data_dir(dir)?)?;
        let socket_dir = home.socket_dir(SOCKET, |path| installation.can_enter(path))?;
        let (cluster, sockets) = (home.data.clone(), socket_dir.path.clone());
        let address = PostgresAddress {
            socket_dir: sockets.clone(),
            port: PORT,
            user: String::from(USER),
            database: String::from(DATABASE),
        };
        let program = Program {
            args: arguments(&cluster, &sockets, tuning),
            second_pid_file: Some(cluster.join("postmaster.pid")),
            // The trailing space ends the path.
            markers: vec![String::from("postgres"), format!("{} ", socket_setting(&sockets))],
            // "Fast" and "immediate" shutdown; SIGTERM would wait for clients.
            graceful: Signal::SIGINT,
            immediate: Signal::SIGQUIT,
            before_start: Box::new(move || clear_the_way(&cluster, &sockets)),
            ..Program::new("postgres", installation.bin.join("postgres"), &home)
        };
        let postgres = Postgres { _socket_dir: socket_dir, address, home };
        Ok((program, postgres))
    }

    /// `postmaster.pid` has this pid and "ready" in its eighth line (as `pg_ctl` reads it), and the
    /// socket accepts.
    async fn probe(&self, pid: Pid) -> Readiness {
        let file = self.home.data.join("postmaster.pid");
        let content = tokio::fs::read_to_string(file).await.unwrap_or_default();
        let lines: Vec<&str> = content.lines().map(str::trim).collect();
        if lines.first().and_then(|line| line.parse().ok()) != Some(pid.as_raw()) {
            return Readiness::NotYet;
        }
        let socket = self.address.socket_dir.join(SOCKET);
        match lines.get(7) {
            // A standby accepts connections for reading.
            Some(&"ready" | &"standby") if UnixStream::connect(&socket).await.is_ok() => {
                Readiness::Ready
            }
            Some(&"starting") => Readiness::Recovering,
            _ => Readiness::NotYet,
        }
    }
}

impl PostgresServer {
    pub fn address(&self) -> &PostgresAddress {
        &self.kind.address
    }
}

/// Finds the cluster of a data folder, or creates it.
fn open_cluster(dir: PathBuf) -> Result<(Home, Installation)> {
    let entry = dir.join("pg");
    let mut path = fs::read_link(&entry).unwrap_or_else(|_| entry.clone());
    let major = cluster_major(&path)?;
    let bin = binaries::find_postgres(major.map(|major| (path.as_path(), major)))?;
    let run_as = match RunAs::owner_of(&path) {
        Some(owner) => Some(owner),
        None => RunAs::unprivileged()?,
    };
    let installation = Installation { bin, run_as };

    let needs_link = path == entry && !installation.can_enter(&dir);
    if needs_link {
        path = installation.fallback(&dir)?;
    }
    let parent = path.parent().unwrap_or(&dir);
    place::create_dir(parent, 0o711)?;
    // Beside the cluster: two copies of a data folder may link to the same one.
    let lock = place::lock(&parent.join("pg.lock"), &dir)?;

    if needs_link && entry.is_dir() {
        // Its user could enter then, and cannot now.
        fs::rename(&entry, &path).doing("move", &entry)?;
    } else if needs_link && cluster_major(&path)?.is_some() {
        // The data folder was removed, to start afresh. Keep the old cluster once.
        let old = path.with_extension("old");
        remove_dir(&old)?;
        fs::rename(&path, &old).doing("move", &path)?;
        tracing::info!(old = %old.display(), "the data folder is new; kept its old cluster");
    }
    if cluster_major(&path)?.is_none() {
        installation.create_cluster(&path)?;
    }
    if needs_link {
        symlink(&path, &entry).doing("link", &entry)?;
    }
    let home = Home { dir, name: "pg", data: path, run_as, lock };
    Ok((home, installation))
}

/// The major version that wrote the cluster; `None` if there is none yet.
fn cluster_major(cluster: &Path) -> Result<Option<u32>> {
    let file = cluster.join("PG_VERSION");
    let not_a_cluster = || EmbeddedError::NotACluster(cluster.to_path_buf());
    match fs::read_to_string(&file) {
        Ok(version) => Ok(Some(version.trim().parse().map_err(|_| not_a_cluster())?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let is_empty =
                fs::read_dir(cluster).map_or(true, |mut entries| entries.next().is_none());
            is_empty.then_some(None).ok_or_else(not_a_cluster)
        }
        Err(error) => Err(error).doing("read", &file),
    }
}

/// The programs of one version, and the user that runs them.
struct Installation {
    bin: PathBuf,
    run_as: Option<RunAs>,
}

impl Installation {
    fn command(&self, program: &str, directory: &Path) -> Command {
        let path = self.bin.join(program);
        process::command(&path, directory, self.run_as, Signal::SIGKILL)
    }

    /// Tries to start a program there, after the change of user: permission bits would not show
    /// access lists and mounts.
    fn can_enter(&self, directory: &Path) -> bool {
        self.run_as.is_none()
            || self
                .command("postgres", directory)
                .arg("--version")
                .output()
                .is_ok_and(|output| output.status.success())
    }

    /// The place of the cluster if its user cannot enter `data_dir`.
    fn fallback(&self, data_dir: &Path) -> Result<PathBuf> {
        let home = Path::new(FALLBACK).join(format!("{:016x}", place::path_hash(data_dir)));
        place::create_dir(&home, 0o711)?;
        if !self.can_enter(&home) {
            return Err(EmbeddedError::Unreachable {
                uid: self.run_as.map_or(0, |user| user.uid),
                data_dir: data_dir.to_path_buf(),
                fallback: home,
            });
        }
        let cluster = home.join("pg");
        tracing::info!(data_dir = %data_dir.display(), cluster = %cluster.display(),
            "Postgres's user cannot enter the data folder: a symlink there leads to its cluster");
        Ok(cluster)
    }

    /// Atomic: a cluster under the final name is complete and on disk.
    fn create_cluster(&self, cluster: &Path) -> Result<()> {
        let unfinished = cluster.with_extension("new");
        remove_dir(&unfinished)?;
        place::private_dir(&unfinished, self.run_as)?;

        let mut initdb = self.command("initdb", &unfinished);
        initdb
            .args(["--auth=trust", "--encoding=UTF8", "--locale=C"])
            .args(["--username", USER, "-D"])
            .arg(&unfinished);
        run("initdb", &mut initdb)?;

        // Single-user mode needs neither a client library nor a second start.
        let (input, mut statements) = io::pipe().doing("make", "a pipe")?;
        writeln!(statements, "CREATE DATABASE {DATABASE}").doing("fill", "a pipe")?;
        drop(statements);
        let mut single = self.command("postgres", &unfinished);
        single.args(["--single", "-D"]).arg(&unfinished).arg("template1");
        run("postgres --single", single.stdin(input))?;

        let parent = cluster.parent().unwrap_or(cluster);
        fs::rename(&unfinished, cluster)
            .and_then(|()| File::open(parent)?.sync_all())
            .doing("rename", &unfinished)
    }
}

fn run(program: &'static str, command: &mut Command) -> Result<()> {
    let result = command.output().doing("run", program)?;
    let output = [result.stdout, result.stderr].concat();
    let output = String::from_utf8_lossy(&output).trim().to_owned();
    // `postgres --single` exits with 0 also when a statement failed.
    if !result.status.success() || output.contains("ERROR:") || output.contains("FATAL:") {
        return Err(EmbeddedError::Initdb { program, output });
    }
    Ok(())
}

fn remove_dir(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).doing("remove", path),
        _ => Ok(()),
    }
}

fn socket_setting(socket_dir: &Path) -> String {
    format!("unix_socket_directories={}", socket_dir.display())
}

/// On the command line rather than in `postgresql.conf`, so that older clusters get these settings.
/// The log goes to stderr, which is captured.
fn arguments(cluster: &Path, socket_dir: &Path, tuning: &PostgresTuning) -> Vec<OsString> {
    let on = if tuning.durable { "on" } else { "off" };
    let socket = socket_setting(socket_dir);
    let settings = format!(
        "listen_addresses= {socket} unix_socket_permissions=0700 port={PORT} fsync={on} \
         synchronous_commit={on} full_page_writes={on} shared_buffers=128MB max_wal_size=2GB \
         max_connections={} logging_collector=off log_destination=stderr",
        tuning.max_connections
    );
    let mut arguments = vec![OsString::from("-D"), cluster.into()];
    for setting in settings.split(' ') {
        arguments.extend(["-c", setting].map(OsString::from));
    }
    arguments
}

/// Before every start: refuses a cluster that another server uses, and repairs a stale pid file.
fn clear_the_way(cluster: &Path, socket_dir: &Path) -> Result<()> {
    let pid_file = cluster.join("postmaster.pid");
    if let Some(pid) = process::read_pid(&pid_file)
        && is_postmaster_of(cluster, pid)
    {
        return Err(EmbeddedError::ForeignServer {
            pid: pid.as_raw(),
            cluster: cluster.to_path_buf(),
        });
    }
    let repaired = match fs::read_to_string(&pid_file) {
        Ok(content) => match content.split_once('\n') {
            // The rest stays, see the head of this file.
            Some((pid, rest)) if pid.trim().parse::<i32>().is_ok() => {
                fs::write(&pid_file, format!("{}\n{rest}", std::process::id()))
            }
            // Torn by a power failure: no process survived that.
            _ => fs::remove_file(&pid_file),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    };
    repaired.doing("repair", &pid_file)?;
    // The socket's lock file protects no data, and the folder is private.
    for leftover in [format!("{SOCKET}.lock"), String::from(SOCKET)] {
        fs::remove_file(socket_dir.join(leftover)).ok();
    }
    Ok(())
}

fn is_postmaster_of(cluster: &Path, pid: Pid) -> bool {
    // A postmaster's working directory is its cluster; without /proc the command line must tell.
    let works_there =
        fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|directory| directory == cluster);
    process::command_line(pid).is_some_and(|line| {
        line.contains("postgres") && (works_there || line.contains(&*cluster.to_string_lossy()))
    })
}
