//! A private Postgres: one cluster, one `postgres` on a unix socket, one database.
//!
//! **Who may connect.** `initdb --auth=trust` asks for no password, because the socket stands in a folder (0700) that
//! only the user running the server, and root, can enter; there is no TCP listener.
//!
//! **As root.** Postgres refuses to run as root, so root runs it as `postgres`, else as `nobody`, and the cluster is
//! theirs. Where that user cannot enter DATA_DIR (below a home directory with mode 0700, say), the cluster lives in
//! `/var/lib/flash-sale/HASH/pg` instead and `DATA_DIR/pg` is a symlink to it.
//!
//! **What happens on a crash.**
//! - Of `initdb`: it works in `pg.new`, which becomes `pg` only when complete; the next start begins anew.
//! - Of Postgres: it is restarted and replays its log; nothing that was committed is lost.
//! - Of this program: see `process.rs`. A `postmaster.pid` may remain whose pid by now is somebody else's, and Postgres
//!   would refuse to start. The file is not deleted: it also lets Postgres notice that backends of a killed postmaster
//!   still use the data, which is the one thing that must never be overridden. Only the pid in it is replaced by that
//!   of this program, the postmaster's parent, which Postgres knows not to be a rival.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use tokio::net::UnixStream;

use super::binaries::{self, PostgresBinaries};
use super::blocking;
use super::error::{Doing, EmbeddedError};
use super::place::{self, DataLock, RunAs, SocketDir};
use super::process::{self, Program, Readiness, Supervisor};

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
    /// As in `postgresql.conf`: `128MB`.
    pub shared_buffers: String,
    pub max_wal_size: String,
    /// False gives up every promise about power failures for speed. For tests.
    pub durable: bool,
}

impl Default for PostgresTuning {
    fn default() -> PostgresTuning {
        PostgresTuning {
            max_connections: 80,
            shared_buffers: String::from("128MB"),
            max_wal_size: String::from("2GB"),
            durable: true,
        }
    }
}

/// A running Postgres that is restarted when it dies. Dropping it ends it.
pub struct PostgresServer {
    // Dropped in this order: the process, then its socket's folder, then the lock.
    supervisor: Supervisor,
    _socket_dir: SocketDir,
    _lock: DataLock,
    cluster: PathBuf,
    address: PostgresAddress,
}

impl PostgresServer {
    /// Starts Postgres with its cluster in `dir` (both created if need be) and returns once it takes connections.
    pub async fn start(
        dir: &Path,
        tuning: PostgresTuning,
    ) -> Result<PostgresServer, EmbeddedError> {
        let dir = dir.to_path_buf();
        let server = blocking(move || PostgresServer::launch(&dir, &tuning)).await?;
        server.wait_ready().await?;
        Ok(server)
    }

    fn launch(dir: &Path, tuning: &PostgresTuning) -> Result<PostgresServer, EmbeddedError> {
        let dir = place::data_dir(dir)?;
        let Cluster {
            path: cluster,
            binaries,
            run_as,
            lock,
        } = Cluster::open(&dir)?;
        let can_enter = |path: &Path| can_enter(&binaries, run_as, path);
        let socket_dir = SocketDir::create(&dir, "pg", SOCKET, run_as, can_enter)?;
        let supervisor = Supervisor::start(Program {
            name: "postgres",
            path: binaries.postgres.clone(),
            args: arguments(&cluster, &socket_dir.path, tuning),
            directory: cluster.clone(),
            run_as,
            log: dir.join("pg.log"),
            pid_file: dir.join("pg.pid"),
            second_pid_file: Some(cluster.join("postmaster.pid")),
            // The space ends the path: more arguments follow it.
            markers: vec![
                String::from("postgres"),
                format!("{} ", socket_setting(&socket_dir.path)),
            ],
            // "Fast" and "immediate" shutdown. Its SIGTERM would wait for clients to go.
            graceful: Signal::SIGINT,
            immediate: Signal::SIGQUIT,
            prepare: Box::new({
                let (cluster, socket_dir) = (cluster.clone(), socket_dir.path.clone());
                move || clear_the_way(&cluster, &socket_dir)
            }),
        })?;
        let address = PostgresAddress {
            socket_dir: socket_dir.path.clone(),
            port: PORT,
            user: String::from(USER),
            database: String::from(DATABASE),
        };
        Ok(PostgresServer {
            supervisor,
            _socket_dir: socket_dir,
            _lock: lock,
            cluster,
            address,
        })
    }

