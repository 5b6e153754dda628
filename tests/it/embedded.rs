//! The embedded servers: leftovers, odd folders, errors, settings. More: `cli.rs`, `liveness.rs`.

use crate::support::{connect, launch::Folder, prelude::*};
use embedded::{Embedded, EmbeddedError, Options, PostgresServer, PostgresTuning, RedisFsync};
use embedded::{RedisServer, RedisSettings};
use nix::unistd::{User, geteuid};
use std::os::unix::fs::PermissionsExt;
use tokio::process::Command;

fn folder() -> Folder {
    Folder::create(&std::env::temp_dir(), "fs-it-").expect("a folder")
}

async fn start(data_dir: &Path) -> Embedded {
    let options = Options { data_dir: data_dir.to_owned(), redis_fsync: RedisFsync::Always };
    Embedded::start(&options).await.expect("start")
}

async fn start_postgres(data_dir: &Path) -> PostgresServer {
    PostgresServer::start(data_dir, PostgresTuning::default()).await.expect("Postgres starts")
}

async fn postgres(server: &PostgresServer) -> PgConnection {
    connect(server.address(), &server.address().database).await
}

async fn write(embedded: &Embedded) {
    let mut database = postgres(&embedded.postgres).await;
    let write = "CREATE TABLE kept (word text); INSERT INTO kept VALUES ('kept')";
    database.execute(write).await.expect("written");
    database.close().await.expect("close");
    let () = redis_connection(&embedded.redis.url()).await.set("word", "kept").await.expect("set");
}

async fn assert_kept(embedded: &Embedded) {
    let word = sqlx::query_scalar::<_, String>("SELECT word FROM kept");
    let word = word.fetch_one(&mut postgres(&embedded.postgres).await).await;
    assert_eq!(word.expect("select"), "kept");
    let word = redis_connection(&embedded.redis.url()).await.get("word").await;
    assert_eq!(word, Ok("kept".to_owned()));
}

#[tokio::test]
async fn a_leftover_postmaster_pid_does_not_stop_the_next_start() {
    let folder = folder();
    let data = folder.0.join("data");
    start_postgres(&data).await.stop().await;
    let pid_file = data.join("pg/postmaster.pid");
    // It has nothing to do with the server. Postgres takes a process of another user for dead.
    let user = geteuid().is_root().then(|| User::from_name("postgres").ok().flatten()).flatten();
    let mut sleep = Command::new("sleep");
    if let Some(user) = &user {
        sleep.uid(user.uid.as_raw());
    }
    let mut bystander = sleep.arg("600").kill_on_drop(true).spawn().expect("sleep starts");
    let of_the_bystander = format!(
        "{}\n{}\n1700000000\n5432\n{}\n\n  5432001         7\nready   \n",
        bystander.id().expect("it runs"),
        data.join("pg").display(),
        data.join("pg-socket").display(),
    );
    for leftover in [&of_the_bystander, "999999999\n", "", "not a pid\n"] {
        println!("with {leftover:?}");
        fs::write(&pid_file, leftover).expect("write");
        if let Some(user) = &user {
            nix::unistd::chown(&pid_file, Some(user.uid), Some(user.gid)).expect("chown");
        }
        fs::write(data.join("pg.pid"), leftover).expect("write");
        let server = start_postgres(&data).await;
        postgres(&server).await.close().await.expect("close");
        server.stop().await;
    }
    assert_eq!(bystander.try_wait().expect("wait"), None, "the bystander was killed");
}

#[tokio::test]
async fn a_long_or_odd_data_folder_gets_its_sockets_elsewhere() {
    let folder = folder();
    for name in [&"long-".repeat(30), "with, spaces 和"] {
        let embedded = start(&folder.0.join(name)).await;
        write(&embedded).await;
        assert_kept(&embedded).await;
        let socket_dir = embedded.postgres.address().socket_dir.clone();
        assert!(!socket_dir.starts_with(&folder.0));
        let permissions = fs::metadata(&socket_dir).expect("the socket's folder").permissions();
        assert_eq!(permissions.mode() & 0o777, 0o700);
        assert_settings(&embedded).await;
        embedded.stop().await;
        assert!(!socket_dir.exists(), "the temporary folder is cleaned up");
    }
}

/// The settings that the invariants rest on are in force.
async fn assert_settings(embedded: &Embedded) {
    let mut database = postgres(&embedded.postgres).await;
    for setting in ["fsync", "synchronous_commit", "full_page_writes"] {
        let value = sqlx::query_scalar::<_, String>("SELECT current_setting($1)").bind(setting);
        assert_eq!(value.fetch_one(&mut database).await.expect("setting"), "on", "{setting}");
    }
    let mut redis = redis_connection(&embedded.redis.url()).await;
    for (setting, wanted) in [
        ("appendonly", "yes"),
        ("appendfsync", "always"),
        ("save", ""),
        ("maxmemory-policy", "noeviction"),
        ("port", "0"),
    ] {
        let value = redis::cmd("CONFIG").arg(&["GET", setting]).query_async(&mut redis).await;
        assert_eq!(value, Ok([setting, wanted].map(str::to_owned).to_vec()));
    }
}

#[tokio::test]
async fn as_root_a_folder_that_postgres_cannot_enter_works_through_a_link() {
    if !geteuid().is_root() {
        return;
    }
    let private = folder();
    fs::set_permissions(&private.0, fs::Permissions::from_mode(0o700)).expect("private");
    let data = private.0.join("data");
    let embedded = start(&data).await;
    write(&embedded).await;
    embedded.stop().await;
    let cluster = fs::read_link(data.join("pg")).expect("a link");
    assert!(!cluster.starts_with(&private.0));
    let embedded = start(&data).await;
    assert_kept(&embedded).await;
    embedded.stop().await;
    // Removing the data folder is how one starts afresh: the cluster elsewhere must not come back.
    fs::remove_dir_all(&data).expect("remove");
    let server = start_postgres(&data).await;
    let kept = "SELECT FROM pg_tables WHERE tablename = 'kept'";
    assert!(postgres(&server).await.fetch_optional(kept).await.expect("SELECT").is_none());
    server.stop().await;
}

#[tokio::test]
async fn a_server_that_cannot_start_is_an_error_with_the_end_of_its_log() {
    let folder = folder();
    let extra_args = ["--no-such-setting", "1"].map(str::to_owned).to_vec();
    let settings = RedisSettings { extra_args, ..Default::default() };
    let error = RedisServer::start(&folder.0.join("data"), settings).await.err();
    let Some(EmbeddedError::KeepsEnding { tail, .. }) = error else { panic!("{error:?}") };
    assert!(tail.contains("no-such-setting"), "{tail}");
}
