//! The load generator: keep-alive connections, as cheap as they can be made, because they share the
//! processors with what they measure. In an open loop a latency counts from when its request was
//! due.

use crate::{Result, cpu::Usage};
use flash_sale::http::server::raise_descriptor_limit;
use futures_util::future::try_join_all;
use hdrhistogram::Histogram;
use serde::{Serialize, Serializer};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{collections::BTreeMap, net::SocketAddr};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::{net::TcpStream, sync::mpsc::UnboundedSender};

/// Request bytes, back to back.
#[derive(Default)]
pub struct Requests {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Requests {
    /// One purchase for each token. With `keys`, each carries an Idempotency-Key of its own, of 36
    /// characters.
    pub fn purchases(address: SocketAddr, sale: &str, tokens: &[String], keys: bool) -> Self {
        let mut requests = Self::default();
        for token in tokens {
            let key = match keys {
                true => format!("Idempotency-Key: {}\r\n", uuid::Uuid::new_v4()),
                false => String::new(),
            };
            let headers = format!("Authorization: Bearer {token}\r\n{key}Content-Length: 0\r\n");
            requests.push(address, &format!("POST /api/v1/sales/{sale}/orders"), &headers, "");
        }
        requests
    }

    /// One purchase a buyer in an arena of the lab.
    pub fn lab_purchases(address: SocketAddr, arena: &str, buyers: usize) -> Self {
        let mut requests = Self::default();
        for _ in 0..buyers {
            let body = format!("{{\"user\":\"{}\"}}", uuid::Uuid::new_v4());
            let length = body.len();
            let headers = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n");
            let what = format!("POST /api/v1/lab/arenas/{arena}/orders");
            requests.push(address, &what, &headers, &body);
        }
        requests
    }

    /// One GET, with a token or without ("").
    pub fn get(&mut self, address: SocketAddr, path: &str, token: &str) {
        let authorization = match token {
            "" => String::new(),
            token => format!("Authorization: Bearer {token}\r\n"),
        };
        self.push(address, &format!("GET {path}"), &authorization, "");
    }

    fn push(&mut self, address: SocketAddr, what: &str, headers: &str, body: &str) {
        let request = format!("{what} HTTP/1.1\r\nHost: {address}\r\n{headers}\r\n{body}");
        self.bytes.extend_from_slice(request.as_bytes());
        self.ends.push(self.bytes.len());
    }

    /// Request number `index`; past the last one they start again.
    fn nth(&self, index: usize) -> &[u8] {
        let index = index % self.ends.len();
        let start = index.checked_sub(1).map_or(0, |last| self.ends[last]);
        &self.bytes[start..self.ends[index]]
    }
}

/// A right answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    pub status: u16,
    /// Must occur in the body.
    pub marker: &'static str,
}

/// When the requests of an open loop are due: number `n` at `begin` + `n` / `per_second`.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    pub begin: Instant,
    pub per_second: f64,
}

impl Schedule {
    pub fn due(&self, index: usize) -> Instant {
        self.begin + Duration::from_secs_f64(index as f64 / self.per_second)
    }
}

/// One right answer, as a follower is told of it.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    pub index: usize,
    pub answered: Instant,
    /// The order that the answer names, or 0.
    pub order_id: i64,
}

/// Is told of every so-many-th answer.
#[derive(Clone)]
pub struct Follower {
    pub every: usize,
    pub tell: UnboundedSender<Seen>,
}

/// One run: what is asked, how often, by how many at once.
#[derive(Clone)]
pub struct Load {
    pub address: SocketAddr,
    pub requests: Arc<Requests>,
    pub count: usize,
    pub connections: usize,
    pub expected: Vec<Expected>,
    /// `None`: a closed loop.
    pub schedule: Option<Schedule>,
    pub follower: Option<Follower>,
}

