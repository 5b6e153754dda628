//! Webhooks: signed (the shop's side checks every one), and sent until they are taken.

use crate::support::*;

#[tokio::test]
async fn every_movement_is_told_with_its_charge_as_it_was() {
    let mut bench = Bench::start().await;
    let charge = bench.charge("shop-1-1").await;
    let told = bench.shop.next().await;
    assert!(told.id.starts_with("evt_"), "{told:?}");
    assert_eq!((&*told.kind, &told.charge), ("charge.succeeded", &charge));
    bench.provider.refund("refund-1", &charge.id, 400).await.expect("a refund");
    let told = bench.shop.next().await;
    let refunded = Charge { refunded_cents: 400, ..charge };
    assert_eq!((&*told.kind, told.charge), ("charge.refunded", refunded));
    bench.faults(json!({ "decline": 1 })).await;
    let charge = bench.charge("shop-2-1").await;
    let told = bench.shop.next().await;
    assert_eq!((&*told.kind, told.charge), ("charge.declined", charge));
}

#[tokio::test]
async fn a_webhook_is_sent_until_it_is_taken_and_not_again() {
    let mut bench = Bench::start().await;
    bench.shop.answer(&[500, 404, 302, 401]);
    bench.charge("shop-1-1").await;
    let first = bench.shop.next().await;
    for _ in 0..4 {
        assert_eq!(bench.shop.next().await, first);
    }
    bench.charge("shop-2-1").await;
    assert_eq!(bench.shop.references(1).await, ["shop-2-1"]);
    until_delivered(&bench, 2).await;
    let mut bench = bench.restart().await;
    bench.charge("shop-3-1").await;
    assert_eq!(bench.shop.references(1).await, ["shop-3-1"], "those before were taken");
}

/// Until the journal knows that so many events need no more delivery.
async fn until_delivered(bench: &Bench, count: usize) {
    within("the deliveries", async {
        let delivered = || {
            let text = std::fs::read_to_string(bench.folder.file()).expect("the file");
            text.matches("{\"entry\":\"delivered\"").count()
        };
        while delivered() < count {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn what_was_not_taken_is_sent_after_a_restart() {
    let mut shop = Shop::open().await;
    let url = std::mem::replace(&mut shop.url, "http://127.0.0.1:9/closed".to_owned());
    let bench = Bench::start_on(Folder::new(), shop).await;
    let charge = bench.charge("shop-1-1").await;
    bench.provider.refund("refund-1", &charge.id, 1_000).await.expect("a refund");
    let (folder, mut shop) = bench.stop().await;
    shop.url = url;
    let mut bench = Bench::start_on(folder, shop).await;
    let mut kinds = [bench.shop.next().await.kind, bench.shop.next().await.kind];
    kinds.sort();
    assert_eq!(kinds, ["charge.refunded", "charge.succeeded"]);
}

#[tokio::test]
async fn a_lost_webhook_never_comes() {
    let bench = Bench::start().await;
    bench.faults(json!({ "webhook_lose": 1 })).await;
    bench.charge("shop-1-1").await;
    until_delivered(&bench, 1).await;
    bench.faults(json!({})).await;
    let mut bench = bench.restart().await;
    bench.charge("shop-2-1").await;
    assert_eq!(bench.shop.references(1).await, ["shop-2-1"]);
}

#[tokio::test]
async fn a_doubled_webhook_comes_twice_with_the_same_name() {
    let mut bench = Bench::start().await;
    bench.faults(json!({ "webhook_double": 1 })).await;
    bench.charge("shop-1-1").await;
    let first = bench.shop.next().await;
    assert_eq!(bench.shop.next().await, first);
    until_delivered(&bench, 1).await;
    bench.charge("shop-2-1").await;
    assert_eq!(bench.shop.references(2).await, ["shop-2-1", "shop-2-1"]);
}

#[tokio::test]
async fn reordered_webhooks_come_behind_the_next() {
    let mut bench = Bench::start().await;
    bench.faults(json!({ "webhook_reorder": 1 })).await;
    bench.charge("shop-1-1").await;
    bench.charge("shop-2-1").await;
    assert_eq!(bench.shop.references(2).await, ["shop-2-1", "shop-1-1"]);
    // The last one has none to wait for, and comes nevertheless.
    bench.charge("shop-3-1").await;
    assert_eq!(bench.shop.references(1).await, ["shop-3-1"]);
}

#[tokio::test]
async fn a_delayed_webhook_comes_later_than_others() {
    let mut bench = Bench::start().await;
    bench.faults(json!({ "webhook_delay_ms": 3_600_000 })).await;
    bench.charge("shop-1-1").await;
    bench.faults(json!({})).await;
    bench.charge("shop-2-1").await;
    assert_eq!(bench.shop.references(1).await, ["shop-2-1"]);
    until_delivered(&bench, 1).await;
    let mut bench = bench.restart().await;
    assert_eq!(bench.shop.references(1).await, ["shop-1-1"], "without the fault");
}
