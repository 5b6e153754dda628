//! Calls: idempotent, with limits, and refused when they make no sense.

use crate::support::*;
use futures_util::future::join_all;
use std::collections::HashSet;

#[tokio::test]
async fn a_reference_is_charged_once() {
    let bench = Bench::start().await;
    let charge = bench.charge("shop-1-1").await;
    assert!(charge.id.starts_with("ch_"), "{charge:?}");
    assert_eq!((charge.status, charge.amount_cents), (ChargeStatus::Succeeded, 1_000));
    assert_eq!(bench.charge("shop-1-1").await, charge);
    for other in [payment("shop-1-1", 999), euros("shop-1-1")] {
        assert_eq!(refused(bench.provider.charge(&other).await), "idempotency_conflict");
    }
    let found = bench.provider.charges("shop-1-1").await;
    assert_eq!(found.expect("the charges"), std::slice::from_ref(&charge));
    assert_eq!(bench.provider.charges("shop 1&reference=").await.expect("none"), []);
    let movement = Movement::Charge(charge);
    assert_eq!(bench.transactions().await, [Transaction { number: 1, movement }]);
}

fn euros(reference: &str) -> ChargeRequest {
    ChargeRequest { currency: "EUR".to_owned(), ..payment(reference, 1_000) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn duplicates_at_the_same_time_charge_once() {
    let bench = Bench::start().await;
    let references: Vec<String> = (0..8).map(|number| format!("order-{number}")).collect();
    let calls = references.iter().flat_map(|reference| vec![reference; 16]);
    let charges = join_all(calls.map(|reference| bench.charge(reference))).await;
    for sixteen in charges.chunks(16) {
        assert!(sixteen.iter().all(|charge| *charge == sixteen[0]), "{sixteen:#?}");
    }
    let transactions = bench.transactions().await;
    let numbers: Vec<u64> = transactions.iter().map(|transaction| transaction.number).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8]);
    let after = bench.provider.transactions(6).await.expect("the rest");
    assert_eq!(after, transactions[6..]);
}

