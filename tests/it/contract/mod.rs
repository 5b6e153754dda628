//! The HTTP contract, from outside: every route through the real router, in its success and in
//! each of its refusals.

mod around;
mod errors;
mod events;
mod operating;
mod pages;
mod shopping;

use crate::support::app::{PATIENCE, Reply, TestApp};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

const SALE: &str = "id title description image_url currency price_cents original_price_cents stock remaining \
                    per_user_limit opens_at closes_at payment_timeout_secs waiting_room purchase_pass challenge_bits state \
                    server_time";
const ORDER: &str =
    "order_id sale_id sale_title status price_cents currency created_at pay_by paid_at closed_at";
const AUDIT: &str = "sale_id ok quiescent stock remaining live pending_payment paid cancelled expired rejected \
                     backlog oversold duplicate_users conserved redis postgres problems";

/// These members and no others.
#[track_caller]
fn assert_members(object: &Value, members: &str) {
    let found: BTreeSet<&str> = object
        .as_object()
        .unwrap_or_else(|| panic!("no object: {object:#}"))
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(
        found,
        members.split_whitespace().collect::<BTreeSet<&str>>(),
        "{object:#}"
    );
}

/// A time as the contract writes it: RFC 3339, in UTC.
#[track_caller]
fn time_of(value: &Value) -> OffsetDateTime {
    let text = value.as_str().unwrap_or_else(|| panic!("no time: {value}"));
    assert!(text.ends_with('Z'), "not in UTC: {text}");
    OffsetDateTime::parse(text, &Rfc3339).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// An id as the contract writes it: a positive 63-bit number in a string.
#[track_caller]
fn assert_id(value: &Value) {
    let number = value
        .as_str()
        .unwrap_or_else(|| panic!("no string: {value}"))
        .parse::<i64>();
    assert!(number.is_ok_and(|number| number > 0), "{value}");
}

#[track_caller]
fn assert_sale(sale: &Value) {
    assert_members(sale, SALE);
    assert_id(&sale["id"]);
    for member in ["title", "description", "image_url", "currency"] {
        assert!(sale[member].is_string(), "{member}: {sale:#}");
    }
    for member in "price_cents stock remaining per_user_limit payment_timeout_secs".split(' ') {
        assert!(sale[member].is_i64(), "{member}: {sale:#}");
    }
    assert!(
        sale["original_price_cents"].is_null() || sale["original_price_cents"].is_i64(),
        "{sale:#}"
    );
    for member in ["opens_at", "closes_at", "server_time"] {
        time_of(&sale[member]);
    }
    assert!(
        ["scheduled", "open", "sold_out", "paused", "ended"]
            .iter()
            .any(|state| sale["state"] == **state),
        "{sale:#}"
    );
}

#[track_caller]
fn assert_order(order: &Value) {
    assert_members(order, ORDER);
    for member in ["order_id", "sale_id"] {
        assert_id(&order[member]);
    }
    for member in ["sale_title", "currency"] {
        assert!(order[member].is_string(), "{member}: {order:#}");
    }
    assert!(order["price_cents"].is_i64(), "{order:#}");
    time_of(&order["created_at"]);
    let status = order["status"].as_str().unwrap_or_default();
    assert!(
        [
            "queued",
            "pending_payment",
            "paid",
            "cancelled",
            "expired",
            "rejected"
        ]
        .contains(&status),
        "{order:#}"
    );
    for (member, present) in [
        ("pay_by", !["queued", "rejected"].contains(&status)),
        ("paid_at", status == "paid"),
        (
            "closed_at",
            ["cancelled", "expired", "rejected"].contains(&status),
        ),
    ] {
        assert_eq!(order[member].is_string(), present, "{member}: {order:#}");
        if present {
            time_of(&order[member]);
        }
    }
}

/// The seconds that a refusal asks to wait, which must be a whole positive number.
#[track_caller]
fn retry_after(reply: &Reply) -> u64 {
    let seconds = reply.header("retry-after").parse().unwrap_or(0);
    assert!(seconds > 0, "no Retry-After: {:?}", reply.headers);
    seconds
}

/// For requests that must not be answered with a stream: reading one to its end would take for ever.
async fn within_patience<T>(answer: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, answer)
        .await
        .expect("an answer that ends")
}

/// A refusal in the 400s that says why: never a 5xx, always a problem with a code.
#[track_caller]
fn assert_refused(reply: &Reply, what: &str) {
    assert!(
        reply.status.is_client_error(),
        "{what}: {} {:#}",
        reply.status,
        reply.body
    );
    let code = reply.code();
    assert!(
        !code.is_empty(),
        "{what}: {} without a code: {:#}",
        reply.status,
        reply.body
    );
    reply.assert_problem(reply.status.as_u16(), code);
}

fn in_secs(seconds: i64) -> String {
    let at = OffsetDateTime::now_utc() + time::Duration::seconds(seconds);
    at.format(&Rfc3339).expect("a time")
}

impl TestApp {
    async fn sale_now(&self, id: &str) -> Value {
        let reply = self.get(&format!("/api/v1/sales/{id}")).await;
        reply.assert(StatusCode::OK);
        reply.body
    }

    /// An operator's POST to a sale that must succeed; the sale as it answers.
    async fn steer(&self, id: &str, step: &str) -> Value {
        let reply = self
            .admin(
                Method::POST,
                &format!("/api/v1/admin/sales/{id}/{step}"),
                None,
            )
            .await;
        reply.assert(StatusCode::OK);
        assert_sale(&reply.body);
        reply.body
    }

    async fn add_stock(&self, id: &str, add: i64) -> Reply {
        self.admin(
            Method::POST,
            &format!("/api/v1/admin/sales/{id}/stock"),
            Some(json!({"add": add})),
        )
        .await
    }

    /// Whatever a request without effect must leave as it is: what Postgres holds of sales and
    /// orders, and what the catalogue shows.
    async fn snapshot(&self) -> String {
        let mut connection = self.database.connect().await;
        let rows: String = sqlx::query_scalar(
            "SELECT concat_ws(E'\n',
                (SELECT string_agg(concat_ws('|', id, title, description, image_url, currency, price_cents,
                                             original_price_cents, stock, taken, per_user_limit, opens_at, closes_at,
                                             payment_timeout_secs, paused, closed), E'\n' ORDER BY id) FROM sales),
                (SELECT string_agg(concat_ws('|', id, sale_id, user_id, status), E'\n' ORDER BY id) FROM orders))",
        )
        .fetch_one(&mut connection)
        .await
        .expect("rows");
        let mut shown = self.get("/api/v1/sales").await.body;
        for sale in shown["sales"].as_array_mut().expect("sales") {
            sale["server_time"] = Value::Null;
        }
        format!("{rows}\n{shown:#}")
    }
}
