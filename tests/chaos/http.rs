//! A small raw HTTP/1.1 client, for one distinction that ordinary clients blur: a request that was
//! never sent did not happen; of one that was sent and not answered nobody knows.

use std::{net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout_at},
};

/// A complete answer.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    /// It carried `Idempotent-Replayed: true`.
    pub replayed: bool,
    pub body: String,
}

impl Response {
    /// The text of a member of the (flat) JSON body; "" if there is none.
    pub fn text(&self, member: &str) -> &str {
        let pattern = format!("\"{member}\":\"");
        let Some(start) = self.body.find(&pattern).map(|at| at + pattern.len()) else {
            return "";
        };
        let rest = &self.body[start..];
        &rest[..rest.find('"').unwrap_or(0)]
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
        Self {
            address,
            stream: None,
            received: Vec::new(),
        }
    }

    /// Sends a request and waits for its answer, both together no longer than `patience`.
    pub async fn call(&mut self, request: &[u8], patience: Duration) -> Ended {
        let deadline = Instant::now() + patience;
        let Some(mut stream) = self.ready(deadline).await else {
            return Ended::NeverSent;
        };
        match write_until(&mut stream, request, deadline).await {
            Written::All => {}
            Written::Nothing => return Ended::NeverSent,
            Written::Part => return Ended::Unknown,
        }
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
    pub async fn call_and_hang_up(&mut self, request: &[u8], patience: Duration) -> Ended {
        let deadline = Instant::now() + patience;
        let Some(mut stream) = self.ready(deadline).await else {
            return Ended::NeverSent;
        };
        match write_until(&mut stream, request, deadline).await {
            Written::Nothing => Ended::NeverSent,
            Written::All | Written::Part => Ended::Unknown,
        }
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
        let connected = timeout_at(deadline, TcpStream::connect(self.address)).await;
        let stream = connected.ok()?.ok()?;
        // Requests are small and must not wait for more; failing to say so harms nothing.
        stream.set_nodelay(true).ok();
        Some(stream)
    }
}

enum Written {
    All,
    Nothing,
    Part,
}

async fn write_until(stream: &mut TcpStream, request: &[u8], deadline: Instant) -> Written {
    let mut written = 0;
    while written < request.len() {
        match timeout_at(deadline, stream.write(&request[written..])).await {
            Ok(Ok(length @ 1..)) => written += length,
            _ if written == 0 => return Written::Nothing,
            _ => return Written::Part,
        }
    }
    Written::All
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
            let body_start = head_end + 4;
            if received.len() >= body_start + length {
                let body = &received[body_start..body_start + length];
                return Some(Response {
                    status,
                    replayed,
                    body: String::from_utf8_lossy(body).into_owned(),
                });
            }
        }
        if stream.read_buf(received).await.ok()? == 0 {
            return None;
        }
    }
}

/// The bytes of a request. `body` may be empty.
pub fn request(method: &str, path: &str, token: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: flash-sale\r\nAuthorization: Bearer {token}\r\n{headers}\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}