#[tokio::test]
async fn a_refund_is_made_once_and_never_exceeds_its_charge() {
    let bench = Bench::start().await;
    let (provider, charge) = (&bench.provider, bench.charge("shop-1-1").await);
    let refund = provider.refund("refund-1", &charge.id, 400).await.expect("a refund");
    assert_eq!((&refund.charge, refund.amount_cents), (&charge.id, 400));
    let again = provider.refund("refund-1", &charge.id, 400).await;
    assert_eq!(again.expect("the same"), refund);
    let refusal =
        async |key: &str, charge: &str, amount| refused(provider.refund(key, charge, amount).await);
    assert_eq!(refusal("refund-1", &charge.id, 401).await, "idempotency_conflict");
    assert_eq!(refusal("refund-2", &charge.id, 601).await, "refund_exceeds_charge");
    assert_eq!(refusal("refund-2", "ch_other", 1).await, "charge_unknown");
    assert_eq!(refusal("refund-2", &charge.id, 0).await, "invalid");
    assert_eq!(refusal("", &charge.id, 1).await, "idempotency_key_missing");
    provider.refund("refund-2", &charge.id, 600).await.expect("the rest");
    assert_eq!(refusal("refund-3", &charge.id, 1).await, "refund_exceeds_charge");
    assert_eq!(provider.charges("shop-1-1").await.expect("it")[0].refunded_cents, 1_000);
    let kinds = bench.transactions().await.into_iter().map(|transaction| transaction.movement);
    let amounts = kinds.map(|movement| match movement {
        Movement::Charge(charge) => charge.amount_cents - charge.refunded_cents,
        Movement::Refund(refund) => -refund.amount_cents,
    });
    assert_eq!(amounts.collect::<Vec<_>>(), [1_000, -400, -600], "as they were made");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn refunds_at_the_same_time_never_exceed_their_charge() {
    let bench = Bench::start().await;
    let charge = bench.charge("shop-1-1").await;
    let keys: Vec<String> = (0..16).map(|number| format!("refund-{number}")).collect();
    let calls = keys.iter().map(|key| bench.provider.refund(key, &charge.id, 300));
    let made = join_all(calls).await.into_iter().filter_map(Result::ok);
    let names: HashSet<String> = made.map(|refund| refund.id).collect();
    assert_eq!(names.len(), 3);
    assert_eq!(bench.transactions().await.len(), 4);
}

#[tokio::test]
async fn a_page_and_a_direct_charge_of_one_reference_share_a_charge() {
    let bench = Bench::start().await;
    let (provider, page) = (&bench.provider, checkout("shop-1-1", 5));
    let url = provider.checkout(&page).await.expect("a page");
    assert!(url.starts_with(&format!("{}/pay/co_", bench.sandbox.url())), "{url}");
    assert_eq!(provider.checkout(&page).await.expect("the same"), url);
    let dearer = CheckoutRequest { charge: payment("shop-1-1", 2_000), ..page.clone() };
    assert_eq!(refused(provider.checkout(&dearer).await), "idempotency_conflict");
    assert_eq!(refused(provider.charge(&dearer.charge).await), "idempotency_conflict");
    let charge = bench.charge("shop-1-1").await;
    ask("POST", &format!("{url}/confirm"), &[], "").await.must_be(303);
    ask("POST", &format!("{url}/decline"), &[], "").await.must_be(303);
    assert_eq!(provider.charges("shop-1-1").await.expect("one"), [charge]);
    assert_eq!(bench.transactions().await.len(), 1);
    // A page for what is paid already says so.
    bench.charge("shop-2-1").await;
    let dearer = CheckoutRequest { charge: payment("shop-2-1", 2_000), ..page.clone() };
    assert_eq!(refused(provider.checkout(&dearer).await), "idempotency_conflict");
    let url = provider.checkout(&checkout("shop-2-1", 5)).await.expect("a page");
    assert!(ask("GET", &url, &[], "").await.must_be(200).text.contains("This is paid."));
}

#[tokio::test]
async fn requests_without_sense_are_refused_with_a_code() {
    let bench = Bench::start().await;
    let charge = |reference: &str, amount_cents: i64, currency: &str| {
        let (reference, currency) = (reference.to_owned(), currency.to_owned());
        serde_json::to_value(ChargeRequest { reference, amount_cents, currency }).expect("JSON")
    };
    let page = |member: &str, value: &str| {
        let mut page = serde_json::to_value(checkout("shop-1-1", 5)).expect("JSON");
        page[member] = json!(value);
        page.to_string()
    };
    for body in [
        "".to_owned(),
        "[]".to_owned(),
        "{}".to_owned(),
        charge("", 1, "USD").to_string(),
        charge(&"r".repeat(201), 1, "USD").to_string(),
        charge("with space", 1, "USD").to_string(),
        charge("r", 0, "USD").to_string(),
        charge("r", -1, "USD").to_string(),
        charge("r", i64::MAX, "USD").to_string(),
        charge("r", 1, "usd").to_string(),
        charge("r", 1, "DOLLAR").to_string(),
    ] {
        let reply = bench.ask("POST", "/v1/charges", &[], &body).await.must_be(422);
        assert_eq!(reply.json()["code"], "invalid", "{body}");
    }
    for (member, value) in [
        ("return_url", "javascript:alert(1)"),
        ("return_url", "/orders/1"),
        ("return_url", "http://shop.example;script-src/"),
        ("return_url", "http://user@shop.example/"),
        ("description", &"x".repeat(501)),
        ("expires_at", "tomorrow"),
        ("reference", "with space"),
    ] {
        let body = page(member, value);
        let reply = bench.ask("POST", "/v1/checkouts", &[], &body).await.must_be(422);
        assert_eq!(reply.json()["code"], "invalid", "{body}");
    }
    for (method, path, status) in [
        ("GET", "/v1/charges", 422),
        ("GET", "/v1/transactions?after=-1", 422),
        ("GET", "/v1/other", 404),
        ("DELETE", "/v1/charges", 405),
    ] {
        bench.ask(method, path, &[], "").await.must_be(status);
    }
    assert_eq!(bench.transactions().await, []);
}

#[tokio::test]
async fn only_the_key_opens_the_api() {
    let bench = Bench::start().await;
    let paths = ["/v1/charges?reference=r", "/v1/transactions", "/v1/faults"];
    for path in paths {
        let url = format!("{}{path}", bench.sandbox.url());
        for wrong in ["", "Bearer", "Bearer ", "Bearer a ke", "Bearer a keyy", "bearer a key"] {
            let reply = ask("GET", &url, &[("authorization", wrong)], "").await.must_be(401);
            assert_eq!(reply.json()["code"], "unauthenticated", "{path} {wrong:?}");
        }
        ask("GET", &url, &[], "").await.must_be(401);
        bench.ask("GET", path, &[], "").await.must_be(200);
    }
    let other = HttpProvider::new(&bench.sandbox.url(), "another key").expect("a provider");
    assert_eq!(refused(other.charge(&payment("r", 1)).await), "unauthenticated");
}

#[tokio::test]
async fn a_provider_that_cannot_be_reached_is_unknown_not_refused() {
    let (listener, cut) = (tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port"), 20);
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let provider = HttpProvider::new(&url, KEY).expect("a provider");
    // Something that answers, but is no provider: then nobody at all.
    for answer in [
        "HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nno",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno",
        "HTTP/1.1 500 Oh\r\ncontent-length: 12\r\n\r\n{\"code\":\"no\"}",
        "HTTP/1.1 429 Oh\r\ncontent-length: 13\r\n\r\n{\"code\":\"no\"}",
        "HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n{\"id\":",
        "HTTP/1.1 2",
    ] {
        let serve = async {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let _ = stream.read_exact(&mut vec![0; cut]).await;
            stream.write_all(answer.as_bytes()).await.expect("sent");
        };
        let request = payment("r", 1);
        let (answered, ()) = tokio::join!(provider.charge(&request), serve);
        unknown(answered);
    }
    drop(listener);
    unknown(provider.charges("r").await);
    for bad in ["", "shop", "https://pay.example", "http://", "http://pay.example/?a=b"] {
        assert!(HttpProvider::new(bad, KEY).is_err(), "{bad}");
    }
    assert!(HttpProvider::new(&url, "two\nlines").is_err());
}
