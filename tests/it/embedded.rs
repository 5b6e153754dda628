//! The embedded servers: they keep data, survive deaths of their own and leftovers of others, and never share a folder.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use flash_sale::embedded::{
    Embedded, EmbeddedError, Options, PostgresServer, PostgresTuning, RedisFsync, RedisServer,
    RedisSettings,
};
use nix::unistd::geteuid;
use redis::AsyncCommands;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection, Executor};

/// A data folder of its own, removed afterwards together with what it links to.
struct DataDir(PathBuf);

impl DataDir {
    fn new() -> DataDir {
        DataDir::below(std::env::temp_dir(), "")
    }

    fn below(parent: PathBuf, suffix: &str) -> DataDir {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "fs-it-{}-{}{suffix}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        DataDir(parent.join(name))
    }

    fn options(&self) -> Options {
        Options {
            data_dir: self.0.clone(),
            redis_fsync: RedisFsync::Always,
        }
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        if let Some(home) = fs::read_link(self.0.join("pg"))
            .ok()
            .and_then(|cluster| cluster.parent().map(Path::to_path_buf))
        {
            fs::remove_dir_all(&home).ok();
            // Only if it is empty now.
            home.parent().map(fs::remove_dir);
        }
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Some process that is not ours to the server, ended with the test.
struct Bystander(Child);

impl Bystander {
    fn start() -> Bystander {
        let mut command = Command::new("sleep");
        // Postgres takes a process of another user for dead, so as root it has to be Postgres's user.
        if geteuid().is_root()
            && let Ok(Some(user)) = nix::unistd::User::from_name("postgres")
        {
            use std::os::unix::process::CommandExt;
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

async fn postgres(server: &PostgresServer) -> Result<PgConnection, sqlx::Error> {
    let address = server.address();
    PgConnectOptions::new()
        .socket(&address.socket_dir)
        .port(address.port)
        .username(&address.user)
        .database(&address.database)
        .connect()
        .await
}

async fn redis(url: &str) -> redis::RedisResult<redis::aio::MultiplexedConnection> {
    redis::Client::open(url)?
        .get_multiplexed_async_connection()
        .await
}

/// Polls until a server has another pid than `before`.
async fn restarted(before: Option<u32>, pid: impl Fn() -> Option<u32>) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while pid().is_none() || pid() == before {
        assert!(Instant::now() < deadline, "not restarted");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn write(embedded: &Embedded) {
    let mut database = postgres(embedded.postgres_server()).await.expect("connect");
    database
        .execute("CREATE TABLE kept (word text)")
        .await
        .expect("create");
    database
        .execute("INSERT INTO kept VALUES ('kept')")
        .await
        .expect("insert");
    database.close().await.expect("close");
    let () = redis(&embedded.redis_url())
        .await
        .expect("connect")
        .set("word", "kept")
        .await
        .expect("set");
}

async fn assert_kept(embedded: &Embedded) {
    let mut database = postgres(embedded.postgres_server()).await.expect("connect");
    let word: String = sqlx::query_scalar("SELECT word FROM kept")
        .fetch_one(&mut database)
        .await
        .expect("select");
    assert_eq!(word, "kept");
    let word: String = redis(&embedded.redis_url())
        .await
        .expect("connect")
        .get("word")
        .await
        .expect("get");
    assert_eq!(word, "kept");
}

#[tokio::test]
async fn data_survive_a_stop_and_a_start() {
    let dir = DataDir::new();
    let embedded = Embedded::start(&dir.options()).await.expect("start");
    write(&embedded).await;
    let pids = [
        embedded.postgres_server().pid(),
        embedded.redis_server().pid(),
    ];
    embedded.stop().await;
    for pid in pids.into_iter().flatten() {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).expect("a pid"));
        assert!(
            nix::sys::signal::kill(pid, None).is_err(),
            "still runs after stop"
        );
    }

    let embedded = Embedded::start(&dir.options()).await.expect("start again");
    assert_kept(&embedded).await;
    // Dropped this time: as if the program had crashed.
    drop(embedded);

    let embedded = Embedded::start(&dir.options())
        .await
        .expect("start after a crash");
    assert_kept(&embedded).await;
    embedded.stop().await;
}

#[tokio::test]
async fn a_killed_server_comes_back_on_the_same_socket_with_its_data() {
    let dir = DataDir::new();
    let embedded = Embedded::start(&dir.options()).await.expect("start");
    write(&embedded).await;
    let (address, url) = (embedded.postgres().clone(), embedded.redis_url());
    for _ in 0..2 {
        let (postgres, redis) = (embedded.postgres_server(), embedded.redis_server());
        let before = (postgres.pid(), redis.pid());
        postgres.kill();
        redis.kill();
        restarted(before.0, || postgres.pid()).await;
        restarted(before.1, || redis.pid()).await;
        postgres
            .wait_ready()
            .await
            .expect("Postgres is ready again");
        redis.wait_ready().await.expect("Redis is ready again");
        assert_eq!(
            (embedded.postgres(), embedded.redis_url()),
            (&address, url.clone())
        );
        assert_kept(&embedded).await;
    }
    embedded.stop().await;
}

#[tokio::test]
async fn a_leftover_postmaster_pid_does_not_stop_the_next_start() {
    let dir = DataDir::new();
    let start = || PostgresServer::start(&dir.0, PostgresTuning::default());
    start().await.expect("start").stop().await;
    let pid_file = dir.0.join("pg/postmaster.pid");
    let bystander = Bystander::start();
    let of_a_living_stranger = format!(
        "{}\n{}\n1700000000\n5432\n{}\n\n  5432001         7\nready   \n",
        bystander.0.id(),
        dir.0.join("pg").display(),
        dir.0.join("pg-socket").display(),
    );
    for leftover in [
        of_a_living_stranger.as_str(),
        "999999999\n",
        "",
        "not a pid\n",
    ] {
        fs::write(&pid_file, leftover).expect("write");
        if let (true, Ok(Some(user))) = (
            geteuid().is_root(),
            nix::unistd::User::from_name("postgres"),
        ) {
            nix::unistd::chown(&pid_file, Some(user.uid), Some(user.gid)).expect("chown");
        }
        fs::write(dir.0.join("pg.pid"), leftover).expect("write");
        let server = start()
            .await
            .unwrap_or_else(|error| panic!("with {leftover:?}: {error}"));
        postgres(&server).await.expect("connect");
        server.stop().await;
    }
    let stranger = nix::unistd::Pid::from_raw(i32::try_from(bystander.0.id()).expect("a pid"));
    assert!(
        nix::sys::signal::kill(stranger, None).is_ok(),
        "a stranger was killed"
    );
}

#[tokio::test]
async fn a_second_program_on_the_same_folder_is_refused() {
    let dir = DataDir::new();
    let first = Embedded::start(&dir.options()).await.expect("start");
    write(&first).await;
    let refusal = Embedded::start(&dir.options())
        .await
        .err()
        .expect("refused");
    assert!(
        matches!(refusal, EmbeddedError::InUse { pid: Some(pid), .. } if pid == std::process::id()),
        "{refusal}"
    );
    // And the first is none the worse for it.
    assert_kept(&first).await;
    first.stop().await;
}

#[tokio::test]
async fn a_long_or_odd_data_folder_gets_its_sockets_elsewhere() {
    for suffix in ["-long".repeat(30), String::from(" with, spaces 和")] {
        let dir = DataDir::below(std::env::temp_dir(), &suffix);
        let embedded = Embedded::start(&dir.options()).await.expect("start");
        write(&embedded).await;
        assert_kept(&embedded).await;
        let socket_dir = embedded.postgres().socket_dir.clone();
        assert!(!socket_dir.starts_with(&dir.0));
        let mode = fs::metadata(&socket_dir)
            .expect("the socket's folder")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o700);
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
    let embedded = Embedded::start(&dir.options()).await.expect("start");
    write(&embedded).await;
    embedded.stop().await;
    let cluster = fs::read_link(dir.0.join("pg")).expect("a link");
    assert!(!cluster.starts_with(&home.0));

    let embedded = Embedded::start(&dir.options()).await.expect("start again");
    assert_kept(&embedded).await;
    embedded.stop().await;

    // Removing the data folder is how one starts afresh: the cluster elsewhere must not come back.
    fs::remove_dir_all(&dir.0).expect("remove");
    let server = PostgresServer::start(&dir.0, PostgresTuning::default())
        .await
        .expect("start afresh");
    let tables: i64 = sqlx::query_scalar("SELECT count(*) FROM pg_tables WHERE tablename = 'kept'")
        .fetch_one(&mut postgres(&server).await.expect("connect"))
        .await
        .expect("count");
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
    let error = RedisServer::start(&dir.0, settings)
        .await
        .err()
        .expect("refused");
    assert!(
        matches!(&error, EmbeddedError::KeepsEnding { tail, .. } if tail.contains("no-such-setting")),
        "{error}"
    );
}

#[tokio::test]
async fn the_settings_that_the_invariants_rest_on_are_in_force() {
    let dir = DataDir::new();
    let embedded = Embedded::start(&dir.options()).await.expect("start");
    let mut database = postgres(embedded.postgres_server()).await.expect("connect");
    for setting in ["fsync", "synchronous_commit", "full_page_writes"] {
        let value: String = sqlx::query_scalar("SELECT current_setting($1)")
            .bind(setting)
            .fetch_one(&mut database)
            .await
            .expect("setting");
        assert_eq!((setting, value.as_str()), (setting, "on"));
    }
    let mut cache = redis(&embedded.redis_url()).await.expect("connect");
    for (setting, wanted) in [
        ("appendonly", "yes"),
        ("appendfsync", "always"),
        ("save", ""),
        ("maxmemory-policy", "noeviction"),
        ("port", "0"),
    ] {
        let value: Vec<String> = redis::cmd("CONFIG")
            .arg("GET")
            .arg(setting)
            .query_async(&mut cache)
            .await
            .expect("setting");
        assert_eq!(value, [setting, wanted]);
    }
    embedded.stop().await;
}
