//! The embedded servers: leftovers of others, odd folders, errors and settings. That they keep data
//! through stops and kills, and share no folder, is in `cli.rs` and `liveness.rs`.

use crate::support::{program::remove_data, redis_connection};
use embedded::{
    Embedded, EmbeddedError, Options, PostgresServer, PostgresTuning, RedisFsync, RedisServer,
    RedisSettings,
};
use nix::unistd::{User, geteuid};
use redis::AsyncCommands;
use sqlx::{
    Connection, Executor,
    postgres::{PgConnectOptions, PgConnection},
};
use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::PathBuf,
    process::{Child, Command},
    sync::atomic::{AtomicU32, Ordering},
};

/// A data folder of its own, removed afterwards together with what it links to.
struct DataDir(PathBuf);

impl DataDir {
    fn new() -> DataDir {
        DataDir::below(std::env::temp_dir(), "")
    }

    fn below(parent: PathBuf, suffix: &str) -> DataDir {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        DataDir(parent.join(format!("fs-it-{process}-{number}{suffix}")))
    }

    async fn start(&self) -> Embedded {
        let options = Options { data_dir: self.0.clone(), redis_fsync: RedisFsync::Always };
        Embedded::start(&options).await.expect("start")
    }

    async fn start_postgres(&self) -> PostgresServer {
        PostgresServer::start(&self.0, PostgresTuning::default()).await.expect("Postgres starts")
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        remove_data(&self.0);
    }
}

/// A process that has nothing to do with the server, ended with the test.
struct Bystander(Child);