    /// Returns once the server takes connections, also after it was restarted and while it recovers.
    pub async fn wait_ready(&self) -> Result<(), EmbeddedError> {
        self.supervisor
            .wait_ready(async |pid| readiness(&self.cluster, &self.address.socket_dir, pid).await)
            .await
    }

    pub fn address(&self) -> &PostgresAddress {
        &self.address
    }

    /// The postmaster; `None` for the moment between a death and the restart.
    pub fn pid(&self) -> Option<u32> {
        self.supervisor.pid()
    }

    /// `kill -9` of the postmaster, for tests and demonstrations: it is started again on the same socket.
    pub fn kill(&self) {
        self.supervisor.kill();
    }

    /// Disconnects the clients, writes a checkpoint and ends.
    pub async fn stop(mut self) {
        self.supervisor.stop().await;
    }
}

/// A complete cluster, and what runs it.
struct Cluster {
    path: PathBuf,
    binaries: PostgresBinaries,
    run_as: Option<RunAs>,
    lock: DataLock,
}

impl Cluster {
    /// Finds the cluster of a data folder, or creates it.
    fn open(data_dir: &Path) -> Result<Cluster, EmbeddedError> {
        let entry = data_dir.join("pg");
        let mut path = fs::read_link(&entry).unwrap_or_else(|_| entry.clone());
        let major = cluster_major(&path)?;
        let binaries = binaries::find_postgres(major.map(|major| (path.as_path(), major)))?;
        let run_as = match RunAs::owner_of(&path) {
            Some(owner) => Some(owner),
            None => RunAs::unprivileged()?,
        };

        if path == entry && !can_enter(&binaries, run_as, data_dir) {
            path = fallback(data_dir, &binaries, run_as)?;
        }
        let home = path.parent().unwrap_or(data_dir);
        place::create_dir(home, 0o711)?;
        // Beside the cluster itself: two copies of a data folder may link to the same one.
        let lock = DataLock::acquire(&home.join("pg.lock"), data_dir)?;

        if path == entry {
            if major.is_none() {
                create_cluster(&path, &binaries, run_as)?;
            }
        } else if fs::symlink_metadata(&entry).is_ok_and(|metadata| metadata.is_dir()) {
            // Made where its user could enter then, and cannot now.
            fs::rename(&entry, &path)
                .doing(|| format!("move {} to {}", entry.display(), path.display()))?;
            link(&entry, &path)?;
        } else if cluster_major(&path)?.is_none() {
            create_cluster(&path, &binaries, run_as)?;
            link(&entry, &path)?;
        } else if fs::symlink_metadata(&entry).is_err() {
            // The data folder was removed, which is how one starts afresh. Keep the old cluster, once.
            let aside = path.with_extension("old");
            remove_dir(&aside)?;
            fs::rename(&path, &aside).doing(|| format!("set {} aside", path.display()))?;
            tracing::info!(old = %aside.display(), "the data folder is new; set its former cluster aside");
            create_cluster(&path, &binaries, run_as)?;
            link(&entry, &path)?;
        }
        Ok(Cluster {
            path,
            binaries,
            run_as,
            lock,
        })
    }
}

