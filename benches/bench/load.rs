//! The load generator: a closed loop over keep-alive connections, as cheap as it can be made, because
//! it shares the processors with what it measures.
//!
//! Requests are bytes that were built before the clock starts. A connection writes one, reads until
//! the answer is complete, checks its status and a marker in its body, notes the time, and takes the
//! next. Each thread has a single-threaded runtime (one epoll); two system calls a request.

use hdrhistogram::Histogram;
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Somebody who has a signed token.
pub struct User {
    pub token: String,
}

/// Request bytes, back to back.
#[derive(Default)]
pub struct Requests {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Requests {
    /// One purchase a user. With `keys`, each carries an Idempotency-Key of its own, of 36 characters.
    pub fn purchases(address: SocketAddr, sale: &str, users: &[User], keys: bool) -> Self {
        let mut requests = Self::default();
        for user in users {
            let key = if keys {
                format!("Idempotency-Key: {}\r\n", uuid::Uuid::new_v4())
            } else {
                String::new()
            };
            requests.push(&format!(
                "POST /api/v1/sales/{sale}/orders HTTP/1.1\r\nHost: {address}\r\n\
                 Authorization: Bearer {}\r\n{key}Content-Length: 0\r\n\r\n",
                user.token
            ));
        }
        requests
    }

    /// One GET, with somebody's token if it needs one.
    pub fn get(&mut self, address: SocketAddr, path: &str, user: Option<&User>) {
        let authorization = user.map_or(String::new(), |user| {
            format!("Authorization: Bearer {}\r\n", user.token)
        });
        self.push(&format!(
            "GET {path} HTTP/1.1\r\nHost: {address}\r\n{authorization}\r\n"
        ));
    }

    fn push(&mut self, request: &str) {
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

/// The only right answer.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    pub status: u16,
    /// Must occur in the body.
    pub marker: &'static str,
}

/// One run: what is asked, how often, by how many at once.
#[derive(Clone)]
pub struct Load {
    pub address: SocketAddr,
    pub requests: Arc<Requests>,
    pub count: usize,
    pub connections: usize,
    pub threads: usize,
    pub expected: Expected,
}

pub struct Outcome {
    pub elapsed: Duration,
    /// Nanoseconds, of right answers.
    pub latency: Histogram<u64>,
    /// Right answers.
    pub answered: usize,
    /// What else came back, and how often.
    pub unexpected: BTreeMap<String, usize>,
}

/// Longer than any run takes; a run that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(300);

pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("the bounds are in order")
}

/// Ends the threads of a run whose owner has lost interest.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl Load {
    /// Connects, then asks until all requests are answered.
    pub async fn run(self) -> Result<Outcome, String> {
        let stop = StopOnDrop(Arc::new(AtomicBool::new(false)));
        let stopped = stop.0.clone();
        let run = tokio::task::spawn_blocking(move || self.run_threads(&stopped));
        tokio::time::timeout(PATIENCE, run)
            .await
            .map_err(|_| format!("a run took longer than {PATIENCE:?}"))?
            .map_err(|error| error.to_string())?
    }

    fn run_threads(&self, stop: &Arc<AtomicBool>) -> Result<Outcome, String> {
        let shared = Arc::new(Shared {
            load: self.clone(),
            next: AtomicUsize::new(0),
            stop: stop.clone(),
        });
        let start = Barrier::new(self.threads);
        let threads: Vec<Result<Part, String>> = std::thread::scope(|scope| {
            let parts: Vec<_> = (0..self.threads)
                .map(|thread| {
                    let share = (self.connections + thread) / self.threads;
                    let (shared, start) = (shared.clone(), &start);
                    scope.spawn(move || drive(&shared, share, start))
                })
                .collect();
            let ended = parts.into_iter().map(std::thread::ScopedJoinHandle::join);
            ended
                .map(|part| part.unwrap_or_else(|_| Err("the generator panicked".to_owned())))
                .collect()
        });
        let parts: Vec<Part> = threads.into_iter().collect::<Result<_, _>>()?;
        let began = parts.iter().map(|part| part.began).min();
        let ended = parts.iter().map(|part| part.ended).max();
        let mut outcome = Outcome {
            elapsed: began
                .zip(ended)
                .map_or(Duration::ZERO, |(began, ended)| ended - began),
            latency: histogram(),
            answered: 0,
            unexpected: BTreeMap::new(),
        };
        for log in parts.iter().flat_map(|part| &part.logs) {
            outcome.answered += log.nanoseconds.len();
            for &latency in &log.nanoseconds {
                outcome.latency.saturating_record(u64::from(latency));
            }
            for (what, count) in &log.unexpected {
                *outcome.unexpected.entry(what.clone()).or_default() += count;
            }
        }
        Ok(outcome)
    }
}

struct Shared {
    load: Load,
    next: AtomicUsize,
    stop: Arc<AtomicBool>,
}

/// What one thread saw.
struct Part {
    began: Instant,
    ended: Instant,
    logs: Vec<Log>,
}

/// What one connection saw.
#[derive(Default)]
struct Log {
    nanoseconds: Vec<u32>,
    unexpected: BTreeMap<String, usize>,
}

fn drive(shared: &Arc<Shared>, connections: usize, start: &Barrier) -> Result<Part, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build();
    let connected = runtime
        .map_err(|error| error.to_string())
        .and_then(|runtime| {
            let streams = runtime.block_on(connect(shared.load.address, connections))?;
            Ok((runtime, streams))
        });
    // Also after a failure: the other threads wait here.
    start.wait();
    let (runtime, streams) = connected?;
    let began = Instant::now();
    let logs = runtime.block_on(async {
        let tasks: Vec<_> = streams
            .into_iter()
            .map(|stream| tokio::spawn(converse(shared.clone(), stream)))
            .collect();
        let mut logs = Vec::with_capacity(tasks.len());
        for task in tasks {
            logs.push(task.await.map_err(|error| error.to_string())?);
        }
        Ok::<_, String>(logs)
    })?;
    Ok(Part {
        began,
        ended: Instant::now(),
        logs,
    })
}

