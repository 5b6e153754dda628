//! A crowd leaves room for buyers, one client too many waits, and all are let go in the end.

use super::*;

async fn connected(app: &TestApp) -> Wire {
    let mut wire = Wire::to(&app.base).await;
    wire.assert_served().await;
    wire
}

async fn until_said(followers: &mut [Wire], said: &str) {
    for wire in followers {
        while !String::from_utf8_lossy(&wire.unread).contains(said) {
            assert!(wire.read().await > 0, "the stream goes on");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_only_sits_there_leaves_room_for_buyers_and_goes_when_the_server_goes() {
    // Both ends of each connection are in this process, and the other tests need some too.
    let crowd = (server::raise_descriptor_limit() / 8).min(2_000);
    let limits =
        ConnectionLimits { head_timeout: 4 * TEST_TIMEOUT, ..ConnectionLimits::new(10_000, false) };
    let app = with_limits(limits).await;
    let sale = app.sale(1_000, json!({})).await;
    let (mut idle, mut followers) = (Vec::new(), Vec::new());
    for _ in 0..crowd {
        idle.push(connected(&app).await);
        let mut wire = Wire::to(&app.base).await;
        wire.send(format!("GET /api/v1/sales/{sale}/events HTTP/1.1\r\nhost: shop\r\n\r\n")).await;
        followers.push(wire);
    }
    until_said(&mut followers, "event: sale").await;
    all_order(app.shoppers(200), &sale).await;
    assert_eq!(app.assert_sound(&sale).await.live, 200);
    until_said(&mut followers, "\"remaining\":800").await;
    let ending = tokio::time::timeout(TEST_TIMEOUT, app.stop());
    ending.await.expect("it does not wait for them").drop().await;
    for wire in idle.iter_mut().chain(&mut followers) {
        wire.until_closed().await;
    }
    for wire in &followers {
        let stream = String::from_utf8_lossy(&wire.unread);
        assert!(stream.ends_with("0\r\n\r\n"), "the streams end in order");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_client_too_many_waits_for_a_free_place() {
    let app = with_limits(ConnectionLimits::new(5, false)).await;
    let mut places = join_all((0..5).map(|_| connected(&app))).await;
    let mut late = Wire::to(&app.base).await;
    late.send(HEALTH).await;
    for wire in &mut places {
        wire.assert_served().await;
    }
    let early = tokio::time::timeout(Duration::from_millis(300), late.answer()).await;
    assert!(early.is_err(), "{early:?}");
    places.pop();
    assert_eq!(late.answer().await.expect("an answer").status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_address_cannot_have_all_connections() {
    // A quarter of twelve.
    let app = with_limits(ConnectionLimits::new(12, true)).await;
    let mut wires = Vec::new();
    for number in 0..4 {
        let mut wire = Wire::to(&app.base).await;
        // One too many may already be closed.
        let _ = wire.stream.write_all(HEALTH.as_bytes()).await;
        assert_eq!(wire.answer().await.map(|answer| answer.status), (number < 3).then_some(200));
        wires.push(wire);
    }
}

async fn connected_from(app: &TestApp, last: u8) -> Option<Wire> {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind((Ipv4Addr::new(127, 0, 0, last), 0).into()).expect("an address");
    let server = app.base.trim_start_matches("http://").parse().expect("an address");
    let stream = socket.connect(server).await.expect("connects");
    let mut wire = Wire { stream, unread: Vec::new() };
    let _ = wire.stream.write_all(HEALTH.as_bytes()).await;
    wire.answer().await.map(|_| wire)
}

/// The shares shrink; and when few places are left, nobody keeps one after an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_few_addresses_cannot_have_all_connections() {
    let app = with_limits(ConnectionLimits::new(64, true)).await;
    let mut held = Vec::new();
    for address in (2..=5).flat_map(|address| [address; 16]) {
        held.extend(connected_from(&app, address).await);
    }
    assert!(held.len() < 56, "{} of 64", held.len());
    for address in (6..30).flat_map(|address| [address; 4]) {
        held.extend(connected_from(&app, address).await);
    }
    assert!(connected_from(&app, 40).await.is_some(), "nobody else gets in");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_descriptors_pauses_and_goes_on() {
    const DESCRIPTORS: usize = 160;
    let home = Home::new();
    // A hard limit, which the program cannot raise, below the connections that it is told to take.
    let limit = format!("ulimit -Sn {DESCRIPTORS} && ulimit -Hn {DESCRIPTORS} && exec \"$@\"");
    let mut command = launch::command("sh", &home.path);
    command.args(["-c", &limit, "sh", env!("CARGO_BIN_EXE_flash-sale"), "serve"]);
    command.envs([("LISTEN_ADDR", "127.0.0.1:0"), ("RATE_LIMIT", "off")]);
    command.env("DATA_DIR", home.data()).env("MAX_CONNECTIONS", "10000");
    let program = Program::spawn(&home, command).ready().await;
    let mut crowd = Vec::new();
    for _ in 0..DESCRIPTORS + 50 {
        let mut wire = Wire::to(&program.base).await;
        wire.send(HEALTH).await;
        crowd.push(wire);
    }
    wait_for!(program.stderr().contains("accept error"));
    assert_eq!(crowd[0].answer().await.expect("an answer").status, 200);
    crowd[0].assert_served().await;
    drop(crowd);
    Wire::to(&program.base).await.assert_served().await;
    program.terminate().await;
}
