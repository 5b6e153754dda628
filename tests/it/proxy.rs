//! The fault proxy does what its faults say: each against a server that answers every byte with the
//! same byte, and notes what it got.

use crate::support::proxy::{Address, Fault, Lost, Proxy};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    time::timeout,
};

/// Longer than anything here takes that works.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a silence must last to be believed.
const SILENCE: Duration = Duration::from_millis(100);

/// An echo server; the count of bytes that it has read.
async fn echo() -> (Address, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let read = Arc::new(AtomicU64::new(0));
    let counter = read.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let counter = counter.clone();
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                    counter.fetch_add(length as u64, Relaxed);
                    if stream.write_all(&buffer[..length]).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    (Address::Tcp(address), read)
}

fn port(proxy: &Proxy) -> SocketAddr {
    match proxy.address() {
        Address::Tcp(address) => *address,
        Address::Unix(path) => panic!("a unix socket: {}", path.display()),
    }
}

async fn dial(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(port(proxy)).await.expect("connects")
}

/// Sends and waits for the same bytes; `None` when the connection ended instead.
async fn exchange(stream: &mut TcpStream, bytes: &[u8]) -> Option<Duration> {
    let began = Instant::now();
    stream.write_all(bytes).await.ok()?;
    let mut answer = vec![0; bytes.len()];
    let read = timeout(PATIENCE, stream.read_exact(&mut answer));
    read.await.expect("an answer or an end").ok()?;
    assert_eq!(answer, bytes);
    Some(began.elapsed())
}

async fn is_silent(stream: &mut TcpStream) -> bool {
    timeout(SILENCE, stream.read_u8()).await.is_err()
}

#[tokio::test]
async fn without_a_fault_bytes_pass_and_a_cut_ends_open_connections() {
    let (target, _) = echo().await;
    let proxy = Proxy::start(target).await;
    let mut stream = dial(&proxy).await;
    assert!(exchange(&mut stream, b"hello").await.is_some());
    proxy.cut();
    assert_eq!(exchange(&mut stream, b"hello").await, None);
    assert!(exchange(&mut dial(&proxy).await, b"again").await.is_some());
    assert_eq!((proxy.counts().accepted, proxy.counts().cut), (2, 1));
}

