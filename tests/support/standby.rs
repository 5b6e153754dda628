//! Standbys of a Postgres: copied with `pg_basebackup`, followed, promoted.

use super::driver::{Error, Result};
use crate::support::prelude::*;
use embedded::{PostgresAddress, PostgresServer, PostgresTuning};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

pub fn options_of(address: &PostgresAddress) -> PgConnectOptions {
    super::options(address, &address.database)
}

pub async fn connect(server: &PostgresServer) -> Result<PgConnection> {
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
    let mut basebackup = tokio::process::Command::new(binaries.with_file_name("pg_basebackup"));
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
