//! Streams through a proxy: events at once, heartbeats, a fresh picture from another instance.

use super::*;

/// A proxy that collected events (nginx: 4 KiB) would let followers wait in vain. An idle stream is
/// kept alive.
async fn events_come_at_once_and_from_another_instance_after_a_loss(kind: Kind) {
    let mut deployment = Deployment::start(2, &[]).await;
    let proxy = kind.start(&deployment).await;
    let sale = deployment.running().sale(100).await;
    let follow = || proxy.ask("GET", &format!("/api/v1/sales/{sale}/events"));
    let mut followers = Vec::new();
    for _ in 0..6 {
        let mut events = Events::of(follow()).await;
        events.until(|_| true).await;
        followers.push(events);
    }
    for idle in &mut followers {
        let mut next = async || idle.block().await.ok().flatten().expect("the stream goes on");
        while !next().await.starts_with(':') {}
    }
    for sold in 1..=4 {
        let shopper = proxy.entrance(SECRET).shopper();
        let order = shopper.must_buy(&sale).await;
        for events in &mut followers {
            events.until(|event| event["remaining"] == 100 - sold).await;
        }
        let path = format!("/api/v1/orders/{order}/events");
        let mut order = Events::of(shopper.ask("GET", &path)).await;
        order.until(|event| event["status"] == "pending_payment").await;
    }
    deployment.instances[0] = None; // killed
    proxy.entrance(SECRET).shopper().must_buy(&sale).await;
    let (mut lost, mut kept) = (0, 0);
    for mut events in followers {
        let heard = async {
            while let Ok(Some((_, event))) = events.try_next().await {
                if event["remaining"] == 95 {
                    return true;
                }
            }
            false
        };
        if tokio::time::timeout(TEST_TIMEOUT, heard).await.expect("an event or the end in time") {
            kept += 1;
            continue;
        }
        lost += 1;
        // What `static/js/sse.js` does: it asks again.
        wait_for!("a fresh picture", {
            let response = follow().0.send().await.ok()?;
            (response.status() == 200).then_some(())?;
            let (_, event) = Events::from(response).try_next().await.ok()??;
            (event["remaining"] == 95).then_some(())
        });
    }
    assert!(lost > 0 && kept > 0, "{kind:?}: {lost} lost theirs, {kept} did not");
}

cases! { events_come_at_once_and_from_another_instance_after_a_loss:
    events_come_at_once_and_from_another_instance_after_a_loss_through_nginx => Kind::Nginx,
    events_come_at_once_and_from_another_instance_after_a_loss_through_caddy => Kind::Caddy,
}