#[tokio::test]
async fn a_unix_socket_may_stand_on_either_side() {
    let folder = std::env::temp_dir().join(format!("fs-proxy-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let (front, behind) = (folder.join("front"), folder.join("behind"));
    let listener = UnixListener::bind(&behind).expect("binds");
    let _proxy = Proxy::start_at(Address::Unix(front.clone()), Address::Unix(behind)).await;
    let mut client = UnixStream::connect(&front).await.expect("connects");
    let (mut server, _) = listener.accept().await.expect("accepts");
    client.write_all(b"x").await.expect("writes");
    assert_eq!(server.read_u8().await.expect("reads"), b'x');
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[tokio::test]
async fn a_new_target_gets_the_new_connections() {
    let (old, old_read) = echo().await;
    let (new, new_read) = echo().await;
    let proxy = Proxy::start(old).await;
    let mut stays = dial(&proxy).await;
    assert!(exchange(&mut stays, b"a").await.is_some());
    proxy.set_target(new);
    assert!(exchange(&mut dial(&proxy).await, b"bb").await.is_some());
    assert!(exchange(&mut stays, b"a").await.is_some());
    assert_eq!((old_read.load(Relaxed), new_read.load(Relaxed)), (2, 2));
}

#[tokio::test]
async fn refused_connections_are_refused_by_the_kernel_until_it_is_over() {
    let (target, _) = echo().await;
    let proxy = Proxy::start(target).await;
    let mut open = dial(&proxy).await;
    assert!(exchange(&mut open, b"open").await.is_some());
    proxy.set(Fault::Refuse).await;
    let refused = TcpStream::connect(port(&proxy)).await;
    assert_eq!(
        refused.expect_err("nobody listens").kind(),
        std::io::ErrorKind::ConnectionRefused
    );
    assert!(exchange(&mut open, b"still open").await.is_some());
    proxy.set(Fault::None).await;
    assert!(exchange(&mut dial(&proxy).await, b"back").await.is_some());
}

#[tokio::test]
async fn a_black_hole_swallows_and_the_silence_outlasts_it() {
    let (target, read) = echo().await;
    let proxy = Proxy::start(target).await;
    let mut before = dial(&proxy).await;
    assert!(exchange(&mut before, b"1").await.is_some());
    proxy.set(Fault::BlackHole).await;
    let mut during = dial(&proxy).await;
    for stream in [&mut before, &mut during] {
        stream.write_all(b"gone").await.expect("taken");
        assert!(is_silent(stream).await);
    }
    proxy.set(Fault::None).await;
    for stream in [&mut before, &mut during] {
        stream.write_all(b"gone").await.expect("taken");
        assert!(is_silent(stream).await);
    }
    assert!(exchange(&mut dial(&proxy).await, b"2").await.is_some());
    assert_eq!(read.load(Relaxed), 2);
    assert_eq!(proxy.counts().swallowed_bytes, 16);
}

#[tokio::test]
async fn latency_delays_each_way_and_keeps_the_order() {
    let (target, _) = echo().await;
    let proxy = Proxy::start(target).await;
    let mut stream = dial(&proxy).await;
    proxy.set(Fault::Latency(Duration::from_millis(40))).await;
    let took = exchange(&mut stream, b"there and back").await;
    assert!(took >= Some(Duration::from_millis(80)), "{took:?}");
    // Two pieces on their way at once, the second without delay.
    stream.write_all(b"first ").await.expect("taken");
    proxy.set(Fault::None).await;
    stream.write_all(b"second").await.expect("taken");
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.expect("both");
    assert_eq!(&answer, b"first second");
}

#[tokio::test]
async fn a_throttle_lets_so_many_bytes_a_second_pass() {
    let (target, _) = echo().await;
    let proxy = Proxy::start(target).await;
    let mut stream = dial(&proxy).await;
    let bytes_per_second = 10_000;
    proxy.set(Fault::Throttle { bytes_per_second }).await;
    let took = exchange(&mut stream, &[7; 1_000]).await;
    assert!(took >= Some(Duration::from_millis(100)), "{took:?}");
    assert!(proxy.counts().delayed > 0);
}

#[tokio::test]
async fn a_request_is_cut_in_its_middle() {
    let (target, read) = echo().await;
    let proxy = Proxy::start(target).await;
    let mut stream = dial(&proxy).await;
    proxy.set(Fault::CutRequest { after: 5 }).await;
    assert!(exchange(&mut stream, b"abc").await.is_some());
    assert_eq!(exchange(&mut stream, b"defghi").await, None);
    let deadline = Instant::now() + PATIENCE;
    while read.load(Relaxed) < 5 && Instant::now() < deadline {
        tokio::task::yield_now().await;
    }
    assert_eq!((read.load(Relaxed), proxy.counts().cut), (5, 1));
}

#[tokio::test]
async fn a_lost_reply_belongs_to_a_request_that_ran() {
    let (target, read) = echo().await;
    let proxy = Proxy::start(target).await;
    let mut stream = dial(&proxy).await;
    assert!(exchange(&mut stream, b"1").await.is_some());
    let next = Fault::LoseReplies {
        which: Lost::Next(1),
        to: "COMMIT",
    };
    proxy.set(next).await;
    assert!(exchange(&mut stream, b"BEGIN").await.is_some());
    assert_eq!(exchange(&mut stream, b"COMMIT").await, None);
    assert_eq!(read.load(Relaxed), 12);
    // Only one was to be lost.
    assert!(exchange(&mut dial(&proxy).await, b"COMMIT").await.is_some());
    assert_eq!(proxy.counts().lost_replies, 1);
}

#[tokio::test]
async fn a_share_of_the_replies_is_lost() {
    let (target, _) = echo().await;
    let proxy = Proxy::start(target).await;
    proxy.seed(1);
    let which = Lost::Share(0.5);
    proxy.set(Fault::LoseReplies { which, to: "" }).await;
    let mut lost = 0;
    for _ in 0..100 {
        if exchange(&mut dial(&proxy).await, b"x").await.is_none() {
            lost += 1;
        }
    }
    assert!((25..=75).contains(&lost), "{lost} of 100");
    assert_eq!(proxy.counts().lost_replies, lost);
}
