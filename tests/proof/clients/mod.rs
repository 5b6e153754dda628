//! Broken, slow and many clients: none buys twice, blocks others or outlives the server.

mod broken;
mod many;
mod slow;

use crate::support::{launch, prelude::*};
use flash_sale::http::{ConnectionLimits, server};
use tokio::net::TcpSocket;

/// A connection without a client library in the way.
struct Wire {
    stream: TcpStream,
    unread: Vec<u8>,
}

#[derive(Debug)]
struct Answer {
    status: u16,
    body: Value,
}

impl Wire {
    async fn to(base: &str) -> Self {
        let address = base.trim_start_matches("http://");
        Self { stream: TcpStream::connect(address).await.expect("connects"), unread: Vec::new() }
    }

    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.expect("the server still reads");
    }

    /// The next answer; `None` if the connection ended instead.
    async fn answer(&mut self) -> Option<Answer> {
        let mut answer = self.take_answer();
        while answer.is_none() && self.read().await > 0 {
            answer = self.take_answer();
        }
        answer
    }

    fn take_answer(&mut self) -> Option<Answer> {
        let end = self.unread.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
        let head = String::from_utf8_lossy(&self.unread[..end]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let whole = end + length.map_or(0, |length| length.parse().expect("a length"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status line: {head}"));
        let body = serde_json::from_slice(self.unread.get(end..whole)?).unwrap_or_default();
        self.unread.drain(..whole);
        Some(Answer { status, body })
    }

    /// How many more bytes there are now; 0 at the end, however it came.
    async fn read(&mut self) -> usize {
        let reading = self.stream.read_buf(&mut self.unread);
        tokio::time::timeout(TEST_TIMEOUT, reading).await.expect("something in time").unwrap_or(0)
    }

    async fn assert_served(&mut self) {
        self.send(HEALTH).await;
        assert_eq!(self.answer().await.expect("an answer").status, 200);
    }

    async fn until_closed(&mut self) {
        while self.read().await > 0 {}
    }
}

fn purchase(sale: &str, shopper: &Shopper, headers: &str) -> String {
    let token = &shopper.token;
    format!(
        "POST /api/v1/sales/{sale}/orders HTTP/1.1\r\nhost: shop\r\n\
         authorization: Bearer {token}\r\n{headers}content-length: 0\r\n\r\n"
    )
}

const HEALTH: &str = "GET /healthz HTTP/1.1\r\nhost: shop\r\n\r\n";

async fn with_limits(limits: ConnectionLimits) -> TestApp {
    TestApp::start_with(Options { connections: Some(limits), ..Options::default() }).await
}
