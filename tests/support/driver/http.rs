//! A small raw HTTP/1.1 client, for one distinction that ordinary clients blur: a request that was
//! never sent did not happen; of one that was sent and not answered nobody knows.

use serde_json::Value;
use std::{net::SocketAddr, time::Duration};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    /// It carried `Idempotent-Replayed: true`.
    pub replayed: bool,
    /// JSON, or null.
    pub body: Value,
}

impl Response {
    /// The text of a member of the body; "" if there is none.
    pub fn text(&self, member: &str) -> &str {
        self.body[member].as_str().unwrap_or_default()
    }
}

/// How a request ended.
#[derive(Debug)]
pub enum Ended {
    Answered(Response),
    /// Not a byte of it left: it did not happen.
    NeverSent,
    /// Sent, at least in part; the connection was lost or the answer did not come in time.
    Unknown,
}

/// One keep-alive connection, made when it is needed.
pub struct Connection {
    address: SocketAddr,
    stream: Option<TcpStream>,
    received: Vec<u8>,
}

impl Connection {
    pub fn new(address: SocketAddr) -> Self {
        let (stream, received) = (None, Vec::new());
        Self { address, stream, received }
    }

    /// Sends a request and waits for its answer, both together no longer than `limit`.
    pub async fn call(&mut self, request: &[u8], limit: Duration) -> Ended {
        let deadline = Instant::now() + limit;
        let mut stream = match self.send(request, deadline).await {
            Ok(stream) => stream,
            Err(ended) => return ended,
        };
        self.received.clear();
        match timeout_at(deadline, read_response(&mut stream, &mut self.received)).await {
            Ok(Some(response)) => {
                self.stream = Some(stream);
                Ended::Answered(response)
            }
            // Dropping the stream hangs up: its next answer would be taken for another's.
            Ok(None) | Err(_) => Ended::Unknown,
        }
    }

    /// Sends a request and hangs up at once, as an impatient visitor does.
    pub async fn call_and_hang_up(&mut self, request: &[u8], limit: Duration) -> Ended {
        match self.send(request, Instant::now() + limit).await {
            Ok(_) => Ended::Unknown,
            Err(ended) => ended,
        }
    }

    /// The connection on which the whole request was sent, or how it ended.
    async fn send(&mut self, request: &[u8], deadline: Instant) -> Result<TcpStream, Ended> {
        let mut stream = self.ready(deadline).await.ok_or(Ended::NeverSent)?;
        let mut written = 0;
        while written < request.len() {
            match timeout_at(deadline, stream.write(&request[written..])).await {
                Ok(Ok(length @ 1..)) => written += length,
                _ if written == 0 => return Err(Ended::NeverSent),
                _ => return Err(Ended::Unknown),
            }
        }
        Ok(stream)
    }

    /// An open connection, as far as one can know before writing.
    async fn ready(&mut self, deadline: Instant) -> Option<TcpStream> {
        if let Some(stream) = self.stream.take() {
            // Bytes or an end where nothing was asked: the server has hung up meanwhile.
            let silent = stream
                .try_read(&mut [0; 1])
                .is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
            if silent {
                return Some(stream);
            }
        }
        let stream = timeout_at(deadline, TcpStream::connect(self.address)).await.ok()?.ok()?;
        // Requests are small and must not wait for more; failing to say so harms nothing.
        stream.set_nodelay(true).ok();
        Some(stream)
    }
}

/// `None` if the connection ended before the answer was complete, or it is none.
async fn read_response(stream: &mut TcpStream, received: &mut Vec<u8>) -> Option<Response> {
    loop {
        if let Some(head_end) = received.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = std::str::from_utf8(&received[..head_end]).ok()?;
            let status = head.split(' ').nth(1)?.parse().ok()?;
            let header = |name: &str| {
                head.lines().find_map(|line| {
                    let (found, value) = line.split_once(':')?;
                    found.eq_ignore_ascii_case(name).then(|| value.trim())
                })
            };
            let length: usize = header("content-length").map_or(Some(0), |n| n.parse().ok())?;
            let replayed = header("idempotent-replayed") == Some("true");
            if let Some(body) = received.get(head_end + 4..head_end + 4 + length) {
                let body = serde_json::from_slice(body).unwrap_or_default();
                return Some(Response { status, replayed, body });
            }
        }
        if stream.read_buf(received).await.ok()? == 0 {
            return None;
        }
    }
}

pub fn request(method: &str, path: &str, token: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: flash-sale\r\nAuthorization: Bearer {token}\r\n{headers}\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}
