//! Faults of Postgres: it dies, stands still, refuses, is replaced by its standby, is slow to commit,
//! or fails transactions that should be tried again.

use super::{Stage, processes};
use crate::{
    Error,
    cluster::Cluster,
    instance::pid_of,
    support::proxy::{Address, Fault as NetFault},
};
use nix::sys::signal::{Signal, kill as send_signal};
use sqlx::{Connection, Executor, PgConnection, postgres::PgConnectOptions};
use std::{
    fs,
    ops::Range,
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::PoisonError,
    time::{Duration, Instant},
};

impl Cluster {
    /// `kill -9` of the postmaster; its supervisor starts it again.
    pub fn kill_postgres(&self) -> Result<(), Error> {
        self.postgres
            .as_ref()
            .ok_or("postgres is not running")?
            .kill();
        Ok(())
    }

    pub async fn until_postgres_is_back(&self) -> Result<(), Error> {
        // The death has to be noticed before readiness means the new process.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let postgres = self.postgres.as_ref().ok_or("postgres is not running")?;
        Ok(postgres.wait_ready().await?)
    }
}

pub async fn kill(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.wait(300..1_200).await;
    stage.cluster.kill_postgres()?;
    stage.strikes.kills += 1;
    stage.cluster.until_postgres_is_back().await?;
    stage.healed(None);
    Ok(())
}

/// The postmaster and all its backends.
fn processes_of(postmaster: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_child =
        |pid: &u32| processes::status_of(*pid).is_some_and(|(_, parent)| parent == postmaster);
    let mut all = vec![postmaster];
    all.extend(pids.filter(is_child));
    all
}

pub async fn stop(stage: &mut Stage<'_>, millis: Range<u64>) -> Result<(), Error> {
    stage.wait(200..700).await;
    let postgres = stage
        .cluster
        .postgres
        .as_ref()
        .ok_or("postgres is not running")?;
    let postmaster = postgres.pid().ok_or("postgres is being restarted")?;
    // The postmaster first: then it starts no backend that would be missed.
    send_signal(pid_of(postmaster), Signal::SIGSTOP)?;
    processes::stand_still(stage, &processes_of(postmaster), millis).await;
    stage.healed(None);
    Ok(())
}

pub async fn refuse(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.wait(200..700).await;
    for proxy in &stage.cluster.postgres_proxies {
        proxy.set(NetFault::Refuse).await;
        proxy.cut();
    }
    stage.wait(300..2_500).await;
    for proxy in &stage.cluster.postgres_proxies {
        proxy.set(NetFault::None).await;
    }
    stage.healed(None);
    Ok(())
}

/// Counts outside any transaction, so that it also counts those that fail.
const COUNT_FIRED: &str = "CREATE SEQUENCE chaos_fired";

pub async fn slow_commits(stage: &mut Stage<'_>) -> Result<(), Error> {
    let mut connection = stage.cluster.direct().await?;
    connection.execute(COUNT_FIRED).await?;
    connection
        .execute(
            "CREATE FUNCTION chaos() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 PERFORM nextval('chaos_fired'); PERFORM pg_sleep(0.02 + random() * 0.2); RETURN NULL;
             END $$;
             -- Deferred: it runs at COMMIT, with every lock held.
             CREATE CONSTRAINT TRIGGER chaos AFTER UPDATE ON sales
                 DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION chaos();",
        )
        .await?;
    Ok(())
}

pub async fn serialization_failures(stage: &mut Stage<'_>) -> Result<(), Error> {
    let mut connection = stage.cluster.direct().await?;
    connection.execute(COUNT_FIRED).await?;
    connection
        .execute(
            "CREATE FUNCTION chaos() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF random() < 0.1 THEN
                     PERFORM nextval('chaos_fired');
                     RAISE EXCEPTION 'made up by the test' USING ERRCODE = '40001';
                 END IF;
                 RETURN NULL;
             END $$;
             CREATE TRIGGER chaos AFTER INSERT OR UPDATE ON orders
                 FOR EACH STATEMENT EXECUTE FUNCTION chaos();",
        )
        .await?;
    Ok(())
}

pub async fn remove_trigger(stage: &mut Stage<'_>) -> Result<(), Error> {
    let mut connection = stage.cluster.direct().await?;
    connection
        .execute("DROP TRIGGER IF EXISTS chaos ON sales; DROP TRIGGER IF EXISTS chaos ON orders;")
        .await?;
    let (fired, is_called): (i64, bool) =
        sqlx::query_as("SELECT last_value, is_called FROM chaos_fired")
            .fetch_one(&mut connection)
            .await?;
    stage
        .strikes
        .notes
        .push(format!("the trigger fired {fired} times"));
    if !is_called {
        stage.strikes.missing = Some("the trigger never fired".to_owned());
    }
    Ok(())
}

/// A standby that has taken the place of its primary: a plain process, without a supervisor.
pub struct Promoted {
    child: Child,
    cluster: PathBuf,
    socket_dir: PathBuf,
}

