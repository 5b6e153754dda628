//! Losses that an arena asks for: they leave nothing behind, and are refused where they cannot be.

use super::http::{assert_text, with_lab};
use crate::support::prelude::*;
use crate::support::test_lab::{ARENAS, TestLab, buyer};
use lab::losses::Losses;
use tokio::io::{copy, split};

#[tokio::test]
async fn a_redis_that_does_not_start_leaves_no_folder() {
    let lab = TestLab::start("no-start:").await;
    let arena = lab.arena("reentrant-lock", 1, json!({"redis_node_loss": 1})).await;
    let root = lab.servers.data_dir.clone().expect("a folder");
    let folder = root.join(format!("{}-1", arena.definition().id));
    // A file stands where the server would have its data.
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("redis"), "").expect("a file");
    let answer = arena.purchase(&buyer("ann"), None).await;
    assert!(answer.outcome.is_err() && !folder.exists(), "{answer:?}");
    lab.finish().await;
}

/// The buyer hangs up, or the node crashes, while the session is made to lapse.
#[tokio::test]
async fn a_loss_that_is_given_up_does_not_leave_the_node_cut_off() {
    let echo = |connection: TcpStream| async move {
        let (mut reads, mut writes) = split(connection);
        let _ = copy(&mut reads, &mut writes).await;
    };
    let losses = Losses::default();
    let way = losses.wire_to(0, serve_each(echo).await.to_string()).await.expect("a way");
    // Its ZooKeeper never answers, so the session does not end.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let nobody = silent.local_addr().expect("an address").to_string();
    let ends = losses.end_session(0, &nobody, "/lock");
    let given_up = tokio::time::timeout(Duration::from_millis(200), ends).await;
    assert!(given_up.is_err() || cfg!(not(feature = "zookeeper")), "{given_up:?}");
    let hears = async {
        let mut connection = TcpStream::connect(way).await.expect("a connection");
        connection.write_all(b"?").await.expect("sent");
        connection.read_u8().await.expect("an answer")
    };
    let heard = tokio::time::timeout(Duration::from_secs(60), hears).await;
    assert_eq!(heard, Ok(b'?'), "the node is cut off for good");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_that_needs_a_private_redis_is_refused_without_one() {
    let app = with_lab().await;
    let mut wanted = json!({"strategy": "reentrant-lock", "stock": 1});
    app.post(ARENAS, wanted.clone()).await.assert(201);
    wanted["options"] = json!({"redis_node_loss": 1});
    let refused = app.post(ARENAS, wanted).await;
    refused.assert_problem(409, "strategy_unavailable");
    assert_text(&refused.body["detail"], "independent Redis servers are needed");
}
