//! Clients as they are: impatient, slow, many, broken. None of them buys twice, holds up the others or
//! outlives the server.

mod broken;
mod many;
mod slow;
mod twice;

use crate::support::app::{Options, PATIENCE, Shopper, TestApp};
use flash_sale::http::ConnectionLimits;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// A connection without a client library in the way.
struct Wire {
    stream: TcpStream,
    unread: Vec<u8>,
}

/// One answer as it came over the wire.
#[derive(Debug)]
struct Answer {
    head: String,
    body: String,
}

impl Answer {
    fn status(&self) -> u16 {
        let status = self.head.split(' ').nth(1);
        status
            .and_then(|status| status.parse().ok())
            .unwrap_or_else(|| panic!("no status line: {}", self.head))
    }

    fn code(&self) -> String {
        let body: Value = serde_json::from_str(&self.body).unwrap_or_default();
        body["code"].as_str().unwrap_or_default().to_owned()
    }
}

impl Wire {
    async fn to(app: &TestApp) -> Self {
        Self::to_address(&app.base).await
    }

    async fn to_address(base: &str) -> Self {
        let address = base.trim_start_matches("http://");
        Self {
            stream: TcpStream::connect(address).await.expect("a connection"),
            unread: Vec::new(),
        }
    }

    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let sent = self.stream.write_all(bytes.as_ref()).await;
        sent.expect("the server still reads");
    }

    /// The next answer; `None` if the connection ended instead.
    async fn answer(&mut self) -> Option<Answer> {
        loop {
            if let Some(answer) = self.take_answer() {
                return Some(answer);
            }
            if self.read().await == 0 {
                return None;
            }
        }
    }

    fn take_answer(&mut self) -> Option<Answer> {
        let end = self
            .unread
            .windows(4)
            .position(|four| four == b"\r\n\r\n")?
            + 4;
        let head = String::from_utf8_lossy(&self.unread[..end]).to_ascii_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .map_or(0, |length| length.parse().expect("a length"));
        let whole = end + length;
        if self.unread.len() < whole {
            return None;
        }
        let body = String::from_utf8_lossy(&self.unread[end..whole]).into_owned();
        self.unread.drain(..whole);
        Some(Answer { head, body })
    }

    /// How many more bytes there are now; 0 at the end, however it came.
    async fn read(&mut self) -> usize {
        let reading = self.stream.read_buf(&mut self.unread);
        let read = tokio::time::timeout(PATIENCE, reading).await;
        read.expect("something in time").unwrap_or(0)
    }

    /// Reads on until the server ends the connection.
    async fn until_closed(&mut self) {
        while self.read().await > 0 {}
    }
}

fn purchase(sale: &str, shopper: &Shopper, headers: &str) -> String {
    format!(
        "POST /api/v1/sales/{sale}/orders HTTP/1.1\r\nhost: shop\r\nauthorization: Bearer {}\r\n{headers}content-length: 0\r\n\r\n",
        shopper.token
    )
}

const HEALTH: &str = "GET /healthz HTTP/1.1\r\nhost: shop\r\n\r\n";

async fn with_limits(connections: ConnectionLimits) -> TestApp {
    TestApp::start_with(Options {
        connections,
        ..Options::default()
    })
    .await
}