/// The major version that wrote the cluster; `None` if there is none yet.
fn cluster_major(cluster: &Path) -> Result<Option<u32>, EmbeddedError> {
    match fs::read_to_string(cluster.join("PG_VERSION")) {
        Ok(version) => match version.trim().parse() {
            Ok(major) => Ok(Some(major)),
            Err(_) => Err(EmbeddedError::NotACluster(cluster.to_path_buf())),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let is_empty =
                fs::read_dir(cluster).map_or(true, |mut entries| entries.next().is_none());
            if is_empty {
                Ok(None)
            } else {
                Err(EmbeddedError::NotACluster(cluster.to_path_buf()))
            }
        }
        Err(error) => Err(error).doing(|| format!("read {}", cluster.join("PG_VERSION").display())),
    }
}

/// Asks the system instead of judging permission bits, which do not tell about access lists and mounts: the working
/// directory is entered after the change of user, so the program starts only where that user may be.
fn can_enter(binaries: &PostgresBinaries, run_as: Option<RunAs>, directory: &Path) -> bool {
    run_as.is_none()
        || process::command(&binaries.postgres, directory, run_as, Signal::SIGKILL)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .is_ok_and(|output| output.status.success())
}

/// Where the cluster of `data_dir` lives when its user cannot get there.
fn fallback(
    data_dir: &Path,
    binaries: &PostgresBinaries,
    run_as: Option<RunAs>,
) -> Result<PathBuf, EmbeddedError> {
    let home = Path::new(FALLBACK).join(format!("{:016x}", place::path_hash(data_dir)));
    place::create_dir(&home, 0o711)?;
    if !can_enter(binaries, run_as, &home) {
        return Err(EmbeddedError::Unreachable {
            uid: run_as.map_or(0, |user| user.uid),
            data_dir: data_dir.to_path_buf(),
            fallback: home,
        });
    }
    tracing::info!(
        data_dir = %data_dir.display(),
        cluster = %home.join("pg").display(),
        "the user that runs Postgres cannot enter the data folder; its cluster is elsewhere, with a symlink to it"
    );
    Ok(home.join("pg"))
}

fn link(entry: &Path, cluster: &Path) -> Result<(), EmbeddedError> {
    fs::remove_file(entry).ok();
    symlink(cluster, entry).doing(|| format!("link {} to {}", entry.display(), cluster.display()))
}

/// All or nothing: what is under the final name is complete and on disk.
fn create_cluster(
    cluster: &Path,
    binaries: &PostgresBinaries,
    run_as: Option<RunAs>,
) -> Result<(), EmbeddedError> {
    let unfinished = cluster.with_extension("new");
    remove_dir(&unfinished)?;
    place::private_dir(&unfinished, run_as)?;

    let initdb = process::command(&binaries.initdb, &unfinished, run_as, Signal::SIGKILL)
        .arg("-D")
        .arg(&unfinished)
        .args([
            "--username",
            USER,
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
        ])
        .stdin(Stdio::null())
        .output()
        .doing(|| format!("run {}", binaries.initdb.display()))?;
    if !initdb.status.success() {
        return Err(EmbeddedError::Initdb {
            program: "initdb",
            output: text(&initdb),
        });
    }

    // Single-user mode needs no client library and no second server start.
    let mut single = process::command(&binaries.postgres, &unfinished, run_as, Signal::SIGKILL)
        .args(["--single", "-D"])
        .arg(&unfinished)
        .arg("template1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .doing(|| format!("run {}", binaries.postgres.display()))?;
    if let Some(mut stdin) = single.stdin.take() {
        // A broken pipe means that it has ended; what it said is the better message.
        writeln!(stdin, "CREATE DATABASE {DATABASE}").ok();
    }
    let single = single
        .wait_with_output()
        .doing(|| String::from("create the database"))?;
    let output = text(&single);
    // It exits with 0 also when a statement failed.
    if !single.status.success() || output.contains("ERROR:") || output.contains("FATAL:") {
        return Err(EmbeddedError::Initdb {
            program: "postgres --single",
            output,
        });
    }

    let parent = cluster.parent().unwrap_or(cluster);
    fs::rename(&unfinished, cluster)
        .and_then(|()| File::open(parent)?.sync_all())
        .doing(|| format!("rename {} to {}", unfinished.display(), cluster.display()))
}

fn remove_dir(path: &Path) -> Result<(), EmbeddedError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).doing(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn text(output: &Output) -> String {
    let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&text).trim().to_owned()
}

