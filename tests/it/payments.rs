//! Payments that go wrong: with a provider that does what the test says, through the real router.

use crate::{life::assert_refused, support::prelude::*};
use ::payments::provider::{Charge, PaymentProvider};
use ::payments::{settings::PaymentLink, signature::WebhookSecret};
use scripted::{Mood, Scripted};

#[path = "../../crates/payments/tests/scripted/mod.rs"]
pub mod scripted;

pub const HOOK: &str = "/api/v1/webhooks/payments";
pub const SECRET_OF_HOOKS: &str = "a secret of two";

pub struct Till {
    pub app: TestApp,
    pub provider: Scripted,
    pub sale: String,
}

impl Till {
    pub async fn open() -> Self {
        Self::open_with(Options::default()).await
    }

    pub async fn open_with(options: Options) -> Self {
        let provider = Scripted::new();
        let webhooks = Some(WebhookSecret::new(SECRET_OF_HOOKS));
        let payments = Some(PaymentLink { provider: Arc::new(provider.clone()), webhooks });
        let app = TestApp::start_with(Options { payments, ..options }).await;
        let sale = app.sale(20, json!({})).await;
        Self { app, provider, sale }
    }

    /// With orders 1, 2, … of a shopper, to be paid. Nothing steps but the test.
    pub async fn at_rest(orders: usize) -> (Self, Shopper) {
        let till = Self::open_with(Options::without_writer()).await;
        let shopper = till.app.shopper();
        let unpaid = format!(
            "INSERT INTO orders
                (id, sale_id, user_id, slot, status, price_cents, created_at, pay_by)
            SELECT n, id, '{}', n, 'pending_payment', 100, now(), now() + '1 h'
            FROM sales, generate_series(1, {orders}) n",
            shopper.user
        );
        till.app.execute(&unpaid).await;
        (till, shopper)
    }

    pub async fn deliver(&self, id: &str, charge: &Charge) -> Reply {
        self.deliver_raw(&event(id, charge), SECRET_OF_HOOKS, 0).await
    }

    pub async fn deliver_raw(&self, body: &str, secret: &str, age: i64) -> Reply {
        let signed_at = OffsetDateTime::now_utc() - time::Duration::seconds(age);
        let signature = WebhookSecret::new(secret).sign(body.as_bytes(), signed_at);
        let hook = self.app.ask("POST", HOOK).header("webhook-signature", signature);
        hook.body(body.to_owned()).await
    }

    pub async fn refund(&self, order: &str, return_unit: bool) -> Reply {
        let path = format!("/api/v1/admin/orders/{order}/refund");
        self.app.admin("POST", &path, Some(json!({ "return_unit": return_unit }))).await
    }

    pub async fn books(&self) -> Value {
        self.app.admin("GET", "/api/v1/admin/books", None).await.must_be(200).body
    }

    /// Nothing is under way, and everything agrees: so much is kept, and so often was refunded.
    pub async fn assert_books(&self, kept: i64, refunds: usize) {
        let books = wait_for!("the books are quiescent", {
            let books = self.books().await;
            (books["quiescent"] == true).then_some(books)
        });
        assert_has(&books, json!({"ok": true, "paid_cents": kept, "drift": []}));
        let captured = books["captured_cents"].as_i64().expect("cents");
        let moved = json!({"captured_cents": captured, "refunded_cents": captured - kept});
        assert_has(&books, moved.clone());
        assert_has(&books["provider"], moved);
        assert_eq!(self.provider.told().refunds.len(), refunds);
    }

    async fn paid_order(&self) -> Winner {
        let (shopper, order) = self.app.buyer(&self.sale).await;
        shopper.pay(&order).await.assert(200);
        (shopper, order)
    }

    pub async fn buyer_at_page(&self) -> Winner {
        let (shopper, order) = self.app.buyer(&self.sale).await;
        shopper.open_page(&order).await;
        (shopper, order)
    }

    fn charge_of(&self, order: &str) -> Charge {
        let of_it = |charge: &&Charge| charge.reference.contains(&format!("-{order}-"));
        self.provider.told().charges.iter().find(of_it).expect("a charge").clone()
    }
}

fn asking(shopper: &Shopper, order: &str, step: &str) -> JoinHandle<Reply> {
    tokio::spawn(shopper.ask("POST", &format!("/api/v1/orders/{order}/{step}")).into_future())
}

pub fn event(id: &str, charge: &Charge) -> String {
    json!({"id": id, "type": "charge.succeeded", "charge": charge}).to_string()
}

