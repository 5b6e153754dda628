//! The load generator: keep-alive connections, as cheap as they can be made, because they share the
//! processors with what they measure. In an open loop a latency counts from when its request was
//! due.

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
    sync::mpsc::UnboundedSender,
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

    /// One purchase a buyer in an arena of the lab.
    pub fn lab_purchases(address: SocketAddr, arena: &str, buyers: usize) -> Self {
        let mut requests = Self::default();
        for _ in 0..buyers {
            let body = format!("{{\"user\":\"{}\"}}", uuid::Uuid::new_v4());
            requests.push(&format!(
                "POST /api/v1/lab/arenas/{arena}/orders HTTP/1.1\r\nHost: {address}\r\n\
                 Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
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

/// One answer, for whoever follows them.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    pub index: usize,
    /// Which of the right answers it was.
    pub kind: usize,
    pub sent: Instant,
    pub answered: Instant,
    /// The order that the answer names, or 0.
    pub order_id: i64,
    /// The port of the server that answered.
    pub server: u16,
}

/// Who is told of the answers, and of how many: every so-many-th.
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
    pub threads: usize,
    pub expected: Vec<Expected>,
    /// `None`: a closed loop.
    pub schedule: Option<Schedule>,
    pub follower: Option<Follower>,
}

pub struct Outcome {
    pub elapsed: Duration,
    /// Nanoseconds, of right answers.
    pub latency: Histogram<u64>,
    /// Right answers.
    pub answered: usize,
    /// How many of them were of each kind, in the order of [`Load::expected`].
    pub kinds: Vec<usize>,
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
        let crowd = Crowd::of(self.connections, self.threads)?;
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
                    scope.spawn(move || drive(&shared, share, start, crowd))
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
            kinds: vec![0; self.expected.len()],
            unexpected: BTreeMap::new(),
        };
        for log in parts.iter().flat_map(|part| &part.logs) {
            for (sum, count) in outcome.kinds.iter_mut().zip(&log.kinds) {
                *sum += count;
            }
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
    kinds: Vec<usize>,
    unexpected: BTreeMap<String, usize>,
}

/// Whether one process may hold so many connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crowd {
    Fits,
    /// Only if each thread has a table of descriptors of its own, which Linux allows.
    ByThread,
}

/// What a process has open besides its connections, amply.
const OTHER_DESCRIPTORS: usize = 512;

impl Crowd {
    pub fn of(connections: usize, threads: usize) -> Result<Self, String> {
        let most = flash_sale::http::server::raise_descriptor_limit();
        Self::within(most, connections, threads)
    }

    pub fn within(most: usize, connections: usize, threads: usize) -> Result<Self, String> {
        let most = most.saturating_sub(OTHER_DESCRIPTORS);
        if connections <= most {
            return Ok(Self::Fits);
        }
        if cfg!(target_os = "linux") && connections.div_ceil(threads) <= most {
            return Ok(Self::ByThread);
        }
        Err(format!(
            "{connections} connections do not fit: this system lets a process have {most} more files open. Raise the \
             hard limit (ulimit -Hn), or ask for fewer connections"
        ))
    }

    fn enter(self) -> Result<(), String> {
        if self == Self::Fits {
            return Ok(());
        }
        #[cfg(target_os = "linux")]
        {
            // SAFETY: no memory is touched; from here on this thread has a copy of the table of
            // descriptors, and what it opens is its own. It opens only its runtime and its connections.
            #[allow(unsafe_code)]
            let result = unsafe { nix::libc::unshare(nix::libc::CLONE_FILES) };
            if result != 0 {
                return Err(format!(
                    "a thread cannot have descriptors of its own: {}",
                    std::io::Error::last_os_error()
                ));
            }
        }
        Ok(())
    }
}

fn drive(
    shared: &Arc<Shared>,
    connections: usize,
    start: &Barrier,
    crowd: Crowd,
) -> Result<Part, String> {
    let connected = crowd.enter().and_then(|()| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(|error| error.to_string())?;
        let address = shared.load.address;
        let streams = runtime.block_on(connect(address, connections))?;
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

pub async fn connect(address: SocketAddr, connections: usize) -> Result<Vec<TcpStream>, String> {
    let mut streams = Vec::with_capacity(connections);
    for number in 0..connections {
        let stream = TcpStream::connect(address).await.and_then(|stream| {
            stream.set_nodelay(true)?;
            // Closed by a reset: a closed connection otherwise keeps its port for a minute, and ten
            // thousand in each run would use them up.
            socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
            Ok(stream)
        });
        streams.push(
            stream.map_err(|error| format!("connection {number} of {connections}: {error}"))?,
        );
    }
    Ok(streams)
}

/// Answers of this size are read in one go; a longer one makes the buffer grow.
const BUFFER: usize = 2 * 1024;

/// One connection's part of the run; it ends early, with a note, if the connection breaks.
async fn converse(shared: Arc<Shared>, mut stream: TcpStream) -> Log {
    let load = &shared.load;
    let mut log = Log {
        kinds: vec![0; load.expected.len()],
        ..Log::default()
    };
    log.nanoseconds.reserve(load.count / load.connections * 2);
    let mut buffer = vec![0; BUFFER];
    let mut shape = Shape::default();
    let server = stream.peer_addr().map_or(0, |address| address.port());
    loop {
        let index = shared.next.fetch_add(1, Relaxed);
        if index >= load.count || shared.stop.load(Relaxed) {
            return log;
        }
        let due = load.schedule.map(|schedule| schedule.due(index));
        if let Some(due) = due {
            tokio::time::sleep_until(due.into()).await;
        }
        let sent = Instant::now();
        let answer = ask(
            &mut stream,
            load.requests.nth(index),
            &mut buffer,
            &mut shape,
        )
        .await;
        let answered = Instant::now();
        match answer {
            Ok(answer) => match answer.kind(&load.expected, &mut shape) {
                Some(kind) => {
                    let latency = answered.saturating_duration_since(due.unwrap_or(sent));
                    log.nanoseconds
                        .push(u32::try_from(latency.as_nanos()).unwrap_or(u32::MAX));
                    log.kinds[kind] += 1;
                    if let Some(follower) = &load.follower
                        && index.is_multiple_of(follower.every)
                    {
                        // Nobody listens any more: then it does not matter.
                        let _ = follower.tell.send(Seen {
                            index,
                            kind,
                            sent,
                            answered,
                            order_id: order_id(answer.body),
                            server,
                        });
                    }
                }
                None => *log.unexpected.entry(answer.describe()).or_default() += 1,
            },
            Err(error) => {
                *log.unexpected.entry(error).or_default() += 1;
                return log;
            }
        }
    }
}

/// The `order_id` of an answer, 0 if it has none.
pub fn order_id(body: &[u8]) -> i64 {
    const NAME: &[u8] = b"\"order_id\":\"";
    let Some(at) = find(body, NAME) else { return 0 };
    let digits = body[at + NAME.len()..]
        .iter()
        .take_while(|byte| byte.is_ascii_digit());
    digits.fold(0_i64, |id, digit| {
        id.wrapping_mul(10).wrapping_add(i64::from(digit - b'0'))
    })
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

    /// Which of the right answers it is.
    fn kind(&self, expected: &[Expected], shape: &mut Shape) -> Option<usize> {
        let status = self.status();
        expected.iter().position(|expected| {
            expected.status == status && shape.finds(self.body, expected.marker.as_bytes())
        })
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
        if marker.is_empty() {
            return true;
        }
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