impl Bystander {
    fn start() -> Bystander {
        let mut command = Command::new("sleep");
        // Postgres takes a process of another user for dead, so as root it has to be Postgres's
        // user.
        if let Some(user) = user_of_postgres() {
            command.uid(user.uid.as_raw());
        }
        Bystander(command.arg("600").spawn().expect("sleep starts"))
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The user that Postgres runs as if this process is root.
fn user_of_postgres() -> Option<User> {
    geteuid().is_root().then(|| User::from_name("postgres").ok().flatten())?
}

async fn postgres(server: &PostgresServer) -> PgConnection {
    let address = server.address();
    let options = PgConnectOptions::new().socket(&address.socket_dir);
    let options = options.port(address.port).username(&address.user);
    PgConnection::connect_with(&options.database(&address.database)).await.expect("connect")
}

async fn write(embedded: &Embedded) {
    let mut database = postgres(&embedded.postgres).await;
    let write = "CREATE TABLE kept (word text); INSERT INTO kept VALUES ('kept')";
    database.execute(write).await.expect("written");
    database.close().await.expect("close");
    let mut redis = redis_connection(&embedded.redis.url()).await;
    let () = redis.set("word", "kept").await.expect("set");
}

async fn assert_kept(embedded: &Embedded) {
    let mut database = postgres(&embedded.postgres).await;
    let word = sqlx::query_scalar("SELECT word FROM kept");
    let word: String = word.fetch_one(&mut database).await.expect("select");
    assert_eq!(word, "kept");
    let mut redis = redis_connection(&embedded.redis.url()).await;
    let word: String = redis.get("word").await.expect("get");
    assert_eq!(word, "kept");
}

#[tokio::test]
async fn a_leftover_postmaster_pid_does_not_stop_the_next_start() {
    let dir = DataDir::new();
    dir.start_postgres().await.stop().await;
    let pid_file = dir.0.join("pg/postmaster.pid");
    let mut bystander = Bystander::start();
    let of_the_bystander = format!(
        "{}\n{}\n1700000000\n5432\n{}\n\n  5432001         7\nready   \n",
        bystander.0.id(),
        dir.0.join("pg").display(),
        dir.0.join("pg-socket").display(),
    );
    for leftover in [&of_the_bystander, "999999999\n", "", "not a pid\n"] {
        println!("with {leftover:?}");
        fs::write(&pid_file, leftover).expect("write");
        if let Some(user) = user_of_postgres() {
            nix::unistd::chown(&pid_file, Some(user.uid), Some(user.gid)).expect("chown");
        }
        fs::write(dir.0.join("pg.pid"), leftover).expect("write");
        let server = dir.start_postgres().await;
        postgres(&server).await.close().await.expect("close");
        server.stop().await;
    }
    assert_eq!(bystander.0.try_wait().expect("wait"), None, "the bystander was killed");
}

#[tokio::test]
async fn a_long_or_odd_data_folder_gets_its_sockets_elsewhere() {
    for suffix in ["-long".repeat(30), String::from(" with, spaces 和")] {
        let dir = DataDir::below(std::env::temp_dir(), &suffix);
        let embedded = dir.start().await;
        write(&embedded).await;
        assert_kept(&embedded).await;
        let socket_dir = embedded.postgres.address().socket_dir.clone();
        assert!(!socket_dir.starts_with(&dir.0));
        let folder = fs::metadata(&socket_dir).expect("the socket's folder");
        assert_eq!(folder.permissions().mode() & 0o777, 0o700);
        embedded.stop().await;
        assert!(!socket_dir.exists(), "the temporary folder is cleaned up");
    }
}

#[tokio::test]
async fn as_root_a_folder_that_postgres_cannot_enter_works_through_a_link() {
    if !geteuid().is_root() {
        return;
    }
    let home = DataDir::new();
    fs::create_dir(&home.0).expect("create");
    fs::set_permissions(&home.0, fs::Permissions::from_mode(0o700)).expect("private");
    let dir = DataDir::below(home.0.clone(), "");
    let embedded = dir.start().await;
    write(&embedded).await;
    embedded.stop().await;
    let cluster = fs::read_link(dir.0.join("pg")).expect("a link");
    assert!(!cluster.starts_with(&home.0));

    let embedded = dir.start().await;
    assert_kept(&embedded).await;
    embedded.stop().await;

    // Removing the data folder is how one starts afresh: the cluster elsewhere must not come back.
    fs::remove_dir_all(&dir.0).expect("remove");
    let server = dir.start_postgres().await;
    let tables = sqlx::query_scalar("SELECT count(*) FROM pg_tables WHERE tablename = 'kept'");
    let tables: i64 = tables.fetch_one(&mut postgres(&server).await).await.expect("count");
    assert_eq!(tables, 0);
    server.stop().await;
}

#[tokio::test]
async fn a_server_that_cannot_start_is_an_error_with_the_end_of_its_log() {
    let dir = DataDir::new();
    let settings = RedisSettings {
        extra_args: vec![String::from("--no-such-setting"), String::from("1")],
        ..Default::default()
    };
    let started = RedisServer::start(&dir.0, settings).await;
    let Some(EmbeddedError::KeepsEnding { tail, .. }) = started.err() else {
        panic!("it keeps ending");
    };
    assert!(tail.contains("no-such-setting"), "{tail}");
}

#[tokio::test]
async fn the_settings_that_the_invariants_rest_on_are_in_force() {
    let dir = DataDir::new();
    let embedded = dir.start().await;
    let mut database = postgres(&embedded.postgres).await;
    for setting in ["fsync", "synchronous_commit", "full_page_writes"] {
        let value = sqlx::query_scalar("SELECT current_setting($1)").bind(setting);
        let value: String = value.fetch_one(&mut database).await.expect("setting");
        assert_eq!(value, "on", "{setting}");
    }
    let mut redis = redis_connection(&embedded.redis.url()).await;
    for (setting, wanted) in [
        ("appendonly", "yes"),
        ("appendfsync", "always"),
        ("save", ""),
        ("maxmemory-policy", "noeviction"),
        ("port", "0"),
    ] {
        let mut query = redis::cmd("CONFIG");
        let value = query.arg(&["GET", setting]).query_async(&mut redis).await;
        assert_eq!(value, Ok([setting, wanted].map(str::to_owned).to_vec()));
    }
    embedded.stop().await;
}
