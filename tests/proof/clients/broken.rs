//! What is no HTTP, or hardly, is refused and changes nothing.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipelined_requests_are_answered_in_order() {
    let (app, sale) = TestApp::selling(10, json!({})).await;
    let shopper = app.shopper();
    let mut wire = Wire::to(&app.base).await;
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: shop\r\n\r\n");
    let (shown, missing) = (get(&format!("/api/v1/sales/{sale}")), get("/nothing"));
    let buy = purchase(&sale, &shopper, "");
    wire.send([HEALTH, &buy, &missing, &buy, &shown, HEALTH].concat()).await;
    let mut orders = BTreeSet::new();
    for expected in [200, 202, 404, 409, 200, 200] {
        let answer = wire.answer().await.expect("six answers");
        assert_eq!(answer.status, expected, "{answer:?}");
        orders.extend(answer.body["order_id"].as_str().map(str::to_owned));
    }
    assert_eq!(orders.len(), 1, "the second purchase names the first");
    assert_eq!(app.assert_sound(&sale).await.live, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_much_or_makes_no_sense_is_refused_and_changes_nothing() {
    let (app, sale) = TestApp::selling(10, json!({})).await;
    let shopper = app.shopper();
    let chunked = |body: &str| {
        let head = purchase(&sale, &shopper, "transfer-encoding: chunked\r\n");
        head.replace("content-length: 0\r\n", "") + body
    };
    let with = |headers: &str| purchase(&sale, &shopper, headers);
    let large = "x".repeat(65_536);
    for (request, expected) in [
        (with(&format!("x: {large}\r\n")), 431),
        (with(&"x-many: 1\r\n".repeat(150)), 431),
        (format!("GET /{large} HTTP/1.1\r\nhost: shop\r\n\r\n"), 431),
        // Chunks without a size, of no number, larger than any, longer than their size.
        (chunked("\r\n\r\n"), 422),
        (chunked("xyz\r\n{}\r\n0\r\n\r\n"), 422),
        (chunked("ffffffffffffffffff\r\n{}\r\n0\r\n\r\n"), 422),
        (chunked("1\r\n{}\r\n0\r\n\r\n"), 422),
        // A length and chunks; two lengths; an unknown coding.
        (with("transfer-encoding: chunked\r\n") + "zz\r\n", 422),
        (with("content-length: 7\r\n"), 400),
        (with("transfer-encoding: gzip\r\n"), 400),
        (chunked("0\r\n\r\n").replace(": chunked", ": gzip, chunked"), 400),
        // Nobody is asked, or two are.
        (with("").replace("host: shop\r\n", ""), 400),
        (with("host: shop\r\n"), 400),
    ] {
        let what = format!("{request:.300}");
        let mut wire = Wire::to(&app.base).await;
        let _ = wire.stream.write_all(request.as_bytes()).await;
        match wire.answer().await {
            Some(answer) => assert_eq!(answer.status, expected, "{what}: {answer:?}"),
            None => assert!(request.len() > 32_768, "{what}: no answer"),
        }
    }
    let audit = app.assert_sound(&sale).await;
    assert_eq!((audit.live, audit.redis.buyers), (0, Some(0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_is_refused_and_never_an_error_of_ours() {
    let (app, sale) = TestApp::selling(10, json!({})).await;
    let whole = purchase(&sale, &app.shopper(), "idempotency-key: k\r\n");
    let mut random = Random::new(20_261_120);
    for number in 0..300 {
        let mut bytes = whole.clone().into_bytes();
        match number % 3 {
            0 => bytes = (0..random.index(2_000)).map(|_| random.next() as u8).collect(),
            1 => {
                for _ in 0..=random.index(8) {
                    let at = random.index(bytes.len());
                    bytes[at] = random.next() as u8;
                }
            }
            _ => {
                let (from, to) = (random.index(bytes.len()), random.index(bytes.len()));
                bytes.drain(from.min(to)..from.max(to));
            }
        }
        let mut wire = Wire::to(&app.base).await;
        let _ = wire.stream.write_all(&bytes).await;
        // No more is coming, so an unfinished request ends here.
        let _ = wire.stream.shutdown().await;
        while let Some(answer) = wire.answer().await {
            assert!(answer.status < 500, "{bytes:?}: {answer:?}");
        }
    }
    app.get("/healthz").await.assert(200);
    app.assert_sound(&sale).await;
}
