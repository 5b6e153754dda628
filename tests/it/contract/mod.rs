//! The HTTP contract, from outside: every route, in its success and in each of its refusals.

mod errors;
mod events;
mod health;
mod operating;
mod pages;
mod shopping;

use crate::support::prelude::*;

const SALE: &str = "id title description image_url currency price_cents original_price_cents stock \
    remaining per_user_limit opens_at closes_at payment_timeout_secs waiting_room purchase_pass \
    challenge_bits state server_time";
const ORDER: &str = "order_id sale_id sale_title status price_cents currency created_at pay_by \
    paid_at closed_at";

const STATES: [&str; 5] = ["scheduled", "open", "sold_out", "paused", "ended"];

const SALES: &str = "/api/v1/admin/sales";
const UNKNOWN: &str = "9223372036854775807";

#[track_caller]
fn assert_members(object: &Value, members: &str) {
    let found = object.as_object().map(|object| object.keys());
    let found: BTreeSet<&str> = found.into_iter().flatten().map(String::as_str).collect();
    assert_eq!(found, members.split_whitespace().collect(), "{object:#}");
}

/// Of what kind each member is, here and in an order: tests of `http::sales` and `http::orders`.
#[track_caller]
fn assert_sale(sale: &Value) {
    assert_members(sale, SALE);
    for member in ["opens_at", "closes_at", "server_time"] {
        time_of(&sale[member]);
    }
    assert!(STATES.iter().any(|state| sale["state"] == **state), "{sale:#}");
}

#[track_caller]
pub fn assert_order(order: &Value) {
    let paid = if order.get("payment").is_some() { " payment" } else { "" };
    assert_members(order, &format!("{ORDER}{paid}"));
    time_of(&order["created_at"]);
    let times = match order["status"].as_str().unwrap_or_default() {
        "queued" => "",
        "pending_payment" => "pay_by",
        "paid" => "pay_by paid_at",
        "cancelled" | "expired" => "pay_by closed_at",
        "rejected" => "closed_at",
        other => panic!("{other}: {order:#}"),
    };
    for member in ["pay_by", "paid_at", "closed_at"] {
        match times.contains(member) {
            true => drop(time_of(&order[member])),
            false => assert_eq!(order[member], Value::Null, "{member}: {order:#}"),
        }
    }
}

fn column(list: &Value, member: &str) -> Vec<String> {
    let objects = list.as_array().expect("a list").iter();
    objects.map(|object| object[member].as_str().expect(member).to_owned()).collect()
}

#[track_caller]
fn assert_time_to_pay(order: &Value, seconds: i64, asked: OffsetDateTime) {
    let written = time_of(&order["pay_by"]) - time::Duration::seconds(seconds);
    assert!(asked <= written && written <= OffsetDateTime::now_utc(), "{order:#}");
}

/// For requests that must not be answered with a stream: reading one to its end takes for ever.
async fn within_timeout<T>(answer: impl IntoFuture<Output = T>) -> T {
    let answer = tokio::time::timeout(TEST_TIMEOUT, answer.into_future()).await;
    answer.expect("an answer that ends")
}

#[track_caller]
fn assert_refused(reply: &Reply, what: &str) {
    assert!(reply.status.is_client_error() && !reply.code().is_empty(), "{what}: {reply:?}");
    reply.assert_problem_at(what, reply.status.as_u16(), reply.code());
}

impl TestApp {
    async fn add_stock(&self, id: &str, add: i64) -> Reply {
        self.admin_sale("POST", id, "/stock", Some(json!({ "add": add }))).await
    }

    /// The rows and the public catalogue, which a request without effect leaves as they are.
    pub async fn snapshot(&self) -> String {
        let rows = "SELECT concat_ws(E'\n',
            (SELECT string_agg(s::text, E'\n' ORDER BY id) FROM sales s),
            (SELECT string_agg(o::text, E'\n' ORDER BY id) FROM orders o),
            (SELECT string_agg((p.id, p.state, p.charge_id, p.reason, p.updated_at)::text, E'\n'
                               ORDER BY p.id) FROM payments p),
            (SELECT string_agg(w::text, E'\n') FROM webhook_events w))";
        let rows: String = self.value(rows).await;
        let mut shown = self.get("/api/v1/sales").await.body;
        for sale in shown["sales"].as_array_mut().expect("sales") {
            sale["server_time"] = Value::Null;
        }
        format!("{rows}\n{shown:#}")
    }
}
