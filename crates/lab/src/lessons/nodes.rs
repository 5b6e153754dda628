//! Redis servers that belong to one play, which may kill them. They keep nothing on disk, so one
//! that is killed comes back empty.

use super::error::{LessonError, Result};
use super::timeline::Name;
use super::waiting::{STEP_TIMEOUT, in_time, until};
use crate::losses::until_back;
use crate::servers::{OwnRedis, Servers};
use locks::wire::Line;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One server in one play.
pub struct Node {
    /// Its name on stage.
    pub id: Name,
    redis: OwnRedis,
    /// The connection of the director and the stage hand.
    pub hand: Line,
}

impl Node {
    /// A server, with more flags of `redis-server` if need be.
    pub(super) async fn start(servers: &Servers, id: Name, flags: &[String]) -> Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let name = format!("lessons/{}-{number}", std::process::id());
        let redis = servers.own_redis(&name, flags).await.map_err(LessonError::no_server)?;
        // The library's own half a second is less than a busy machine may need.
        let hand = Line::with_timeout(&redis.server.url(), STEP_TIMEOUT)?.to(id).of("stage hand");
        Ok(Self { id, redis, hand })
    }

    pub(super) async fn end(self) {
        self.redis.server.stop().await;
    }

    /// The line of its INFO that begins so.
    pub async fn info(&self, section: &str, begins: &str) -> Result<String> {
        let info: String = self.hand.send(redis::cmd("INFO").arg(section)).await?;
        let line = info.lines().find(|line| line.starts_with(begins));
        Ok(line.map_or_else(|| format!("(no {begins})"), str::to_owned))
    }

    /// Waits until this replica has all that its primary has.
    pub async fn until_synchronised(&self) -> Result {
        let link = || self.info("replication", "master_link_status:");
        let is_up = || async move { Ok(link().await?.ends_with(":up")) };
        until("replication does not get ready", is_up).await
    }

    /// `kill -9`. It is started again a moment later, as by any service manager; answers which
    /// process it was, for [`Node::until_back`].
    pub fn kill(&self) -> Option<u32> {
        let before = self.redis.server.pid();
        self.redis.server.kill();
        before
    }

    /// Waits until another process than this one answers.
    pub async fn until_back(&self, before: Option<u32>) -> Result {
        Ok(in_time(until_back(&self.redis.server, before), "a node does not come back").await??)
    }

    /// `kill -9`, and waits until it has been started again, with nothing.
    pub async fn restart(&self) -> Result {
        let before = self.kill();
        self.until_back(before).await
    }
}