async fn connect(address: SocketAddr, connections: usize) -> Result<Vec<TcpStream>, String> {
    let mut streams = Vec::with_capacity(connections);
    for number in 0..connections {
        let stream = TcpStream::connect(address).await;
        let stream = stream.and_then(|stream| stream.set_nodelay(true).map(|()| stream));
        streams.push(
            stream.map_err(|error| format!("connection {number} of {connections}: {error}"))?,
        );
    }
    Ok(streams)
}

/// One connection's part of the run; it ends early, with a note, if the connection breaks.
async fn converse(shared: Arc<Shared>, mut stream: TcpStream) -> Log {
    let load = &shared.load;
    let mut log = Log::default();
    log.nanoseconds.reserve(load.count / load.connections * 2);
    let mut buffer = vec![0; 16 * 1024];
    let mut shape = Shape::default();
    loop {
        let index = shared.next.fetch_add(1, Relaxed);
        if index >= load.count || shared.stop.load(Relaxed) {
            return log;
        }
        let asked = Instant::now();
        let answer = ask(
            &mut stream,
            load.requests.nth(index),
            &mut buffer,
            &mut shape,
        )
        .await;
        let latency = asked.elapsed();
        match answer {
            Ok(answer) if answer.is(load.expected, &mut shape) => {
                log.nanoseconds
                    .push(u32::try_from(latency.as_nanos()).unwrap_or(u32::MAX));
            }
            Ok(answer) => *log.unexpected.entry(answer.describe()).or_default() += 1,
            Err(error) => {
                *log.unexpected.entry(error).or_default() += 1;
                return log;
            }
        }
    }
}

async fn ask<'a>(
    stream: &mut TcpStream,
    request: &[u8],
    buffer: &'a mut Vec<u8>,
    shape: &mut Shape,
) -> Result<Answer<'a>, String> {
    stream
        .write_all(request)
        .await
        .map_err(|error| error.to_string())?;
    let mut filled = 0;
    let (head, total) = loop {
        if filled == buffer.len() {
            buffer.resize(filled * 2, 0);
        }
        match stream.read(&mut buffer[filled..]).await {
            Ok(0) => return Err("the connection was closed".to_owned()),
            Ok(read) => filled += read,
            Err(error) => return Err(error.to_string()),
        }
        if let Some((head, length)) = shape.measure(&buffer[..filled])?
            && filled >= head + length
        {
            break (head, head + length);
        }
    };
    if filled > total {
        return Err("more bytes came than the answer has".to_owned());
    }
    Ok(Answer {
        head: &buffer[..head],
        body: &buffer[head..total],
    })
}

struct Answer<'a> {
    head: &'a [u8],
    body: &'a [u8],
}

impl Answer<'_> {
    fn status(&self) -> u16 {
        let digits = self
            .head
            .get(9..12)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
    }

    fn is(&self, expected: Expected, shape: &mut Shape) -> bool {
        self.status() == expected.status && shape.finds(self.body, expected.marker.as_bytes())
    }

    fn describe(&self) -> String {
        let body = String::from_utf8_lossy(self.body);
        // Without what differs from answer to answer, so that equal refusals are counted together.
        let code = body
            .split_once("\"code\":\"")
            .and_then(|(_, rest)| rest.split_once('"'));
        match code {
            Some((code, _)) => format!("{} {code}", self.status()),
            None => format!(
                "{} {}",
                self.status(),
                body.chars().take(80).collect::<String>()
            ),
        }
    }
}

/// Where things were in the last answer: most often they are there again, and looking is cheaper than
/// searching. Answers here are JSON, which has no empty line in it.
#[derive(Default)]
pub struct Shape {
    head: usize,
    /// Where the value of Content-Length begins.
    length: usize,
    /// Where the marker begins in the body.
    marker: usize,
}

const END_OF_HEAD: &[u8] = b"\r\n\r\n";
const CONTENT_LENGTH: &[u8] = b"content-length: ";

impl Shape {
    /// The length of the head and of the body, once the head is complete.
    pub fn measure(&mut self, bytes: &[u8]) -> Result<Option<(usize, usize)>, String> {
        let again = bytes.len() >= self.head
            && self.head >= END_OF_HEAD.len()
            && bytes[..self.head].ends_with(END_OF_HEAD)
            && bytes[..self.length].ends_with(CONTENT_LENGTH);
        if !again {
            let Some(end) = find(bytes, END_OF_HEAD) else {
                return Ok(None);
            };
            let head = &bytes[..end + END_OF_HEAD.len()];
            let at = find(&head.to_ascii_lowercase(), CONTENT_LENGTH)
                .ok_or_else(|| format!("no Content-Length in {}", String::from_utf8_lossy(head)))?;
            (self.head, self.length) = (head.len(), at + CONTENT_LENGTH.len());
        }
        let digits = bytes[self.length..self.head]
            .iter()
            .take_while(|byte| byte.is_ascii_digit());
        let length = digits.fold(0_usize, |length, digit| {
            length
                .saturating_mul(10)
                .saturating_add(usize::from(digit - b'0'))
        });
        Ok(Some((self.head, length)))
    }

    fn finds(&mut self, body: &[u8], marker: &[u8]) -> bool {
        if body
            .get(self.marker..)
            .is_some_and(|rest| rest.starts_with(marker))
        {
            return true;
        }
        let found = find(body, marker);
        self.marker = found.unwrap_or(self.marker);
        found.is_some()
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}
