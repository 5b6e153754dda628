//! Faults of the provider itself: late, silent, away, declining.

use crate::support::*;

#[tokio::test]
async fn a_charge_that_is_not_answered_is_found_by_its_reference() {
    let bench = Bench::start().await;
    bench.faults(json!({ "charge_and_no_answer": 1 })).await;
    unknown(bench.provider.charge(&payment("shop-1-1", 1_000)).await);
    let found = bench.provider.charges("shop-1-1").await.expect("the charges");
    let [charge] = &found[..] else { panic!("charged: {found:?}") };
    unknown(bench.provider.refund("refund-1", &charge.id, 1_000).await);
    bench.faults(json!({})).await;
    assert_eq!(bench.charge("shop-1-1").await.id, charge.id);
    bench.provider.refund("refund-1", &charge.id, 1_000).await.expect("the same refund");
    assert_eq!(bench.transactions().await.len(), 2);
}

#[tokio::test]
async fn a_late_answer_is_late_and_the_charge_is_not() {
    let mut bench = Bench::start().await;
    bench.faults(json!({ "answer_late_ms": 3_600_000 })).await;
    let request = payment("shop-1-1", 1_000);
    tokio::select! {
        answer = bench.provider.charge(&request) => panic!("answered: {answer:?}"),
        told = bench.shop.next() => assert_eq!(told.charge.reference, "shop-1-1"),
    }
    bench.faults(json!({})).await;
    assert_eq!(bench.transactions().await.len(), 1);
}

#[tokio::test]
async fn while_it_is_away_it_does_nothing() {
    let mut bench = Bench::start().await;
    let page = bench.provider.checkout(&checkout("shop-3-1", 5)).await.expect("a page");
    bench.shop.answer(&[500]);
    bench.charge("shop-1-1").await;
    bench.shop.next().await;
    bench.faults(json!({ "away": true })).await;
    unknown(bench.provider.charge(&payment("shop-2-1", 1_000)).await);
    unknown(bench.provider.transactions(0).await);
    let client = payments::client::Http::default();
    let confirm = axum::http::Request::post(format!("{page}/confirm")).body("".into());
    client.send(confirm.expect("a request")).await.expect_err("away");
    bench.faults(json!({})).await;
    assert_eq!(bench.shop.references(1).await, ["shop-1-1"], "it goes on");
    for reference in ["shop-2-1", "shop-3-1"] {
        assert_eq!(bench.provider.charges(reference).await.expect("none"), [], "{reference}");
    }
}

#[tokio::test]
async fn a_declined_charge_moves_no_money() {
    let bench = Bench::start().await;
    bench.faults(json!({ "decline": 1 })).await;
    let charge = bench.charge("shop-1-1").await;
    assert_eq!(charge.status, ChargeStatus::Declined);
    assert_eq!(charge.decline_reason.as_deref(), Some("card_declined"));
    let url = bench.provider.checkout(&checkout("shop-2-1", 5)).await.expect("a page");
    ask("POST", &format!("{url}/confirm"), &[], "").await.must_be(303);
    let found = bench.provider.charges("shop-2-1").await.expect("the charges");
    assert_eq!(found[0].status, ChargeStatus::Declined);
    bench.faults(json!({})).await;
    assert_eq!(bench.charge("shop-1-1").await, charge, "another attempt has another reference");
    let refund = bench.provider.refund("refund-1", &charge.id, 1).await;
    assert_eq!(refused(refund), "refund_exceeds_charge");
    assert_eq!(bench.transactions().await, []);
}

#[tokio::test]
async fn faults_are_replaced_as_a_whole_and_checked() {
    let bench = Bench::start().await;
    let read = async || bench.ask("GET", "/v1/faults", &[], "").await.must_be(200).json();
    let none = read().await;
    assert_eq!((&none["decline"], &none["away"]), (&json!(0.0), &json!(false)));
    bench.faults(json!({ "decline": 0.5, "answer_late_ms": 1 })).await;
    bench.faults(json!({ "webhook_lose": 0.25 })).await;
    let mut some = none.clone();
    some["webhook_lose"] = json!(0.25);
    assert_eq!(read().await, some);
    for bad in [
        json!({ "declines": 1 }),
        json!({ "decline": 1.01 }),
        json!({ "decline": -0.1 }),
        json!({ "away": 1 }),
        json!({ "answer_late_ms": -1 }),
    ] {
        let reply = bench.ask("PUT", "/v1/faults", &[], &bad.to_string()).await.must_be(422);
        assert_eq!(reply.json()["code"], "invalid", "{bad}");
    }
    assert_eq!(read().await, some, "a refused change changes nothing");
}
