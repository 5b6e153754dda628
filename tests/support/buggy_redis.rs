//! A Redis with a bug, planted from outside: a proxy in front of it changes what clients ask.

use super::serve_each;
use redis::parse_redis_value_async;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncWriteExt, copy};
use tokio::net::{TcpStream, UnixStream};

pub type Command = Vec<Vec<u8>>;
pub type Bug = fn(Command) -> Command;

/// The lock is taken whoever has it: `SET … NX GET` does not look at the owner.
pub fn take_from_anybody(command: Command) -> Command {
    let is = |word: &str| command.iter().any(|one| one.eq_ignore_ascii_case(word.as_bytes()));
    if !(is("SET") && is("NX") && is("GET") && is("PX")) {
        return command;
    }
    let script = "redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return false";
    let lease = command.last().cloned().unwrap_or_default();
    let words = [b"EVAL".to_vec(), script.into(), b"1".to_vec()];
    words.into_iter().chain([command[1].clone(), command[2].clone(), lease]).collect()
}

pub fn getset_only_reads(command: Command) -> Command {
    if command[0].eq_ignore_ascii_case(b"GETSET") {
        return vec![b"GET".to_vec(), command[1].clone()];
    }
    command
}

/// The release does not compare: it deletes whatever lock there is.
pub fn release_anybodys(command: Command) -> Command {
    let is_script = command[0].to_ascii_uppercase().starts_with(b"EVAL");
    if !(is_script && command.get(4).is_some_and(|key| key.ends_with(b":freed"))) {
        return command;
    }
    let words = [b"EVAL".to_vec(), b"return redis.call('DEL', KEYS[1])".to_vec(), b"1".to_vec()];
    words.into_iter().chain([command[3].clone()]).collect()
}

pub fn forget_scripts(mut command: Command) -> Command {
    if command[0].eq_ignore_ascii_case(b"EVALSHA") {
        command[1] = b"0".repeat(40);
    }
    command
}

/// Its URL.
pub async fn buggy_redis(socket: &Path, bug: Bug) -> String {
    let socket = socket.to_owned();
    format!("redis://{}", serve_each(move |client| pass(client, socket.clone(), bug)).await)
}

async fn pass(client: TcpStream, socket: PathBuf, bug: Bug) {
    let Ok(server) = UnixStream::connect(socket).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let mut decoder = combine::stream::Decoder::new();
    let requests = async {
        while let Ok(request) = parse_redis_value_async(&mut decoder, &mut from_client).await {
            let command = bug(redis::from_redis_value(request).expect("a command"));
            let sent = redis::Cmd::new().arg(command).get_packed_command();
            // Of a server that has gone its replies tell.
            to_server.write_all(&sent).await.ok();
        }
    };
    tokio::select! {
        () = requests => {}
        _ = copy(&mut from_server, &mut to_client) => {}
    }
}
