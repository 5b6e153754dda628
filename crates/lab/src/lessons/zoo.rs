//! Sessions with ZooKeeper, for the lesson on it: through a proxy, and away again.

use super::{prelude::*, proxy::Proxy};
use locks::zookeeper::{ROOT, Zoo, ZooSession};
use locks::{LockError, ZooKeeperLock};
use tokio::time::{sleep, timeout};

pub async fn opens(stage: &Stage, act: &str) -> Result<[Client; 2]> {
    let clients = stage.act(act, ["alice", "bob"]).await?;
    stage.show_zoo();
    // Before the curtain rises: what is lost on stage is to be the reply to the create of a place.
    let session = stage.zoo_session().await?;
    session.make_folders(&stage.queue()).await.map_err(LockError::from)?;
    Ok(clients)
}

/// `held` keeps sessions open.
pub async fn leave<T, const N: usize>(
    stage: &Stage,
    clients: [Client; 2],
    held: T,
    sessions: [Zoo; N],
) -> Result {
    clients.iter().for_each(Client::leaves);
    drop(held);
    for zoo in sessions {
        zoo.close().await;
    }
    stage.until_queue_has(0).await
}

pub fn lock(client: &Client, address: &str, session: Duration) -> (Zoo, ZooKeeperLock) {
    let zoo = client.zoo(address, session);
    (zoo.clone(), ZooKeeperLock(zoo))
}

/// As long as the server grants.
pub const LONG_SESSION: Duration = Duration::from_secs(20);

pub async fn proxy_to(zookeeper: &str) -> Result<Proxy> {
    Ok(Proxy::start(zookeeper.to_owned()).await.map_err(redis::RedisError::from)?)
}

/// The library connects again by itself, and its session goes on.
pub async fn is_back(session: &ZooSession) -> Result {
    let answered = async {
        while let Err(error) = session.sync(ROOT).await {
            if error.is_final() {
                return Err(LockError::from(error).into());
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    };
    let late = Err(LessonError::TooSlow("a connection does not come back"));
    timeout(LONG_SESSION, answered).await.unwrap_or(late)
}
