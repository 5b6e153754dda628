//! The fault proxy does what its faults say, before a server that echoes and counts what it read.

use crate::support::{prelude::*, proxy::Lost};
use tokio::time::timeout;

async fn start() -> (Proxy, TcpStream, Arc<AtomicU64>) {
    let (target, read) = echo().await;
    let proxy = Proxy::start(target).await;
    let stream = dial(&proxy).await;
    (proxy, stream, read)
}

async fn echo() -> (Address, Arc<AtomicU64>) {
    let read = Arc::new(AtomicU64::new(0));
    let counter = read.clone();
    let echo = move |mut stream: TcpStream| {
        let counter = counter.clone();
        async move {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                counter.fetch_add(length as u64, Relaxed);
                if stream.write_all(&buffer[..length]).await.is_err() {
                    break;
                }
            }
        }
    };
    (Address::Tcp(serve_each(echo).await), read)
}

async fn dial(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(proxy.address).await.expect("connects")
}

async fn echoes(stream: &mut TcpStream, bytes: &[u8]) -> bool {
    let mut answer = vec![0; bytes.len()];
    let exchange = async {
        stream.write_all(bytes).await.is_ok() && stream.read_exact(&mut answer).await.is_ok()
    };
    let came = timeout(TEST_TIMEOUT, exchange).await.expect("an answer or an end");
    assert!(!came || answer == bytes, "{answer:?}");
    came
}

async fn is_swallowed(stream: &mut TcpStream) {
    stream.write_all(b"gone").await.expect("taken");
    let heard = timeout(Duration::from_millis(100), stream.read_u8()).await;
    assert!(heard.is_err(), "{heard:?}");
}

#[tokio::test]
async fn bytes_pass_to_the_target_of_their_time_until_a_cut_ends_the_connection() {
    let (proxy, mut stream, old_read) = start().await;
    let (new, new_read) = echo().await;
    assert!(echoes(&mut stream, b"hello").await);
    proxy.cut();
    assert!(!echoes(&mut stream, b"hello").await);
    let mut stays = dial(&proxy).await;
    assert!(echoes(&mut stays, b"a").await);
    proxy.set_target(new);
    assert!(echoes(&mut dial(&proxy).await, b"bb").await);
    assert!(echoes(&mut stays, b"a").await);
    assert_eq!((old_read.load(Relaxed), new_read.load(Relaxed)), (7, 2));
    assert_eq!((proxy.counts().accepted, proxy.counts().cut), (3, 1));
}

#[tokio::test]
async fn refused_connections_are_refused_by_the_kernel_until_it_is_over() {
    let (proxy, mut open, _) = start().await;
    assert!(echoes(&mut open, b"open").await);
    proxy.set(Fault::Refuse).await;
    let refused = TcpStream::connect(proxy.address).await.expect_err("nobody listens");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    assert!(echoes(&mut open, b"still open").await);
    proxy.set(Fault::None).await;
    assert!(echoes(&mut dial(&proxy).await, b"back").await);
}

#[tokio::test]
async fn a_black_hole_swallows_and_the_silence_outlasts_it() {
    let (proxy, mut before, read) = start().await;
    assert!(echoes(&mut before, b"1").await);
    proxy.set(Fault::BlackHole).await;
    let mut during = dial(&proxy).await;
    for fault in [Fault::BlackHole, Fault::None] {
        proxy.set(fault).await;
        is_swallowed(&mut before).await;
        is_swallowed(&mut during).await;
    }
    assert!(echoes(&mut dial(&proxy).await, b"2").await);
    assert_eq!((read.load(Relaxed), proxy.counts().swallowed_bytes), (2, 16));
}

#[tokio::test]
async fn latency_delays_each_way_and_keeps_the_order_and_a_throttle_delays_by_length() {
    let (proxy, mut stream, _) = start().await;
    for (fault, bytes, least_ms) in [
        (Fault::Throttle { bytes_per_second: 10_000 }, vec![7; 1_000], 100),
        (Fault::Latency(Duration::from_millis(40)), b"there and back".to_vec(), 80),
    ] {
        proxy.set(fault).await;
        let began = Instant::now();
        assert!(echoes(&mut stream, &bytes).await);
        assert!(began.elapsed() >= Duration::from_millis(least_ms), "{:?}", began.elapsed());
        assert!(proxy.counts().delayed > 0);
    }
    // Two pieces on their way at once, the second without delay.
    stream.write_all(b"first ").await.expect("taken");
    proxy.set(Fault::None).await;
    stream.write_all(b"second").await.expect("taken");
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.expect("both");
    assert_eq!(&answer, b"first second");
}

#[tokio::test]
async fn a_request_is_cut_in_its_middle() {
    let (proxy, mut stream, read) = start().await;
    proxy.set(Fault::CutRequest { after: 5 }).await;
    assert!(echoes(&mut stream, b"abc").await);
    assert!(!echoes(&mut stream, b"defghi").await);
    wait_for!(read.load(Relaxed) >= 5);
    assert_eq!((read.load(Relaxed), proxy.counts().cut), (5, 1));
}

#[tokio::test]
async fn a_lost_reply_belongs_to_a_request_that_ran() {
    let (proxy, mut stream, read) = start().await;
    proxy.set(Fault::LoseReplies { which: Lost::Next(1), to: "COMMIT" }).await;
    assert!(echoes(&mut stream, b"BEGIN").await);
    assert!(!echoes(&mut stream, b"COMMIT").await);
    assert_eq!(read.load(Relaxed), 11);
    assert!(echoes(&mut dial(&proxy).await, b"COMMIT").await);
    assert_eq!(proxy.counts().lost_replies, 1);
    proxy.set(Fault::LoseReplies { which: Lost::Share(0.5), to: "" }).await;
    let mut lost = 0;
    for _ in 0..100 {
        lost += u64::from(!echoes(&mut dial(&proxy).await, b"x").await);
    }
    assert!((25..=75).contains(&lost), "{lost} of 100");
    assert_eq!(proxy.counts().lost_replies, 1 + lost);
}