/// One measured run.
#[derive(Clone, Serialize)]
pub struct Run {
    /// Right answers.
    pub requests: usize,
    /// How many of them were of each kind, in the order of [`Load::expected`].
    pub kinds: Vec<usize>,
    pub seconds: f64,
    #[serde(rename = "latency_ms", serialize_with = "quantiles")]
    pub latency: Histogram<u64>,
    /// CPU microseconds a request; for accepted orders until the last of them is in Postgres.
    pub cpu: Option<Usage>,
    /// Buyers in one call of the admission function.
    pub batch_size: Option<f64>,
    /// From the last answer until every order was in Postgres.
    pub drain_seconds: Option<f64>,
    /// What else came back, and how often.
    pub unexpected: BTreeMap<String, usize>,
}

impl Run {
    pub fn per_second(&self) -> f64 {
        self.requests as f64 / self.seconds
    }
}

/// Of nanoseconds.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("the bounds are in order")
}

pub fn milliseconds(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1e6
}

pub fn quantiles<S: Serializer>(of: &Histogram<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    let names = ["p50", "p95", "p99", "p999", "max"];
    let at = |quantile| milliseconds(of, quantile);
    serializer.collect_map(names.into_iter().zip([0.5, 0.95, 0.99, 0.999, 1.0].map(at)))
}

/// Longer than any run takes; a run that takes longer hangs.
const RUN_TIMEOUT: Duration = Duration::from_secs(300);

/// What a process has open besides its connections, amply.
const OTHER_DESCRIPTORS: usize = 512;

impl Load {
    /// Connects, then asks until all requests are answered; on a thread of its own.
    pub async fn run(self) -> Result<Run> {
        let run = tokio::task::spawn_blocking(move || drive(self));
        let run = tokio::time::timeout(RUN_TIMEOUT, run).await;
        run.map_err(|_| format!("a run took longer than {RUN_TIMEOUT:?}"))??
    }
}

struct Shared {
    load: Load,
    next: AtomicUsize,
    /// Of all connections, which share one thread: nobody waits for it.
    run: Mutex<Run>,
}

fn drive(load: Load) -> Result<Run> {
    if load.connections + OTHER_DESCRIPTORS > raise_descriptor_limit() {
        return Err("raise the limit of open files (ulimit -Hn)".into());
    }
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let streams = connect(load.address, load.connections).await?;
        let run = Mutex::new(Run {
            requests: 0,
            kinds: vec![0; load.expected.len()],
            seconds: 0.0,
            latency: histogram(),
            cpu: None,
            batch_size: None,
            drain_seconds: None,
            unexpected: BTreeMap::new(),
        });
        let shared = Arc::new(Shared { load, next: AtomicUsize::new(0), run });
        let began = Instant::now();
        let talks = streams.into_iter().map(|stream| converse(shared.clone(), stream));
        let talks = try_join_all(talks.map(tokio::spawn)).await;
        let seconds = began.elapsed().as_secs_f64();
        talks?;
        let run = shared.run.lock().expect("no panic").clone();
        Ok(Run { seconds, ..run })
    })
}

async fn connect(address: SocketAddr, connections: usize) -> Result<Vec<TcpStream>> {
    let mut streams = Vec::with_capacity(connections);
    for _ in 0..connections {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        // Closed by a reset: a closed connection otherwise keeps its port for a minute, and ten
        // thousand in each run would use them up.
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
        streams.push(stream);
    }
    Ok(streams)
}

/// Answers of this size are read in one go; a longer one makes the buffer grow.
const BUFFER: usize = 2 * 1024;

