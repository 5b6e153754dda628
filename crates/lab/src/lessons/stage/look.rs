//! What the stage hand sees: keys, the queue, the shop. It looks through the stage's lines,
//! unwatched, and waits for what only time brings.

use super::super::error::{LessonError, Result};
use super::super::timeline::{KeyState, Keys, Name};
use super::super::waiting::{STEP_TIMEOUT, until};
use super::{LOCK, Stage};
use crate::servers::OwnZooKeeper;
use locks::LockError;
use locks::wire::{Line, LuaScript};
use locks::zookeeper::{Zoo, ZooError, ZooSession};
use std::sync::Arc;
use tokio::time::Instant;

static LOOK: LuaScript = LuaScript::new("look.lua", include_str!("look.lua"));

impl Stage {
    /// The stage hand's connection to a node.
    pub(super) fn hand(&self, node: &str) -> Line {
        let nodes = self.0.nodes.lock();
        let private = nodes.iter().find(|one| one.id == node).map(|one| &one.hand);
        private.unwrap_or(&self.0.redis).clone()
    }

    /// What every key on stage holds now.
    pub(super) async fn look(&self) -> Result<Keys> {
        let (shown, shop, zoo) = {
            let scene = &self.0.record.lock().scene;
            (scene.shown.clone(), scene.shows_shop, scene.shows_zoo)
        };
        let several = shown.iter().any(|(node, _)| *node != shown[0].0);
        let mut seen = Keys::new();
        for (node, key) in shown {
            let looking = LOOK.on(&[&self.key(key)]);
            // The node may be down. What it remembers is seen when it is back.
            let found: Result<(Option<String>, i64), _> = self.hand(node).send(&looking).await;
            let (value, ttl) = found.unwrap_or((None, -2));
            let name = if several { format!("{node} {key}") } else { key.to_owned() };
            let value = value.map(|text| self.readable(&text));
            seen.insert(name, KeyState::of(value, (ttl >= 0).then_some(ttl)));
        }
        if zoo {
            seen.extend(self.look_at_zoo().await?);
        }
        if shop {
            seen.extend(self.shop().look().await?);
        }
        Ok(seen)
    }

    /// ZooKeeper, and the stage hand's own session with it.
    async fn zoo(&self) -> Result<&(Arc<OwnZooKeeper>, ZooSession)> {
        let opening = || async {
            let server = self.0.servers.zookeeper().await.map_err(LessonError::no_server)?;
            let zoo = Zoo::new(&server.server.cluster(), STEP_TIMEOUT);
            let session = zoo.session(Instant::now()).await.map_err(LockError::from)?;
            Ok::<_, LessonError>((server, session))
        };
        self.0.zoo.get_or_try_init(opening).await
    }

    /// Where ZooKeeper is, `host:port`; started when it is first needed.
    pub async fn zookeeper(&self) -> Result<String> {
        Ok(self.zoo().await?.0.server.cluster())
    }

    pub async fn zoo_session(&self) -> Result<&ZooSession> {
        Ok(&self.zoo().await?.1)
    }

    async fn look_at_zoo(&self) -> Result<Keys> {
        let session = self.zoo_session().await?;
        let path = self.queue();
        let children = match session.children(&path).await {
            Ok(children) => children,
            Err(ZooError::NoNode) => Vec::new(),
            Err(error) => return Err(LockError::from(error).into()),
        };
        let mut seen = Keys::new();
        for child in children {
            if let Ok(Some(czxid)) = session.stat(&format!("{path}/{child}")).await {
                let value = Some(format!("czxid {czxid:#x}"));
                seen.insert(self.readable(&child), KeyState::of(value, None));
            }
        }
        Ok(seen)
    }

    /// Where the clients of ZooKeeper's lock stand in line.
    pub fn queue(&self) -> String {
        format!("/locks/{}", self.key(LOCK).replace('/', "_"))
    }

    /// Waits until so many stand there.
    pub async fn until_queue_has(&self, nodes: usize) -> Result {
        let is_so = || async move { Ok(self.look_at_zoo().await?.len() == nodes) };
        until("ZooKeeper's queue stays as it is", is_so).await
    }

    /// What Redis says of a key's time: -1 no expiry, -2 no such key.
    pub async fn pttl(&self, node: &str, key: &str) -> Result<i64> {
        Ok(self.hand(node).ask(redis::cmd("PTTL").arg(self.key(key))).await?)
    }

    /// Waits until a key is really gone.
    pub async fn until_gone(&self, node: &str, key: &str) -> Result {
        let is_gone = || async move {
            match self.pttl(node, key).await? {
                -1 => Err(LessonError::NotAsWritten(format!("{key} never expires"))),
                left => Ok(left == -2),
            }
        };
        until("a lease did not end", is_gone).await
    }

    /// Waits until the lock's lease is over on this node, and tells it.
    #[track_caller]
    pub fn expires(&self, node: Name) -> impl Future<Output = Result> + Send {
        let expired = self.happens(node, "expired");
        async move {
            self.until_gone(node, LOCK).await?;
            expired.await
        }
    }

    /// Waits until a key is there.
    pub async fn until_there(&self, node: &str, key: &str) -> Result {
        let is_there = || async move { Ok(self.pttl(node, key).await? != -2) };
        until("a key does not come", is_there).await
    }

    /// Whether the lock is there for ever: no expiry, and nobody who would give it back.
    pub async fn is_stuck(&self, node: &str) -> Result<bool> {
        Ok(self.pttl(node, LOCK).await? == -1 && !self.is_believed())
    }
}
