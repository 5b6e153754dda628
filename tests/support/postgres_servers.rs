//! The real PgBouncer in transaction mode in front of a Postgres; and standbys of one, copied with
//! `pg_basebackup`, followed, promoted.

use super::driver::{Error, Result};
use super::{hire_janitor, temporary_folder};
use crate::support::prelude::*;
use embedded::{PostgresAddress, PostgresServer, PostgresTuning};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use tokio::process::{Child, Command};

/// Where PgBouncer may be, beside the PATH: the places of `scripts/setup.sh`, which installs it.
const PLACES: &str = "/usr/sbin:/opt/homebrew/opt/pgbouncer/bin:/usr/local/opt/pgbouncer/bin";

pub const SESSIONS: u32 = 3;

pub struct PgBouncer {
    child: Child,
    pub address: SocketAddr,
}

impl PgBouncer {
    /// With a database that is reached through it. `ignored`: its `ignore_startup_parameters`,
    /// which it would refuse otherwise.
    pub async fn start(servers: &Servers, ignored: &str) -> (Self, Database) {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        // It runs as the owner of the cluster, who alone may enter the socket's folder.
        let postmaster = servers.postgres.pid().expect("postgres runs");
        let owner = fs::metadata(format!("/proc/{postmaster}/cwd")).expect("its cluster");
        let dir = temporary_folder();
        fs::create_dir(&dir).expect("a folder");
        let settings = dir.join("pgbouncer.ini");
        let postgres = servers.postgres.address();
        let mut text = format!(
            "[databases]\n* = host={} port={} user={}\n\
             [pgbouncer]\nlisten_addr = {}\nlisten_port = {}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = transaction\ndefault_pool_size = {SESSIONS}\nmax_client_conn = 500\n\
             ignore_startup_parameters = {ignored}\n",
            postgres.socket_dir.display(),
            postgres.port,
            postgres.user,
            address.ip(),
            address.port(),
        );
        if pgbouncer_version().await >= [1, 21].to_vec() {
            text += "max_prepared_statements = 0\n"; // as docs/postgres.md asks for
        }
        fs::write(&settings, text).expect("its settings");
        for path in [&dir, &settings] {
            chown(path, Some(owner.uid()), Some(owner.gid())).expect("chown");
        }
        let log = fs::File::create(dir.join("log")).expect("its log");
        let mut command = pgbouncer_command();
        command.arg(&settings).current_dir("/").uid(owner.uid()).gid(owner.gid());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.kill_on_drop(true).spawn().expect("pgbouncer starts");
        std::mem::forget(hire_janitor(&dir, &[child.id()]));
        let mut started = Self { child, address };
        wait_for!("pgbouncer listens", {
            let ended = started.child.try_wait().expect("a child");
            assert!(ended.is_none(), "pgbouncer has ended: {}", tail(&dir.join("log"), 20));
            TcpStream::connect(address).await.ok()
        });
        let database = servers.database().await.through(address);
        (started, Database { is_pooled: true, ..database })
    }
}

impl Database {
    pub async fn pool(&self, connections: u32) -> flash_sale::postgres::Pool {
        let options = self.options();
        if !self.is_pooled {
            return flash_sale::postgres::pool(options, connections);
        }
        flash_sale::postgres::pooled(options, self.direct_options(), connections)
    }
}

fn pgbouncer_command() -> Command {
    let mut command = Command::new("pgbouncer");
    command.env("PATH", format!("{}:{PLACES}", std::env::var("PATH").unwrap_or_default()));
    command
}

/// Of `PgBouncer 1.18.0`, the numbers.
async fn pgbouncer_version() -> Vec<u32> {
    let said = pgbouncer_command().arg("--version").output().await;
    let said = said.expect("pgbouncer runs (scripts/setup.sh proof installs it)").stdout;
    let said = String::from_utf8_lossy(&said);
    let word = said.split_whitespace().nth(1).expect("a version");
    word.split('.').map(|number| number.parse().unwrap_or(0)).collect()
}

pub fn options_of(address: &PostgresAddress) -> PgConnectOptions {
    super::options(address, &address.database)
}

async fn connect(server: &PostgresServer) -> Result<PgConnection> {
    Ok(PgConnection::connect_with(&options_of(server.address()).database("postgres")).await?)
}

/// Each statement for itself: `ALTER SYSTEM` takes no transaction.
pub async fn execute(server: &PostgresServer, statements: &[&str]) -> Result {
    let mut connection = connect(server).await?;
    for statement in statements {
        connection.execute(AssertSqlSafe(*statement)).await?;
    }
    Ok(connection.close().await?)
}

pub async fn standby_of(primary: &PostgresServer, dir: &Path) -> Result<PostgresServer> {
    let pid = primary.pid().ok_or("postgres is being restarted")?;
    let postmaster = PathBuf::from(format!("/proc/{pid}"));
    let binaries = fs::read_link(postmaster.join("exe"))?;
    let owner = fs::metadata(postmaster.join("cwd"))?;
    let (uid, gid) = (owner.uid(), owner.gid());
    let copy = dir.join("pg");
    fs::create_dir_all(&copy)?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o700))?;
    chown(&copy, Some(uid), Some(gid))?;
    let address = primary.address();
    let mut basebackup = Command::new(binaries.with_file_name("pg_basebackup"));
    basebackup.args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]);
    basebackup.arg("--pgdata").arg(&copy).arg("--host").arg(&address.socket_dir);
    basebackup.args(["--port", &address.port.to_string(), "--username", &address.user]);
    basebackup.current_dir("/");
    if nix::unistd::geteuid().is_root() {
        basebackup.uid(uid).gid(gid);
    }
    let copied = basebackup.output().await?;
    if !copied.status.success() {
        return Err(format!("pg_basebackup: {copied:?}").into());
    }
    // A standby must have as many as its primary.
    let tuning = PostgresTuning { max_connections: 400, ..PostgresTuning::default() };
    Ok(PostgresServer::start(dir, tuning).await?)
}

/// From now on no commit is confirmed that a standby has not got.
pub async fn make_synchronous(primary: &PostgresServer) -> Result {
    let wait = "ALTER SYSTEM SET synchronous_standby_names = '*'";
    execute(primary, &[wait, "SELECT pg_reload_conf()"]).await?;
    until_followed(primary, "sync").await
}

pub async fn until_followed(primary: &PostgresServer, state: &str) -> Result {
    let followed = async || Ok::<_, Error>((followers(primary, state).await? == 1).then_some(()));
    let followed = poll(Duration::from_secs(30), 20, followed).await?;
    followed.ok_or_else(|| format!("no standby was {state} within 30 s").into())
}

pub async fn followers(primary: &PostgresServer, state: &str) -> Result<i64> {
    let query = "SELECT count(*) FROM pg_stat_replication
                 WHERE $1 = '' OR (sync_state = $1 AND state = 'streaming')";
    let mut connection = connect(primary).await?;
    Ok(sqlx::query_scalar(query).bind(state).fetch_one(&mut connection).await?)
}

pub async fn promote(standby: &PostgresServer) -> Result {
    let mut connection = connect(standby).await?;
    let promotion = sqlx::query_scalar("SELECT pg_promote(true, 30)");
    if !promotion.fetch_one(&mut connection).await? {
        return Err("the standby was not promoted within 30 s".into());
    }
    let alone = "ALTER SYSTEM RESET synchronous_standby_names";
    execute(standby, &[alone, "SELECT pg_reload_conf()"]).await
}