impl Drop for Promoted {
    fn drop(&mut self) {
        // "Immediate" shutdown: its backends end too.
        send_signal(pid_of(self.child.id()), Signal::SIGQUIT).ok();
        self.child.wait().ok();
    }
}

/// Makes a synchronous standby, kills the primary, promotes the standby and sends everybody there.
pub async fn fail_over(stage: &mut Stage<'_>) -> Result<(), Error> {
    let number = stage.strikes.count + 1;
    let old = stage.cluster.primary();
    let (old_pid, old_cluster) = match (stage.cluster.promoted.last(), &stage.cluster.postgres) {
        (Some(promoted), _) => (promoted.child.id(), promoted.cluster.clone()),
        (None, Some(server)) => {
            let pid = server.pid().ok_or("postgres is being restarted")?;
            (pid, fs::read_link(format!("/proc/{pid}/cwd"))?)
        }
        (None, None) => return Err("postgres is not running".into()),
    };
    let program = fs::read_link(format!("/proc/{old_pid}/exe"))?;
    let programs = program.parent().ok_or("postgres is in no folder")?;
    let owner = fs::metadata(&old_cluster)?;
    let home = stage.cluster.folder.0.join(format!("p{number}"));
    let (cluster, socket_dir) = (home.join("pg"), home.join("s"));
    for folder in [&home, &socket_dir] {
        fs::create_dir_all(folder)?;
        std::os::unix::fs::chown(folder, Some(owner.uid()), Some(owner.gid()))?;
    }
    let as_owner = |program: PathBuf| {
        let mut command = Command::new(program);
        command.current_dir(&home).stdin(Stdio::null());
        if nix::unistd::geteuid().is_root() {
            command.uid(owner.uid()).gid(owner.gid());
        }
        command
    };
    let mut backup = as_owner(programs.join("pg_basebackup"));
    backup
        .args([
            "--checkpoint=fast",
            "--write-recovery-conf",
            "--username=flash_sale",
            "--host",
        ])
        .arg(old.get_socket().ok_or("the primary has no socket")?)
        .arg("--pgdata")
        .arg(&cluster);
    let output = tokio::task::spawn_blocking(move || backup.output()).await??;
    if !output.status.success() {
        return Err(format!("pg_basebackup: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let mut server = as_owner(programs.join("postgres"));
    for setting in [
        "listen_addresses=",
        &format!("unix_socket_directories={}", socket_dir.display()),
        "port=5432",
        "max_connections=200",
        "logging_collector=off",
    ] {
        server.args(["-c", setting]);
    }
    let log = fs::File::create(stage.cluster.folder.0.join(format!("p{number}.log")))?;
    server
        .arg("-D")
        .arg(&cluster)
        .stdout(log.try_clone()?)
        .stderr(log);
    let mut promoted = Promoted {
        child: server.spawn()?,
        cluster,
        socket_dir,
    };
    await_synchronous(&old).await?;
    stage.wait(200..800).await;
    // The primary dies for good.
    if let Some(server) = stage.cluster.postgres.take() {
        server.kill();
        server.stop().await;
    } else if let Some(mut server) = stage.cluster.promoted.pop() {
        server.child.kill()?;
    }
    stage.strikes.kills += 1;
    let new = promote(&old, &mut promoted).await?;
    *(stage.cluster.primary.lock()).unwrap_or_else(PoisonError::into_inner) = new;
    let socket = promoted.socket_dir.join(".s.PGSQL.5432");
    for proxy in &stage.cluster.postgres_proxies {
        proxy.set_target(Address::Unix(socket.clone()));
        proxy.cut();
    }
    stage.cluster.promoted.push(promoted);
    stage.healed(None);
    stage.wait(200..600).await;
    Ok(())
}

/// Waits until no commit is confirmed that the standby has not got.
async fn await_synchronous(primary: &PgConnectOptions) -> Result<(), Error> {
    let mut connection = PgConnection::connect_with(primary).await?;
    connection
        .execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        .await?;
    connection.execute("SELECT pg_reload_conf()").await?;
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let synchronous: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming')",
        )
        .fetch_one(&mut connection)
        .await?;
        if synchronous {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err("the standby did not catch up within 30 s".into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn promote(
    old: &PgConnectOptions,
    standby: &mut Promoted,
) -> Result<PgConnectOptions, Error> {
    let options = old.clone().socket(&standby.socket_dir);
    let mut connection = PgConnection::connect_with(&options).await?;
    let promoted: bool = sqlx::query_scalar("SELECT pg_promote(true, 30)")
        .fetch_one(&mut connection)
        .await?;
    if !promoted || !is_there(&standby.socket_dir) {
        return Err("the standby was not promoted within 30 s".into());
    }
    // The copy of the primary's settings asks for a standby of its own, which does not exist yet.
    connection
        .execute("ALTER SYSTEM RESET synchronous_standby_names")
        .await?;
    connection.execute("SELECT pg_reload_conf()").await?;
    Ok(options)
}

fn is_there(socket_dir: &Path) -> bool {
    socket_dir.join(".s.PGSQL.5432").exists()
}
