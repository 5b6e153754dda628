//! The function library: what Redis decides atomically, in Lua, one concept a file in `library/`.
//!
//! Its name and those of its functions end in a hash of its source, so that two versions of the
//! program can run side by side on one Redis. Redis keeps functions with its data, so they are
//! loaded once; a server that does not know them is given them and asked again.

use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, ToRedisArgs, aio::ConnectionLike, cmd};
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

/// The one that this program calls.
pub static LIBRARY: LazyLock<Library> = LazyLock::new(|| Library::new(BODY));

impl Library {
    fn new(body: &str) -> Self {
        let digest = Sha256::digest(body);
        let version = digest[..4].iter().map(|byte| format!("{byte:02x}"));
        Self::named(version.collect(), body)
    }

    fn named(version: String, body: &str) -> Self {
        let head = format!("#!lua name=flash_sale_{version}\nlocal VERSION = '{version}'\n");
        Self {
            source: head + body,
            version,
        }
    }

    /// The same library under another name, with one expression replaced. For lessons and tests.
    pub fn variant(version: &str, from: &str, to: &str) -> Self {
        Self::named(version.to_owned(), &BODY.replace(from, to))
    }

    /// What Redis calls the library.
    pub fn name(&self) -> String {
        format!("flash_sale_{}", self.version)
    }

    /// What FUNCTION LOAD takes.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// What Redis calls this function.
    pub fn name_of(&self, function: &str) -> String {
        format!("{function}_{}", self.version)
    }

    /// Starts a call of a function of the library with so many keys.
    pub(super) fn call(&self, function: &str, keys: usize) -> Cmd {
        let mut call = cmd("FCALL");
        call.arg(self.name_of(function)).arg(keys);
        call
    }

    /// The same for a function that writes nothing.
    pub(super) fn call_read_only(&self, function: &str, keys: usize) -> Cmd {
        let mut call = cmd("FCALL_RO");
        call.arg(self.name_of(function)).arg(keys);
        call
    }

    /// Gives the library to every primary, where it is not there yet.
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
    run(call.arg(keys).arg(args), connection).await
}

/// Runs a call of a function; one that the server does not know is loaded first.
pub(super) async fn run<T: FromRedisValue>(
    call: &Cmd,
    connection: &mut impl ConnectionLike,
) -> Result<T, RedisError> {
    match call.query_async(connection).await {
        Err(error) if is_unknown_function(&error) => {
            // One primary of several may be away; whether this key's has it is seen next.
            if let Err(error) = LIBRARY.load(connection).await {
                tracing::debug!(%error, "the function library could not be loaded everywhere");
            }
            call.query_async(connection).await
        }
        other => other,
    }
}

/// Whether a call met a server that does not have the library (any more).
pub fn is_unknown_function(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_)) && error.to_string().contains("Function not found")
}
