//! The HTTP contract, from outside: every route through the real router, in its success and in
//! each of its refusals.

mod around;
mod credentials;
mod errors;
mod events;
mod operating;
mod pages;
mod shopping;

use crate::support::app::{PATIENCE, Reply, TestApp};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

const SALE: &str = "id title description image_url currency price_cents original_price_cents stock \
    remaining per_user_limit opens_at closes_at payment_timeout_secs waiting_room purchase_pass \
    challenge_bits state server_time";
const ORDER: &str = "order_id sale_id sale_title status price_cents currency created_at pay_by \
    paid_at closed_at";

/// An id that the contract allows and nothing has.
const UNKNOWN: &str = "9223372036854775807";

/// These members and no others.
#[track_caller]
fn assert_members(object: &Value, members: &str) {
    let found = object.as_object().map(|object| object.keys());
    let found: BTreeSet<&str> = found.into_iter().flatten().map(String::as_str).collect();
    let expected: BTreeSet<&str> = members.split_whitespace().collect();
    assert_eq!(found, expected, "{object:#}");
}

/// Each of these members is of this kind.
#[track_caller]
fn assert_kinds(object: &Value, members: &str, is: impl Fn(&Value) -> bool) {
    for member in members.split_whitespace() {
        assert!(is(&object[member]), "{member}: {object:#}");
    }
}

/// A time as the contract writes it: RFC 3339, in UTC.
#[track_caller]
pub fn time_of(value: &Value) -> OffsetDateTime {
    let text = value.as_str().unwrap_or_else(|| panic!("no time: {value}"));
    assert!(text.ends_with('Z'), "not in UTC: {text}");
    OffsetDateTime::parse(text, &Rfc3339).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// An id as the contract writes it: a positive 63-bit number in a string.
fn is_id(value: &Value) -> bool {
    let number = value.as_str().and_then(|text| text.parse::<i64>().ok());
    number.is_some_and(|number| number > 0)
}

#[track_caller]
fn assert_sale(sale: &Value) {
    assert_members(sale, SALE);
    assert_kinds(sale, "id", is_id);
    assert_kinds(sale, "title description image_url currency", Value::is_string);
    let numbers = "price_cents stock remaining per_user_limit payment_timeout_secs";
    assert_kinds(sale, numbers, Value::is_i64);
    let is_price = |price: &Value| price.is_null() || price.is_i64();
    assert_kinds(sale, "original_price_cents", is_price);
    for member in ["opens_at", "closes_at", "server_time"] {
        time_of(&sale[member]);
    }
    let states = ["scheduled", "open", "sold_out", "paused", "ended"];
    assert!(states.iter().any(|state| sale["state"] == **state), "{sale:#}");
}

#[track_caller]
pub fn assert_order(order: &Value) {
    assert_members(order, ORDER);
    assert_kinds(order, "order_id sale_id", is_id);
    assert_kinds(order, "sale_title currency", Value::is_string);
    assert_kinds(order, "price_cents", Value::is_i64);
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
        let present = times.contains(member);
        assert_eq!(order[member].is_string(), present, "{member}: {order:#}");
        if present {
            time_of(&order[member]);
        }
    }
}

/// The time to pay begins when the order is written, which was between `asked` and now.
#[track_caller]
fn assert_time_to_pay(order: &Value, seconds: i64, asked: OffsetDateTime) {
    let written = time_of(&order["pay_by"]) - time::Duration::seconds(seconds);
    assert!(asked <= written && written <= OffsetDateTime::now_utc(), "{order:#}");
}

/// The seconds that a refusal asks to wait, which must be a whole positive number.
#[track_caller]
fn retry_after(reply: &Reply) -> u64 {
    let seconds = reply.header("retry-after").parse().unwrap_or(0);
    assert!(seconds > 0, "no Retry-After: {:?}", reply.headers);
    seconds
}

/// For requests that must not be answered with a stream: reading one to its end takes for ever.
async fn within_patience<T>(answer: impl IntoFuture<Output = T>) -> T {
    let answer = tokio::time::timeout(PATIENCE, answer.into_future()).await;
    answer.expect("an answer that ends")
}

/// A refusal in the 400s that says why: never a 5xx, always a problem with a code.
#[track_caller]
fn assert_refused(reply: &Reply, what: &str) {
    assert!(reply.status.is_client_error() && !reply.code().is_empty(), "{what}: {reply:?}");
    reply.assert_problem_at(what, reply.status.as_u16(), reply.code());
}

fn in_secs(seconds: i64) -> String {
    let at = OffsetDateTime::now_utc() + time::Duration::seconds(seconds);
    at.format(&Rfc3339).expect("a time")
}

impl TestApp {
    async fn add_stock(&self, id: &str, add: i64) -> Reply {
        let body = json!({ "add": add });
        self.admin_sale("POST", id, "/stock", Some(body)).await
    }

    /// The sales and orders in Postgres and the public catalogue, which a request without effect
    /// leaves as they are.
    async fn snapshot(&self) -> String {
        let rows: String = self
            .value(
                "SELECT concat_ws(E'\n',
                    (SELECT string_agg(concat_ws('|', id, title, description, image_url, currency,
                        price_cents, original_price_cents, stock, taken, per_user_limit, opens_at,
                        closes_at, payment_timeout_secs, paused, closed), E'\n' ORDER BY id)
                     FROM sales),
                    (SELECT string_agg(concat_ws('|', id, sale_id, user_id, status), E'\n'
                        ORDER BY id) FROM orders))",
            )
            .await;
        let mut shown = self.get("/api/v1/sales").await.body;
        for sale in shown["sales"].as_array_mut().expect("sales") {
            sale["server_time"] = Value::Null;
        }
        format!("{rows}\n{shown:#}")
    }
}
