//! Sessions with ZooKeeper, for the lesson on it: through a proxy, and away again.

use super::{prelude::*, proxy::Proxy};
use locks::zookeeper_client::{Acls, Client as Session, CreateMode, Error, SessionState};
use locks::{LockError, ZooKeeperLock, zookeeper::Zoo};

pub async fn opens(stage: &Stage, act: &str) -> Result<[Client; 2], Trouble> {
    stage.act(act).await?;
    stage.show_zoo();
    // Before the curtain rises: what is lost on stage is to be the reply to the create of a place.
    make_folder(&stage.environment().zoo_client().await?, &stage.queue()).await?;
    Ok(stage.clients(["alice", "bob"]))
}

/// `held` keeps sessions open.
pub async fn leave<T, const N: usize>(
    stage: &Stage,
    clients: [Client; 2],
    held: T,
    sessions: [Zoo; N],
) -> Result<(), Trouble> {
    clients.iter().for_each(Client::leaves);
    drop(held);
    for zoo in sessions {
        zoo.close().await;
    }
    stage.until_queue_is_empty().await
}

pub fn lock(client: &Client, address: &str, session: Duration) -> (Zoo, ZooKeeperLock) {
    let zoo = client.zoo(address, session);
    (zoo.clone(), ZooKeeperLock::new(zoo))
}

/// As long as the server grants.
pub const LONG_SESSION: Duration = Duration::from_secs(20);

/// A proxy, and a session through it.
pub async fn behind_a_proxy(zookeeper: &str) -> Result<(Proxy, Session), Trouble> {
    let proxy = Proxy::start(zookeeper.to_owned()).await.map_err(redis::RedisError::from)?;
    let session = Session::connector()
        .with_session_timeout(LONG_SESSION)
        .connect(&proxy.address.to_string())
        .await
        .map_err(LockError::from)?;
    Ok((proxy, session))
}

async fn make_folder(session: &Session, path: &str) -> Result<(), Trouble> {
    for (path, mode) in [("/locks", CreateMode::Persistent), (path, CreateMode::Container)] {
        let options = mode.with_acls(Acls::anyone_all());
        match session.create(path, b"", &options).await {
            Ok(_) | Err(Error::NodeExists) => {}
            Err(error) => return Err(LockError::from(error).into()),
        }
    }
    Ok(())
}

/// The library connects again by itself, and its session goes on.
pub async fn is_back(session: &Session) -> Result<(), Trouble> {
    let mut states = session.state_watcher();
    let connected = async {
        let mut state = session.state();
        while state != SessionState::SyncConnected {
            if state.is_terminated() {
                return Err(Trouble::TooSlow("a session ended that should go on"));
            }
            state = states.changed().await;
        }
        Ok(())
    };
    tokio::time::timeout(LONG_SESSION, connected)
        .await
        .unwrap_or(Err(Trouble::TooSlow("a connection does not come back")))
}
