//! What the stage hand sees: keys, the queue, the shop. It looks through lines of its own,
//! unwatched, and waits for what only time brings.

use super::{super::error::Trouble, LOCK, STEP_TIMEOUT, Stage};
use locks::{
    LockError,
    wire::{Line, LuaScript},
    zookeeper::ZooError,
};
use std::{collections::BTreeMap, time::Duration};
use tokio::time::{sleep, timeout};

static LOOK: LuaScript = LuaScript::new("look.lua", include_str!("look.lua"));

impl Stage {
    pub(super) async fn hand(&self, node: &str) -> Result<Line, Trouble> {
        let mut hands = self.0.hands.lock().await;
        if let Some(line) = hands.get(node) {
            return Ok(line.clone());
        }
        let line = self.connect(node)?.of("stage hand");
        hands.insert(node.to_owned(), line.clone());
        Ok(line)
    }

    /// What every key on stage holds now: name, value, time left.
    pub(super) async fn look(&self) -> Result<Vec<(String, Option<String>, Option<i64>)>, Trouble> {
        let (shown, shop, zoo) = {
            let record = self.record();
            (record.shown.clone(), record.shop_is_open, record.zoo_is_shown)
        };
        let mut by_node: BTreeMap<&str, Vec<&'static str>> = BTreeMap::new();
        for (node, key) in &shown {
            by_node.entry(node).or_default().push(*key);
        }
        let several = by_node.len() > 1;
        let mut seen = Vec::new();
        for (node, keys) in by_node {
            let full: Vec<String> = keys.iter().map(|key| self.key(key)).collect();
            let full: Vec<&str> = full.iter().map(String::as_str).collect();
            let line = self.hand(node).await?;
            let call = LOOK.on(&full);
            let answer: Result<Vec<(Option<String>, i64)>, _> = line.run(&call).await;
            for (index, key) in keys.iter().enumerate() {
                let name = if several { format!("{node} {key}") } else { (*key).to_owned() };
                match &answer {
                    Ok(values) => {
                        let (value, ttl) = values.get(index).cloned().unwrap_or((None, -2));
                        seen.push((
                            name,
                            value.map(|text| self.readable(&text)),
                            (ttl >= 0).then_some(ttl),
                        ));
                    }
                    // The node is down. What it may remember is seen when it is back.
                    Err(_) => seen.push((name, None, None)),
                }
            }
        }
        if zoo {
            seen.extend(self.look_at_zoo().await?);
        }
        if shop {
            seen.extend(self.shop().look().await?);
        }
        Ok(seen)
    }

    async fn look_at_zoo(&self) -> Result<Vec<(String, Option<String>, Option<i64>)>, Trouble> {
        let client = self.0.environment.zoo_client().await?;
        let path = self.queue();
        let mut children = match client.children(&path).await {
            Ok(children) => children,
            Err(ZooError::NoNode) => Vec::new(),
            Err(error) => return Err(LockError::from(error).into()),
        };
        // By place in the queue: the number stands at the end of the name.
        children.sort_by_key(|child| child.rsplit('-').next().map(str::to_owned));
        let mut seen = Vec::new();
        for child in children {
            if let Ok((Some(czxid), _)) = client.watch(&format!("{path}/{child}")).await {
                let value = format!("czxid {czxid:#x}");
                seen.push((self.readable(&child), Some(value), None));
            }
        }
        Ok(seen)
    }

    /// Where the clients of ZooKeeper's lock stand in line.
    pub fn queue(&self) -> String {
        format!("/locks/{}", self.key(LOCK).replace('/', "_"))
    }

    /// Waits until nobody stands there.
    pub async fn until_queue_is_empty(&self) -> Result<(), Trouble> {
        self.until_queue_has(0).await
    }

    /// Waits until so many stand there.
    pub async fn until_queue_has(&self, nodes: usize) -> Result<(), Trouble> {
        let waiting = async {
            while self.look_at_zoo().await?.len() != nodes {
                sleep(Duration::from_millis(10)).await;
            }
            Ok(())
        };
        timeout(STEP_TIMEOUT, waiting)
            .await
            .unwrap_or(Err(Trouble::TooSlow("ZooKeeper's queue stays as it is")))
    }

    /// What Redis says of a key's time: -1 no expiry, -2 no such key.
    pub async fn pttl(&self, node: &str, key: &str) -> Result<i64, Trouble> {
        let line = self.hand(node).await?;
        let ttl = line.send(redis::cmd("PTTL").arg(self.key(key))).await;
        ttl.map_err(|error| line.lock_error(error).into())
    }

    /// Waits until a key is really gone.
    pub async fn until_gone(&self, node: &str, key: &str) -> Result<(), Trouble> {
        let gone = async {
            loop {
                match self.pttl(node, key).await? {
                    -2 => return Ok(()),
                    -1 => return Err(Trouble::NotAsWritten(format!("{key} never expires"))),
                    left => sleep(Duration::from_millis(left.unsigned_abs().clamp(1, 20))).await,
                }
            }
        };
        timeout(STEP_TIMEOUT, gone).await.unwrap_or(Err(Trouble::TooSlow("a lease did not end")))
    }

    /// Waits until a key is there.
    pub async fn until_there(&self, node: &str, key: &str) -> Result<(), Trouble> {
        let there = async {
            while self.pttl(node, key).await? == -2 {
                sleep(Duration::from_millis(2)).await;
            }
            Ok(())
        };
        timeout(STEP_TIMEOUT, there).await.unwrap_or(Err(Trouble::TooSlow("a key does not come")))
    }

    /// Whether the lock is there for ever: no expiry, and nobody who would give it back.
    pub async fn is_stuck(&self, node: &str) -> Result<bool, Trouble> {
        Ok(self.pttl(node, LOCK).await? == -1 && !self.is_believed())
    }
}
