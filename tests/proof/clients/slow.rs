//! A slow client is ended in time and holds nobody up.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_trickles_a_request_is_ended_and_holds_nobody_up() {
    let limits = ConnectionLimits {
        head_timeout: Duration::from_secs(2),
        ..ConnectionLimits::new(1_000, false)
    };
    let app = with_limits(limits).await;
    let sale = app.sale(1_000, json!({})).await;
    let mut tricklers = Vec::new();
    for number in 0..200 {
        let mut wire = Wire::to(&app.base).await;
        let request = if number < 150 {
            HEALTH.to_owned() // its head takes for ever
        } else {
            wire.send(
                "POST /api/v1/session HTTP/1.1\r\nhost: shop\r\n\
                 content-type: application/json\r\ncontent-length: 10000\r\n\r\n",
            )
            .await;
            " ".repeat(10_000)
        };
        tricklers.push(tokio::spawn(async move {
            for byte in request.bytes() {
                if wire.stream.write_all(&[byte]).await.is_err() {
                    break;
                }
                let pause = Duration::from_millis(300);
                if let Ok(answer) = tokio::time::timeout(pause, wire.answer()).await {
                    return answer;
                }
            }
            wire.answer().await
        }));
    }
    let mut silent = Wire::to(&app.base).await;
    let began = Instant::now();
    let mut bought = 0;
    while !tricklers.iter().all(|trickler| trickler.is_finished()) {
        app.shopper().must_buy(&sale).await;
        bought += 1;
        assert!(began.elapsed() < 2 * TEST_TIMEOUT, "they are still there");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(bought >= 10, "{bought}");
    for (number, trickler) in tricklers.into_iter().enumerate() {
        let answer = trickler.await.expect("no panic");
        if number < 150 {
            assert!(answer.is_none(), "no request, no answer: {answer:?}");
            continue;
        }
        let answer = answer.expect("a last word");
        assert_eq!(answer.status, 408, "{answer:?}");
        assert_eq!(answer.body["code"], "request_timeout", "{answer:?}");
    }
    silent.until_closed().await;
    assert!(silent.unread.is_empty());
    app.assert_sound(&sale).await;
}

/// Takes a minute, most of which it sleeps: half a minute answers may lie unread.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_no_answers_is_given_up() {
    let app = TestApp::start().await;
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4_096).expect("an option");
    let address = app.base.trim_start_matches("http://").parse().expect("an address");
    let mut stream = socket.connect(address).await.expect("a connection");
    // Megabytes of answers, which soon fill what the system keeps for a client.
    let request = "GET /openapi.json HTTP/1.1\r\nhost: shop\r\n\r\n".repeat(10);
    let asking = async { while stream.write_all(request.as_bytes()).await.is_ok() {} };
    tokio::time::timeout(4 * TEST_TIMEOUT, asking).await.expect("the other end goes");
}