fn socket_setting(socket_dir: &Path) -> String {
    format!("unix_socket_directories={}", socket_dir.display())
}

fn arguments(cluster: &Path, socket_dir: &Path, tuning: &PostgresTuning) -> Vec<OsString> {
    let on = if tuning.durable { "on" } else { "off" };
    // On the command line, not in postgresql.conf: an older cluster then runs with the settings of this version.
    let settings = [
        String::from("listen_addresses="),
        socket_setting(socket_dir),
        String::from("unix_socket_permissions=0700"),
        format!("port={PORT}"),
        format!("fsync={on}"),
        format!("synchronous_commit={on}"),
        format!("full_page_writes={on}"),
        format!("shared_buffers={}", tuning.shared_buffers),
        format!("max_wal_size={}", tuning.max_wal_size),
        format!("max_connections={}", tuning.max_connections),
        // To stderr, which is our log.
        String::from("logging_collector=off"),
        String::from("log_destination=stderr"),
    ];
    let mut arguments = vec![OsString::from("-D"), cluster.as_os_str().to_owned()];
    for setting in settings {
        arguments.extend([OsString::from("-c"), OsString::from(setting)]);
    }
    arguments
}

/// Before every start: no other server on this cluster, and no lock file naming a process that is none.
fn clear_the_way(cluster: &Path, socket_dir: &Path) -> Result<(), EmbeddedError> {
    let pid_file = cluster.join("postmaster.pid");
    if let Some(pid) = process::read_pid(&pid_file)
        && is_postmaster_of(cluster, pid)
    {
        return Err(EmbeddedError::ForeignServer {
            server: "postgres",
            pid: pid.as_raw(),
            directory: cluster.to_path_buf(),
        });
    }
    let action = || format!("repair {}", pid_file.display());
    match fs::read_to_string(&pid_file) {
        Ok(content) => match content.split_once('\n') {
            // See the head of this file for why the rest is kept.
            Some((pid, rest)) if pid.trim().parse::<i32>().is_ok() => {
                fs::write(&pid_file, format!("{}\n{rest}", std::process::id())).doing(action)?;
            }
            // Torn by a power failure, so nothing of then is still running.
            _ => fs::remove_file(&pid_file).doing(action)?,
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).doing(action),
    }
    // The socket's lock file guards no data, and its folder is private to this server.
    for leftover in [format!("{SOCKET}.lock"), String::from(SOCKET)] {
        fs::remove_file(socket_dir.join(leftover)).ok();
    }
    Ok(())
}

fn is_postmaster_of(cluster: &Path, pid: Pid) -> bool {
    let Some(line) = process::command_line(pid) else {
        return false;
    };
    // A postmaster works in its cluster; where the system does not tell (no /proc), the command line has to.
    let works_there =
        fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|directory| directory == cluster);
    line.contains("postgres") && (works_there || line.contains(&*cluster.to_string_lossy()))
}

/// `postmaster.pid` names this very process and says ready in its eighth line (as `pg_ctl` reads it), and the socket
/// accepts.
async fn readiness(cluster: &Path, socket_dir: &Path, pid: Pid) -> Readiness {
    let content = tokio::fs::read_to_string(cluster.join("postmaster.pid"))
        .await
        .unwrap_or_default();
    let lines: Vec<&str> = content.lines().map(str::trim).collect();
    if lines.first().and_then(|line| line.parse().ok()) != Some(pid.as_raw()) {
        return Readiness::NotYet;
    }
    match lines.get(7) {
        // A standby takes connections, too: for reading.
        Some(&"ready" | &"standby")
            if UnixStream::connect(socket_dir.join(SOCKET)).await.is_ok() =>
        {
            Readiness::Ready
        }
        Some(&"starting") => Readiness::Recovering,
        _ => Readiness::NotYet,
    }
}