/// One connection's part of the run; it ends early, with a note, if the connection breaks.
async fn converse(shared: Arc<Shared>, mut stream: TcpStream) {
    let load = &shared.load;
    let mut buffer = vec![0; BUFFER];
    loop {
        let index = shared.next.fetch_add(1, Relaxed);
        if index >= load.count {
            return;
        }
        let mut begin = Instant::now();
        if let Some(schedule) = load.schedule {
            begin = schedule.due(index);
            tokio::time::sleep_until(begin.into()).await;
        }
        let asked = ask(&mut stream, load.requests.nth(index), &mut buffer).await;
        let answered = Instant::now();
        let mut run = shared.run.lock().expect("no panic");
        let answer = match asked {
            Ok(answer) => answer,
            Err(error) => {
                *run.unexpected.entry(error).or_default() += 1;
                return;
            }
        };
        let Some(kind) = answer.kind(&load.expected) else {
            *run.unexpected.entry(answer.describe()).or_default() += 1;
            continue;
        };
        let latency = answered.saturating_duration_since(begin).as_nanos();
        run.latency.saturating_record(u64::try_from(latency).unwrap_or(u64::MAX));
        run.requests += 1;
        run.kinds[kind] += 1;
        if let Some(follower) = &load.follower
            && index.is_multiple_of(follower.every)
        {
            let order_id = order_id(answer.body);
            // Nobody listens any more: then it does not matter.
            let _ = follower.tell.send(Seen { index, answered, order_id });
        }
    }
}

/// The `order_id` of an answer, 0 if it has none.
pub fn order_id(body: &[u8]) -> i64 {
    const NAME: &[u8] = b"\"order_id\":\"";
    let rest = find(body, NAME).map_or(&[][..], |at| &body[at + NAME.len()..]);
    number(rest) as i64
}

/// The digits that these bytes begin with.
fn number(bytes: &[u8]) -> usize {
    let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number: usize, digit| {
        number.saturating_mul(10).saturating_add(usize::from(digit - b'0'))
    })
}

async fn ask<'a>(
    stream: &mut TcpStream,
    request: &[u8],
    buffer: &'a mut Vec<u8>,
) -> Result<Answer<'a>, String> {
    let described = |error: std::io::Error| error.to_string();
    stream.write_all(request).await.map_err(described)?;
    let mut filled = 0;
    let (head, total) = loop {
        if filled == buffer.len() {
            buffer.resize(filled * 2, 0);
        }
        match stream.read(&mut buffer[filled..]).await.map_err(described)? {
            0 => return Err("the connection was closed".to_owned()),
            read => filled += read,
        }
        if let Some((head, length)) = lengths(&buffer[..filled])?
            && filled >= head + length
        {
            break (head, head + length);
        }
    };
    if filled > total {
        return Err("more bytes came than the answer has".to_owned());
    }
    Ok(Answer { head: &buffer[..head], body: &buffer[head..total] })
}

struct Answer<'a> {
    head: &'a [u8],
    body: &'a [u8],
}

impl Answer<'_> {
    fn status(&self) -> usize {
        self.head.get(9..).map_or(0, number)
    }

    /// Which of the right answers it is.
    fn kind(&self, expected: &[Expected]) -> Option<usize> {
        let status = self.status();
        expected.iter().position(|expected| {
            let marker = expected.marker.as_bytes();
            usize::from(expected.status) == status && find(self.body, marker).is_some()
        })
    }

    fn describe(&self) -> String {
        let body = String::from_utf8_lossy(self.body);
        // Without what differs from answer to answer, so that equal refusals are counted together.
        let rest = body.split_once("\"code\":\"").and_then(|(_, rest)| rest.split_once('"'));
        let said = rest.map_or(body.chars().take(80).collect(), |(code, _)| code.to_owned());
        format!("{} {said}", self.status())
    }
}

/// The lengths of an answer's head and body, once the head is complete.
pub fn lengths(bytes: &[u8]) -> Result<Option<(usize, usize)>, String> {
    const END_OF_HEAD: &[u8] = b"\r\n\r\n";
    const CONTENT_LENGTH: &[u8] = b"content-length: ";
    let Some(end) = find(bytes, END_OF_HEAD) else { return Ok(None) };
    let head = &bytes[..end + END_OF_HEAD.len()];
    let at = find(&head.to_ascii_lowercase(), CONTENT_LENGTH)
        .ok_or_else(|| format!("no Content-Length in {}", String::from_utf8_lossy(head)))?;
    Ok(Some((head.len(), number(&head[at + CONTENT_LENGTH.len()..]))))
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    if wanted.is_empty() {
        return Some(0);
    }
    let mut windows = bytes.windows(wanted.len());
    windows.position(|window| window == wanted)
}
