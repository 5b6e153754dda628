//! The reading end of an event stream.

use super::{app::TEST_TIMEOUT, people::Ask};
use reqwest::Response;
use serde_json::Value;

pub struct Events {
    pub response: Response,
    unread: String,
}

impl Events {
    pub async fn of(ask: Ask) -> Self {
        let response = ask.begin().await;
        assert_eq!(response.status(), 200);
        Self::from(response)
    }

    pub fn from(response: Response) -> Self {
        Self { response, unread: String::new() }
    }

    pub async fn block(&mut self) -> reqwest::Result<Option<String>> {
        loop {
            if let Some((block, rest)) = self.unread.split_once("\n\n") {
                let block = block.to_owned();
                self.unread = rest.to_owned();
                return Ok(Some(block));
            }
            let chunk = tokio::time::timeout(TEST_TIMEOUT, self.response.chunk()).await;
            let Some(chunk) = chunk.expect("something in time")? else { return Ok(None) };
            self.unread += std::str::from_utf8(&chunk).expect("UTF-8");
        }
    }

    /// The next event's name and data; `None` at the end, `Err` at a disorderly one.
    pub async fn try_next(&mut self) -> reqwest::Result<Option<(String, Value)>> {
        while let Some(block) = self.block().await? {
            let field = |name| block.lines().find_map(|line| line.strip_prefix(name));
            if let Some(data) = field("data:") {
                let name = field("event:").unwrap_or_default().trim().to_owned();
                return Ok(Some((name, serde_json::from_str(data).expect("JSON"))));
            }
            assert!(block.lines().all(|line| line.starts_with(':')), "{block:?}");
        }
        Ok(None)
    }

    pub async fn next(&mut self) -> Option<Value> {
        self.try_next().await.expect("an orderly end").map(|(_, data)| data)
    }

    pub async fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        let reading = async {
            loop {
                let event = self.next().await.expect("the stream goes on");
                if wanted(&event) {
                    return event;
                }
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, reading).await.expect("an event in time")
    }
}
