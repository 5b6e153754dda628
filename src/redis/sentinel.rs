//! Asking Sentinels where the primary is.

use super::{
    CONNECT_TIMEOUT, RESPONSE_TIMEOUT,
    address::{HostPort, Login},
};
use redis::{AsyncConnectionConfig, ErrorKind, RedisError, aio::MultiplexedConnection};
use tokio::sync::Mutex;

/// One Sentinel. Not in a pool: deadpool's ping is a command that Sentinels do not know.
pub struct Sentinel {
    client: redis::Client,
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl Sentinel {
    pub fn new(at: &str, login: &Login) -> Result<Self, RedisError> {
        Ok(Self {
            client: redis::Client::open(login.url(at))?,
            connection: Mutex::default(),
        })
    }

    /// Where this Sentinel says the primary of this name is; `None` if it watches none of this name.
    pub async fn primary(&self, name: &str) -> Result<Option<HostPort>, RedisError> {
        let mut kept = self.connection.lock().await;
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => {
                let config = AsyncConnectionConfig::new()
                    .set_response_timeout(Some(RESPONSE_TIMEOUT))
                    .set_connection_timeout(Some(CONNECT_TIMEOUT));
                self.client
                    .get_multiplexed_async_connection_with_config(&config)
                    .await?
            }
        };
        let found: Option<(String, u16)> = redis::cmd("SENTINEL")
            .arg("get-master-addr-by-name")
            .arg(name)
            .query_async(&mut connection)
            .await
            .map_err(|error| match error.code() {
                // "unknown command": every server knows what it is, but not what it is not.
                Some("ERR") => RedisError::from((
                    ErrorKind::InvalidClientConfig,
                    "this server is not a Sentinel: write redis://host:port",
                )),
                _ => error,
            })?;
        *kept = Some(connection); // it works
        Ok(found.map(|(host, port)| match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        }))
    }
}