pub async fn until_payment(shopper: &Shopper, order: &str, payment: &str) -> Value {
    wait_for!(&format!("the payment of {order} is {payment}"), {
        let reply = shopper.order(order).await;
        (reply.body["payment"] == payment).then_some(reply.body)
    })
}

/// Whatever ends the order between the charge and its record: the money goes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_capture_that_loses_against_cancelling_or_expiry_is_refunded() {
    let till = Till::open_with(Options::without_writer()).await;
    // It writes, expires and releases, and has no provider: it finds no charge before the test.
    let _other = till.app.another(Options::default()).await;
    let points = &till.app.services.fail_points;
    for (status, refunds) in [("cancelled", 1), ("expired", 2)] {
        let (shopper, order) = till.app.buyer(&till.sale).await;
        points.set("pay.charged=pause:600000").expect("a fail point");
        let fired = points.fired("pay.charged");
        let paying = asking(&shopper, &order, "pay");
        wait_for!(points.fired("pay.charged") > fired);
        until_payment(&shopper, &order, "pending").await;
        let due = format!("UPDATE orders SET pay_by = now() WHERE id = {order}");
        match status {
            "cancelled" => shopper.cancel(&order).await.assert(200),
            _ => till.app.execute(&due).await,
        }
        shopper.until(&order, status).await;
        points.resume();
        assert_refused(&paying.await.expect("no panic"), "not_payable", status);
        till.app.services.payments.ledger.refund_step().await.expect("a step");
        assert_eq!(until_payment(&shopper, &order, "refunded").await["status"], status);
        till.assert_books(0, refunds).await;
    }
    till.app.assert_sound(&till.sale).await;
}

