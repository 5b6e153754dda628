//! The stored orders, by the server's own listing or by its database.

use crate::adapter::{Adapter, Listing, Remaining};
use crate::client::{Client, Reply};
use crate::history::{Row, Stored};
use crate::template::{Scope, Variables, scalar, short};
use serde_json::Value;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};
use std::collections::HashSet;

/// More pages than a listing of any storm has.
const MOST_PAGES: usize = 2_000;

/// The database that has the orders.
#[derive(Clone, Debug)]
pub struct Sql {
    options: PgConnectOptions,
    query: String,
}

impl Sql {
    /// `postgres://… SELECT …`: the first two columns are the order id and the buyer.
    pub fn parse(text: &str, allow_remote: bool) -> Result<Self, String> {
        let text = text.trim();
        let (url, query) = text.split_once(char::is_whitespace).ok_or("has a URL but no SELECT")?;
        let options: PgConnectOptions = url.parse().map_err(|error| format!("{error}"))?;
        let host = options.get_host();
        let is_here = host.starts_with('/')
            || host == "localhost"
            || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
        if !is_here && options.get_socket().is_none() && !allow_remote {
            return Err(format!("{host} is not this machine (--allow-remote)"));
        }
        let options = options
            .options([("default_transaction_read_only", "on"), ("statement_timeout", "10000")]);
        let query = query.trim().trim_end_matches(';');
        let query = format!("SELECT a::text, b::text FROM ({query}) AS orders(a, b)");
        Ok(Self { options, query })
    }

    async fn rows(&self) -> Result<Vec<Row>, String> {
        let failed = |error: sqlx::Error| format!("--orders-sql: {error}");
        let opened = self.options.clone().disable_statement_logging().connect().await;
        let mut database = opened.map_err(failed)?;
        let query = sqlx::query_as::<_, (Option<String>, Option<String>)>(AssertSqlSafe(
            self.query.clone(),
        ));
        let rows = query.fetch_all(&mut database).await;
        let _ = database.close().await;
        let row = |(id, user): (Option<String>, Option<String>)| {
            let row = id.zip(user).map(|(order_id, user)| Row { order_id, user });
            row.ok_or_else(|| "--orders-sql: an order id or a buyer is NULL".to_owned())
        };
        rows.map_err(failed)?.into_iter().map(row).collect()
    }
}

/// Reads all that is stored, and what remains.
pub async fn read(
    client: &mut Client,
    adapter: &Adapter,
    sql: Option<&Sql>,
    variables: &Variables,
) -> Result<Stored, String> {
    let mut orders = match (sql, &adapter.orders) {
        (Some(sql), _) => sql.rows().await?,
        (None, Some(listing)) => listed(client, listing, variables).await?,
        (None, None) => return Err("adapter: orders: missing, and no --orders-sql".to_owned()),
    };
    // A listing may have any order, and two of them are compared.
    orders.sort_unstable();
    let remaining = match &adapter.remaining {
        None => None,
        Some(remaining) => remains(client, remaining, variables).await?,
    };
    Ok(Stored { orders, remaining })
}

async fn listed(
    client: &mut Client,
    listing: &Listing,
    variables: &Variables,
) -> Result<Vec<Row>, String> {
    let call = &listing.request;
    let (mut orders, mut seen, mut path) = (Vec::new(), HashSet::new(), call.path.clone());
    let mut last = Variables::new();
    for _ in 0..MOST_PAGES {
        let scope = Scope(&[variables, &last]);
        let request = client.target().request_to(call, &path, scope)?;
        let reply = answered(client.read_all(request).await, &path);
        let reply = reply.map_err(|why| misfit("orders.request", &why))?;
        let rows = reply.body.pointer(&listing.rows).and_then(Value::as_array);
        let no_list = || misfit("orders.rows", &format!("{path}: no list at {:?}", listing.rows));
        let rows = rows.ok_or_else(no_list)?;
        let page: Vec<Row> = rows
            .iter()
            .filter_map(|row| row_of(listing, row).transpose())
            .collect::<Result<_, _>>()?;
        // A row that comes again later is stored twice.
        if let Some(Row { order_id, .. }) = page.first().filter(|row| seen.contains(*row)) {
            return Err(format!(
                "next_page repeats order {order_id}: it must begin after {{last}}"
            ));
        }
        let from = orders.len();
        orders.extend(page);
        let id = rows.last().and_then(|row| row.pointer(&listing.order_id));
        let (Some(next), Some(id)) = (&listing.next_page, id) else { return Ok(orders) };
        seen.extend(orders[from..].iter().cloned());
        path.clone_from(next);
        last.insert("last".to_owned(), id.clone());
    }
    Err(format!("{path}: more than {MOST_PAGES} pages"))
}

/// `None` for a row that is no order.
fn row_of(listing: &Listing, row: &Value) -> Result<Option<Row>, String> {
    let is_skipped = listing
        .skip
        .as_ref()
        .is_some_and(|skip| row.pointer(&skip.at).is_some_and(|value| skip.is.has(value)));
    if is_skipped {
        return Ok(None);
    }
    let member = |name: &str, at: &str| {
        let path = &listing.request.path;
        let nothing = || misfit(name, &format!("{path}: a row has nothing at {at:?}: {row}"));
        row.pointer(at).and_then(scalar).ok_or_else(nothing)
    };
    let order_id = member("orders.order_id", &listing.order_id)?;
    Ok(Some(Row { order_id, user: member("orders.user", &listing.user)? }))
}

async fn remains(
    client: &mut Client,
    remaining: &Remaining,
    variables: &Variables,
) -> Result<Option<i64>, String> {
    let path = &remaining.request.path;
    let request = client.target().request(&remaining.request, Scope(&[variables]))?;
    let reply = client.send(request, false).await;
    if remaining.optional && reply.as_ref().is_ok_and(|reply| reply.status == 404) {
        return Ok(None);
    }
    let reply = answered(reply, path).map_err(|why| misfit("remaining.request", &why))?;
    let value = reply.body.pointer(&remaining.at);
    let number = value.and_then(|value| scalar(value)?.trim().parse().ok());
    let none = || format!("{path}: no whole number at {:?}: {}", remaining.at, reply.body);
    number.map(Some).ok_or_else(|| misfit("remaining.at", &none()))
}

/// The member of the adapter that does not fit the server.
pub fn misfit(member: &str, why: &str) -> String {
    short(&format!("adapter: {member}: {why}"))
}

/// A reply of 2xx.
pub fn answered(
    reply: Result<Reply, crate::client::NoAnswer>,
    what: &str,
) -> Result<Reply, String> {
    match reply {
        Ok(reply) if reply.is_success() => Ok(reply),
        Ok(reply) => {
            let body = scalar(&reply.body).unwrap_or_else(|| reply.body.to_string());
            Err(short(&format!("{what} answered {} {body}", reply.status)))
        }
        Err(error) => Err(format!("{what}: {}", error.why())),
    }
}
