//! The classification of Redis errors.

/// Whether a retry can help: Redis is unreachable, loading, no primary, or refuses all commands.
pub fn is_away(error: &redis::RedisError) -> bool {
    use redis::{ErrorKind, ServerErrorKind};
    error.is_io_error()
        || error.is_timeout()
        || error.is_connection_dropped()
        || error.is_connection_refusal()
        || matches!(
            error.kind(),
            ErrorKind::AuthenticationFailed
                | ErrorKind::ClusterConnectionNotFound
                | ErrorKind::MasterNameNotFoundBySentinel
                | ErrorKind::Server(
                    ServerErrorKind::BusyLoading
                        | ServerErrorKind::Moved
                        | ServerErrorKind::Ask
                        | ServerErrorKind::TryAgain
                        | ServerErrorKind::ClusterDown
                        | ServerErrorKind::MasterDown
                        | ServerErrorKind::ReadOnly
                )
        )
        || refuses_everything(error)
}

/// Whether Redis refuses every command or write: disk or memory full, too few replicas, a changed
/// password, a script without end, too many clients. An operator repairs that.
fn refuses_everything(error: &redis::RedisError) -> bool {
    // The first failure of a pipeline.
    let answers = error.clone().into_server_errors();
    let Some((_, answer)) = answers.as_deref().and_then(<[_]>::first) else {
        return false;
    };
    match answer.code() {
        "MISCONF" | "OOM" | "NOREPLICAS" | "NOAUTH" | "WRONGPASS" | "NOPERM" | "BUSY" => true,
        // "unauthenticated multibulk length" is about a password too.
        "ERR" => answer.details().is_some_and(|details| {
            details.starts_with("Protocol error") || details.starts_with("max number of clients")
        }),
        _ => false,
    }
}