/// The capture stands before the row of the order, and the others behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_capture_that_wins_against_cancelling_or_expiry_keeps_its_order() {
    let (till, shopper) = Till::at_rest(2).await;
    for (number, other) in ["cancelling", "expiry"].into_iter().enumerate() {
        let order = (number + 1).to_string();
        let row = format!("SELECT FROM orders WHERE id = {order} FOR NO KEY UPDATE");
        let mut lock = till.app.begin(&row).await;
        let due = format!("UPDATE orders SET pay_by = clock_timestamp() WHERE id = {order}");
        let finish = async {
            till.app.waiting_for_locks(1).await;
            if other == "cancelling" {
                let cancelling = asking(&shopper, &order, "cancel");
                till.app.waiting_for_locks(2).await;
                lock.execute("COMMIT").await.expect("commit");
                cancelling.await.expect("no panic").assert_problem(409, "not_cancellable");
            } else {
                // The capture began in time.
                lock.execute(AssertSqlSafe(due)).await.expect("it is due");
                lock.execute("COMMIT").await.expect("commit");
            }
        };
        let (paid, ()) = tokio::join!(shopper.pay(&order), finish);
        paid.must_be(200).assert_has(json!({"status": "paid", "payment": "captured"}));
        till.app.services.orders.expire_step().await.expect("a sweep");
        assert_eq!(shopper.order(&order).await.text("status"), "paid");
        till.assert_books(100 * (number as i64 + 1), 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn money_that_comes_late_or_twice_goes_back() {
    let till = Till::open().await;
    let (shopper, order) = till.app.buyer(&till.sale).await;
    let url = shopper.open_page(&order).await;
    assert_eq!(shopper.open_page(&order).await, url, "one attempt");
    let back = till.provider.told().pages[0].return_url.clone();
    assert_eq!(back, till.app.url(&format!("/orders?order={order}")));
    shopper.cancel(&order).await.assert(200);
    till.deliver("evt_late", &till.provider.confirm()).await.assert(204);
    assert_eq!(until_payment(&shopper, &order, "refunded").await["status"], "cancelled");
    till.assert_books(0, 1).await;

    let (shopper, order) = till.buyer_at_page().await;
    till.deliver("evt_first", &till.provider.confirm()).await.assert(204);
    shopper.until(&order, "paid").await;
    let second = till.provider.confirm();
    for id in ["evt_second", "evt_second", "evt_again"] {
        till.deliver(id, &second).await.assert(204);
    }
    till.assert_books(100, 2).await;
    shopper.order(&order).await.assert_has(json!({"status": "paid", "payment": "captured"}));
    let why = "SELECT string_agg(reason, ' ' ORDER BY id) FROM payments WHERE state = 'refunded'";
    assert_eq!(till.app.value::<String>(why).await, "late duplicate");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_declined_payment_can_be_tried_again_and_a_lost_answer_is_found() {
    let till = Till::open().await;
    let (shopper, order) = till.app.buyer(&till.sale).await;
    assert_eq!(shopper.order(&order).await.body.get("payment"), None);
    till.provider.is(Mood::Declines);
    let declined = shopper.pay(&order).await;
    declined.assert_problem(409, "payment_declined");
    assert_eq!(declined.text("detail"), "no cover");
    until_payment(&shopper, &order, "declined").await;
    till.provider.is(Mood::Away);
    for _ in 0..2 {
        assert_eq!(shopper.pay(&order).await.assert_told_when(503, "payment_pending"), 1);
    }
    until_payment(&shopper, &order, "pending").await;
    till.app.services.payments.ledger.reconcile_step().await.ok();
    till.provider.is(Mood::LosesAnswers);
    shopper.pay(&order).await.assert_problem(503, "payment_pending");
    till.provider.is(Mood::Accepts);
    // Nobody asks for it any more but reconciliation.
    assert_eq!(shopper.until(&order, "paid").await["payment"], "captured");
    assert_eq!(till.app.number("SELECT count(*) FROM payments").await, 2);
    till.assert_books(100, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_is_given_up_when_its_order_was_long_closed() {
    let till = Till::open().await;
    let (shopper, order) = till.buyer_at_page().await;
    shopper.cancel(&order).await.assert(200);
    let ledger = &till.app.services.payments.ledger;
    let reference: String = till.app.value("SELECT reference FROM payments").await;
    let id = order.parse().expect("an id");
    ledger.reconcile(&reference, id).await.expect("an answer");
    assert_eq!(shopper.order(&order).await.body["payment"], "pending");
    let long_ago = "now() - interval '11 minutes'";
    let close = format!("UPDATE orders SET closed_at = {long_ago}, pay_by = {long_ago}");
    till.app.execute(&close).await;
    ledger.reconcile(&reference, id).await.expect("an answer");
    assert_eq!(shopper.order(&order).await.body.get("payment"), None);
    // One that comes all the same goes back, also if an operator asks for that meanwhile.
    till.provider.is(Mood::Away);
    till.deliver("evt_late", &till.provider.confirm()).await.assert(204);
    till.refund(&order, true).await.must_be(200).assert_has(json!({"payment": "refunding"}));
    till.provider.is(Mood::Accepts);
    till.app.execute("UPDATE payments SET due_at = now()").await;
    until_payment(&shopper, &order, "refunded").await;
    till.assert_books(0, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operators_refund_returns_the_money_once_and_the_unit_if_told_to() {
    let till = Till::open().await;
    let (keeper, kept) = &till.paid_order().await;
    let (returner, returned) = &till.paid_order().await;
    till.refund("7", true).await.assert_problem(404, "order_not_found");
    let unpaid = till.refund(&till.app.buyer(&till.sale).await.1, true).await;
    assert_refused(&unpaid, "not_refundable", "pending_payment");
    till.provider.is(Mood::Away);
    till.refund(kept, false).await.must_be(200).assert_has(json!({"status": "paid"}));
    for _ in 0..2 {
        let refunding = till.refund(returned, true).await.must_be(200);
        refunding.assert_has(json!({"status": "cancelled", "payment": "refunding"}));
    }
    assert_eq!(till.books().await["quiescent"], false);
    till.provider.is(Mood::Accepts);
    till.app.execute("UPDATE payments SET due_at = now()").await;
    assert_eq!(until_payment(keeper, kept, "refunded").await["status"], "paid");
    assert_eq!(until_payment(returner, returned, "refunded").await["status"], "cancelled");
    till.refund(returned, true).await.assert(200);
    returner.pay(returned).await.assert_problem(409, "not_payable");
    till.assert_books(0, 2).await;
    let expected = json!({"paid": 1, "cancelled": 1, "remaining": 18});
    till.app.assert_sound_with(&till.sale, expected).await;
    let (orders, id) = (&till.app.services.orders, kept.parse().expect("an id"));
    let watching = async || orders.watch_order(keeper.user, id).await.expect("the order");
    let _first = watching().await;
    till.refund(kept, true).await.must_be(200).assert_has(json!({"status": "cancelled"}));
    assert_eq!(watching().await.borrow().status.as_str(), "cancelled");
    let expected = json!({"paid": 0, "cancelled": 2, "remaining": 19});
    till.app.assert_sound_with(&till.sale, expected).await;
    till.assert_books(0, 2).await;
}

/// A part went back at the provider's before; and a refusal that stays is for an operator.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_of_a_charge_goes_back_and_a_refused_refund_is_named_and_not_repeated() {
    let till = Till::open().await;
    let (parted, part) = &till.paid_order().await;
    let (_, stuck) = &till.paid_order().await;
    till.provider.refund("by hand", &till.charge_of(part).id, 40).await.expect("a part");
    till.refund(part, true).await.assert(200);
    until_payment(parted, part, "refunded").await;
    till.assert_books(100, 2).await;
    till.provider.is(Mood::RefusesRefunds);
    till.refund(stuck, true).await.assert(200);
    let drift = wait_for!("the refusal is named", {
        till.books().await["drift"][0].as_str().map(str::to_owned)
    });
    let charge = till.charge_of(stuck).id;
    assert_eq!(drift, format!("{charge}: its refund for order {stuck} is refused: too_old: no"));
    till.app.execute("UPDATE payments SET due_at = now()").await;
    assert_eq!(till.app.services.payments.ledger.refund_step().await.expect("nothing waits"), 0);
    till.provider.is(Mood::Accepts);
    till.refund(stuck, true).await.assert(200);
    till.assert_books(0, 3).await;
    // What an order keeps stays when a duplicate is tried again.
    let (shopper, order) = till.buyer_at_page().await;
    till.provider.is(Mood::RefusesRefunds);
    for id in ["evt_kept", "evt_duplicate"] {
        till.deliver(id, &till.provider.confirm()).await.assert(204);
    }
    wait_for!(till.books().await["drift"][0].is_string());
    till.provider.is(Mood::Accepts);
    till.refund(&order, false).await.assert(200);
    till.assert_books(100, 4).await;
    shopper.order(&order).await.assert_has(json!({"status": "paid", "payment": "captured"}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_costs_nothing_needs_no_page() {
    let till = Till::open().await;
    let sale = till.app.sale(1, json!({"price_cents": 0})).await;
    let (shopper, order) = till.app.buyer(&sale).await;
    assert_eq!(shopper.open_page(&order).await, till.app.url(&format!("/orders?order={order}")));
    shopper.until(&order, "paid").await;
    till.assert_books(0, 0).await;
}

/// As a refund does: an attempt that had the order first would stand in a deadlock with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_locks_its_payments_before_the_order() {
    let till = Till::open().await;
    let (shopper, order) = till.buyer_at_page().await;
    let payments = format!("SELECT FROM payments WHERE order_id = {order} FOR UPDATE");
    let mut lock = till.app.begin(&payments).await;
    let paying = asking(&shopper, &order, "pay");
    till.app.waiting_for_locks(1).await;
    let row = format!("SELECT FROM orders WHERE id = {order} FOR UPDATE; COMMIT");
    lock.execute(AssertSqlSafe(row)).await.expect("no deadlock");
    paying.await.expect("no panic").assert(200);
    till.assert_books(100, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_books_name_what_does_not_agree() {
    let till = Till::open().await;
    let paid = async || till.paid_order().await.1;
    let [lost, unpaid, refunded, cheap] = &[paid().await, paid().await, paid().await, paid().await];
    till.assert_books(400, 0).await;
    let charge = |order: &str| till.charge_of(order);
    let damage = format!(
        "DELETE FROM payments WHERE order_id = {lost};
         UPDATE orders SET status = 'cancelled', slot = NULL, paid_at = NULL, closed_at = now()
         WHERE id = {unpaid};
         UPDATE payments SET state = 'refunded', reason = 'operator' WHERE order_id = {refunded};
         UPDATE payments SET amount_cents = 1 WHERE order_id = {cheap}"
    );
    till.app.execute(&damage).await;
    let Charge { id, reference, .. } = charge(lost);
    let mut expected = vec![
        format!("order {lost} is paid, and nothing was captured"),
        format!("{id}: 100 captured for {reference}, and not in the ledger"),
        format!("{}: 100 captured for order {unpaid}, which is not paid", charge(unpaid).reference),
        format!("{}: 0 refunded of order {refunded}, 100 in the ledger", charge(refunded).id),
        format!("order {cheap}: 1 captured, its price is 100"),
        format!("{}: 100 captured for order {cheap}, 1 in the ledger", charge(cheap).id),
    ];
    expected.sort();
    assert_has(&till.books().await, json!({"ok": false, "drift": expected}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_are_not_in_order_where_their_provider_is_not_known() {
    let till = Till::open().await;
    let other = till.app.another(Options::default()).await;
    let drift = "payments were captured by a provider that is not configured (PAYMENT_URL)";
    // What is simulated there is in order.
    for (app, drift) in [(&other, &[][..]), (&till.app, &[drift])] {
        let (shopper, order) = app.buyer(&till.sale).await;
        shopper.pay(&order).await.assert(200);
        let books = other.admin("GET", "/api/v1/admin/books", None).await.must_be(200).body;
        assert_has(&books, json!({"ok": drift.is_empty(), "provider": null, "drift": drift}));
    }
}
