//! The servers that plays run on.

use super::{error::Trouble, nodes::Nodes};
use crate::{
    servers::{self, Servers},
    strategy::{Need, Words},
};
use embedded::{ZooKeeperServer, ZooKeeperSettings};
use locks::{
    LockError,
    zookeeper::{Zoo, ZooSession},
};
use std::{sync::Arc, time::Duration};
use tokio::{sync::Mutex, time::Instant};

/// The servers that plays run on.
pub struct Environment {
    pub servers: Arc<Servers>,
    /// Servers of single plays.
    pub nodes: Nodes,
    zookeeper: Mutex<Option<ZooKeeperServer>>,
    /// The stage hand's own session with it.
    zoo: Mutex<Option<Zoo>>,
}

impl Environment {
    pub fn new(servers: Arc<Servers>) -> Self {
        Self {
            nodes: Nodes::new(servers.data_dir.clone()),
            servers,
            zookeeper: Mutex::default(),
            zoo: Mutex::default(),
        }
    }

    /// Where ZooKeeper is, `host:port`; started when it is first needed.
    pub async fn zookeeper(&self) -> Result<String, Trouble> {
        let starting = async || {
            let folder =
                self.servers.data_dir.as_ref().map(|folder| folder.join("zookeeper-lessons"));
            let folder =
                folder.ok_or_else(|| Trouble::NotAsWritten("no servers here".to_owned()))?;
            let runtime = tokio::runtime::Handle::current();
            let starting = tokio::task::spawn_blocking(move || {
                runtime.block_on(ZooKeeperServer::start(&folder, ZooKeeperSettings::default()))
            });
            let started =
                starting.await.map_err(|error| Trouble::NotAsWritten(error.to_string()))?;
            Ok::<_, Trouble>(started?)
        };
        let mut running = self.zookeeper.lock().await;
        let server = match running.take() {
            Some(server) => server,
            None => starting().await?,
        };
        Ok(running.insert(server).address().to_string())
    }

    pub async fn zoo_client(&self) -> Result<ZooSession, Trouble> {
        // Nobody on stage waits for this session's end.
        const TIMEOUT: Duration = Duration::from_secs(20);
        let address = self.zookeeper().await?;
        let mut zoo = self.zoo.lock().await;
        let zoo = zoo.get_or_insert_with(|| Zoo::new(&address, TIMEOUT));
        Ok(zoo.session(Instant::now()).await.map_err(LockError::from)?)
    }

    pub async fn lacks(&self, need: Need) -> Option<Words> {
        match need {
            _ if self.servers.data_dir.is_none() => Some(Words::new(
                "This lesson needs servers of its own. Run embedded (without DATABASE_URL and \
                 REDIS_URL) to have them started.",
                "这一课需要自己专用的服务器。请以内嵌方式运行（不设置 DATABASE_URL 和 REDIS_URL），程序会自动启动它们。",
            )),
            Need::RedisNodes(_) => None,
            Need::ZooKeeper if !cfg!(feature = "zookeeper") => Some(servers::NO_CLIENT),
            Need::ZooKeeper if ZooKeeperServer::check().await.is_ok() => None,
            Need::ZooKeeper => Some(Words::new(
                "ZooKeeper is missing; install it: apt-get install libzookeeper-java \
                 default-jre-headless",
                "缺少 ZooKeeper，安装命令：apt-get install libzookeeper-java default-jre-headless",
            )),
        }
    }

    /// Ends the servers that are kept for later plays.
    pub async fn close(&self) {
        self.nodes.close().await;
        *self.zoo.lock().await = None;
        if let Some(server) = self.zookeeper.lock().await.take() {
            server.stop().await;
        }
    }
}
