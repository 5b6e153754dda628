//! The function library: the atomic steps in Lua, one concept a file in `library/`.
//!
//! The names of the library and its functions end in a hash of the source, so that two versions of
//! the program can share a Redis. Redis keeps functions with its data; a server that does not know
//! them is loaded, and asked again.

use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, ToRedisArgs, cmd};
use sha2::{Digest, Sha256};
use std::sync::LazyLock;

const BODY: &str = concat!(
    include_str!("library/prelude.lua"),
    include_str!("library/admit.lua"),
    include_str!("library/sale.lua"),
    include_str!("library/orders.lua"),
    include_str!("library/ids.lua"),
    include_str!("library/room.lua"),
    include_str!("library/limit.lua"),
);

/// A version of the library.
pub struct Library {
    version: String,
    source: String,
}

/// The library of this version.
pub static LIBRARY: LazyLock<Library> = LazyLock::new(|| Library::new(BODY));

impl Library {
    fn new(body: &str) -> Self {
        let digest = Sha256::digest(body);
        let version = digest[..4].iter().map(|byte| format!("{byte:02x}"));
        Self::named(version.collect(), body)
    }

    fn named(version: String, body: &str) -> Self {
        let head = format!("#!lua name=flash_sale_{version}\nlocal VERSION = '{version}'\n");
        Self { source: head + body, version }
    }

    /// The same library under another name, with one expression replaced. For lessons and tests.
    pub fn variant(version: &str, from: &str, to: &str) -> Self {
        Self::named(version.to_owned(), &BODY.replace(from, to))
    }

    /// The name of the library in Redis.
    pub fn name(&self) -> String {
        format!("flash_sale_{}", self.version)
    }

    /// The source for FUNCTION LOAD.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The name of a function in Redis.
    pub fn name_of(&self, function: &str) -> String {
        format!("{function}_{}", self.version)
    }

    /// An FCALL of a function with so many keys.
    pub(super) fn call(&self, function: &str, keys: usize) -> Cmd {
        let mut call = cmd("FCALL");
        call.arg(self.name_of(function)).arg(keys);
        call
    }

    /// An FCALL_RO, for functions that write nothing.
    pub(super) fn call_read_only(&self, function: &str, keys: usize) -> Cmd {
        let mut call = cmd("FCALL_RO");
        call.arg(self.name_of(function)).arg(keys);
        call
    }

    /// Runs a call; loads the library where the server does not know it.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        call: &Cmd,
        connection: &mut impl ConnectionLike,
    ) -> Result<T, RedisError> {
        match call.query_async(connection).await {
            Err(error) if is_unknown_function(&error) => {
                // One of several primaries may be away; the second call shows whether it is this
                // key's.
                if let Err(error) = self.load(connection).await {
                    tracing::debug!(%error, "the function library could not be loaded everywhere");
                }
                call.query_async(connection).await
            }
            other => other,
        }
    }

    /// Loads the library on every primary that lacks it.
    pub async fn load(&self, connection: &mut impl ConnectionLike) -> Result<(), RedisError> {
        let mut load = cmd("FUNCTION");
        load.arg("LOAD").arg(&self.source);
        match load.exec_async(connection).await {
            Err(error) if !error.to_string().contains("already exists") => Err(error),
            _ => Ok(()),
        }
    }
}

/// Calls a function of the library with these keys and arguments.
pub async fn ask<T: FromRedisValue>(
    connection: &mut impl ConnectionLike,
    function: &str,
    keys: &[String],
    args: impl ToRedisArgs,
) -> Result<T, RedisError> {
    let mut call = LIBRARY.call(function, keys.len());
    LIBRARY.run(call.arg(keys).arg(args), connection).await
}

/// Whether the server does not have the library.
pub fn is_unknown_function(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_)) && error.to_string().contains("Function not found")
}
