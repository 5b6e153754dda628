//! Webhooks that are refused, and answers that are found without them.

use crate::payments::scripted::Mood;
use crate::payments::{HOOK, SECRET_OF_HOOKS, Till, event, until_payment};
use crate::support::{prelude::*, trace::Trace};
use ::payments::provider::{Charge, ChargeRequest, ChargeStatus, PaymentProvider};

/// On one thread, so that the log of all that happens is seen.
#[tokio::test]
async fn a_bad_webhook_is_refused_with_its_code_and_changes_nothing() {
    let (trace, _guard) = Trace::here();
    let till = Till::open().await;
    till.buyer_at_page().await;
    // Nobody looks for it meanwhile.
    till.app.execute("UPDATE payments SET due_at = 'infinity'").await;
    let charge = till.provider.confirm();
    let before = till.app.snapshot().await;
    let good = event("evt_1", &charge);
    let noted = |note: &str| good.replacen('{', &format!("{{\"note\":{note},"), 1);
    let with = |charge: Charge| event("evt_1", &charge);
    // Too long for an index, and no run of one letter, which would be compressed.
    let long: String = (0..400).map(|_| uuid::Uuid::new_v4().to_string()).collect();
    let malformed = [
        String::new(),
        "{".to_owned(),
        r#"{"id":"evt_1","type":"ping"}"#.to_owned(),
        noted(r#""\ud800""#),
        noted(r#""\u0000""#),
        noted("1e400000"),
        noted(&"[".repeat(9_000)),
        event(&long, &charge),
        with(Charge { id: format!("{}\0", charge.id), ..charge.clone() }),
    ];
    let foreign = [with(Charge { reference: "other-1-1".to_owned(), ..charge.clone() })];
    let less = with(Charge { amount_cents: 99, ..charge.clone() });
    let wrong = [less, with(Charge { currency: "EUR".to_owned(), ..charge.clone() })];
    let good_one = [good.clone()];
    let cases: [(&[String], &str, i64, u16, &str); 6] = [
        (&good_one, "another secret", 0, 401, "webhook_signature_invalid"),
        (&good_one, SECRET_OF_HOOKS, 301, 401, "webhook_expired"),
        (&good_one, SECRET_OF_HOOKS, -400, 401, "webhook_expired"),
        (&malformed, SECRET_OF_HOOKS, 0, 400, "webhook_malformed"),
        (&foreign, SECRET_OF_HOOKS, 0, 422, "charge_unknown"),
        (&wrong, SECRET_OF_HOOKS, 0, 422, "amount_mismatch"),
    ];
    for (bodies, secret, age, status, code) in cases {
        for body in bodies {
            trace.clear();
            till.deliver_raw(body, secret, age).await.assert_problem_at(body, status, code);
            assert_eq!(trace.codes(), [code], "{body}");
            assert_eq!(till.app.snapshot().await, before, "{body}");
        }
    }
    trace.clear();
    let name = "webhook-signature";
    for header in [("accept", "*/*"), (name, ""), (name, "t=1,v1=00"), (name, "\u{e9}")] {
        let hook = till.app.ask("POST", HOOK).headers(&[header]);
        hook.body(good.clone()).await.assert_problem(401, "webhook_signature_invalid");
    }
    assert_eq!(trace.codes(), ["webhook_signature_invalid"; 4]);
    assert_eq!(till.app.snapshot().await, before);
    till.app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_is_applied_once_and_in_any_order() {
    let till = Till::open().await;
    let (shopper, order) = till.buyer_at_page().await;
    let charge = till.provider.confirm();
    // A backslash and u0000, which are text.
    let good = event("evt_1", &charge).replacen('{', r#"{"note":"\\u0000","#, 1);
    till.deliver_raw(&good, SECRET_OF_HOOKS, 200).await.assert(204);
    let paid = shopper.until(&order, "paid").await;
    let after = till.app.snapshot().await;
    till.deliver_raw(&good, SECRET_OF_HOOKS, 0).await.assert(204);
    assert_eq!(till.app.snapshot().await, after, "a replay");
    // What was true before comes after it.
    till.deliver("evt_2", &Charge { status: ChargeStatus::Declined, ..charge }).await.assert(204);
    assert_eq!(shopper.order(&order).await.body, paid);
    till.assert_books(100, 0).await;
    // Refunded at the provider's: the event comes before the one of the capture.
    let (shopper, order) = till.buyer_at_page().await;
    let captured = till.provider.confirm();
    till.provider.refund("by hand", &captured.id, 100).await.expect("a refund");
    till.deliver("evt_4", &Charge { refunded_cents: 100, ..captured.clone() }).await.assert(204);
    till.deliver("evt_3", &captured).await.assert(204);
    let order = shopper.order(&order).await;
    order.assert_has(json!({"status": "pending_payment", "payment": "refunded"}));
    till.assert_books(100, 1).await;
    // A month later they are forgotten, and one that comes again still changes nothing.
    let age = "UPDATE webhook_events SET received_at = now() - interval '31 days'
               WHERE event_id IN ('evt_1', 'evt_2')";
    till.app.execute(age).await;
    assert_eq!(till.app.services.payments.ledger.forget_step().await.expect("a step"), 2);
    till.deliver_raw(&good, SECRET_OF_HOOKS, 0).await.assert(204);
    till.assert_books(100, 1).await;
}

/// All that are due are found in the first step after the provider's return; those that were asked
/// for while it was away are due half a minute later at most.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lost_answers_of_a_crowd_are_found_in_one_step() {
    let till = Till::open_with(Options::without_writer()).await; // nothing steps but the test
    let crowd = "INSERT INTO orders
            (id, sale_id, user_id, slot, status, price_cents, created_at, pay_by)
        SELECT n, id, gen_random_uuid(), 0, 'pending_payment', 100, now(), now() + '1 h'
        FROM sales, generate_series(1, 2000) n;
        INSERT INTO payments (order_id, amount_cents, currency, attempt, reference, state)
        SELECT n, 100, 'USD', 1, 'crowd-' || n, 'intent' FROM generate_series(1, 2000) n";
    till.app.execute(crowd).await;
    for order in 1..=2_000 {
        let (reference, currency) = (format!("crowd-{order}"), "USD".to_owned());
        let request = ChargeRequest { reference, amount_cents: 100, currency };
        till.provider.charges_anew(&request, ChargeStatus::Succeeded);
    }
    let ledger = &till.app.services.payments.ledger;
    till.provider.is(Mood::Away);
    for _ in 0..20 {
        ledger.reconcile_step().await.expect_err("the provider is away");
    }
    let open = "SELECT count(*) FROM payments WHERE state = 'intent' AND";
    let due = till.app.number(&format!("{open} due_at <= now()")).await;
    assert!(due > 1_500, "{due}");
    assert_eq!(till.app.number(&format!("{open} due_at > now() + '30 s'")).await, 0);
    till.provider.is(Mood::Accepts);
    ledger.reconcile_step().await.expect("the provider is back");
    let captured = "SELECT count(*) FROM payments WHERE state = 'captured'";
    assert!(till.app.number(captured).await >= due);
    till.app.execute("UPDATE payments SET due_at = now()").await;
    ledger.reconcile_step().await.expect("the others are due");
    assert_eq!(till.app.number(captured).await, 2_000);
}

/// It cannot know what the provider of another instance has charged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_without_the_provider_gives_up_only_what_it_began() {
    let (till, shopper) = Till::at_rest(2).await;
    shopper.open_page("1").await;
    let (without, _channel) = till.app.services_without_tasks();
    let ledger = &without.payments.ledger;
    let begun = ledger.attempt(2, 100, "USD").await;
    assert!(begun.expect("postgres").is_some());
    let expire = "UPDATE orders SET status = 'expired', slot = NULL,
            closed_at = now() - interval '1 h', pay_by = now() - interval '1 h';
        UPDATE payments SET due_at = now()";
    till.app.execute(expire).await;
    assert_eq!(ledger.reconcile_step().await.expect("a step"), 1);
    let states = "SELECT string_agg(state::text, ' ' ORDER BY order_id) FROM payments";
    assert_eq!(till.app.value::<String>(states).await, "intent failed");
    till.provider.confirm();
    till.app.execute("UPDATE payments SET due_at = now()").await;
    let own = &till.app.services.payments.ledger;
    assert_eq!(own.reconcile_step().await.expect("a step"), 1);
    assert_eq!(own.refund_step().await.expect("a step"), 1);
    until_payment(&shopper, "1", "refunded").await;
}
