//! Reading orders.

use crate::domain::{Order, OrderId, OrderStatus, SaleId, UserId};
use crate::postgres::Pool;
use std::collections::HashSet;

/// A page of a list of orders, newest first.
#[derive(Debug, Clone, Copy)]
pub struct Page {
    pub limit: u16,
    /// Only orders older than this one.
    pub after: Option<OrderId>,
}

/// A query for rows of [`Order`]; their columns go between the two texts.
macro_rules! order_query {
    ($after:literal) => {
        order_query!("SELECT ", $after)
    };
    ($before:literal, $after:literal) => {
        sqlx::query_as::<_, Order>(concat!(
            $before,
            "o.id, o.sale_id, s.title AS sale_title, o.user_id, o.status, o.price_cents,
             s.currency, o.created_at, o.pay_by, o.paid_at, o.closed_at,
             (SELECT min(p.state)::text FROM payments p
              WHERE p.order_id = o.id AND p.reason IS DISTINCT FROM 'abandoned') AS payment",
            $after
        ))
    };
}

/// The user's order; somebody else's is as absent as one that does not exist (I12).
pub async fn of_user(postgres: &Pool, user: UserId, id: OrderId) -> sqlx::Result<Option<Order>> {
    let query = order_query!(
        " FROM orders o JOIN sales s ON s.id = o.sale_id
         WHERE o.id = $1 AND o.user_id = $2"
    );
    query.bind(id).bind(user).fetch_optional(postgres).await
}

/// The same for many at once: the wanted orders that belong to the wanted users.
///
/// Owners are compared here, not in the query (I12): with a join on pairs Postgres expects a row or
/// none, and reads `sales` anew for every row, three times the time for 256 orders.
pub async fn of_users(
    postgres: &Pool,
    wanted: &HashSet<(UserId, OrderId)>,
) -> sqlx::Result<Vec<Order>> {
    let ids: Vec<i64> = wanted.iter().map(|(_, id)| id.get()).collect();
    let mut found = by_ids(postgres, &ids).await?;
    found.retain(|order| wanted.contains(&(order.user_id, order.id)));
    Ok(found)
}

/// A shopper's orders, newest first.
///
/// MATERIALIZED: without fresh statistics Postgres expects hundreds of orders per user, and would
/// walk all orders backwards for the first few.
pub async fn list_of_user(postgres: &Pool, user: UserId, page: Page) -> sqlx::Result<Vec<Order>> {
    let query = order_query!(
        "WITH o AS MATERIALIZED (SELECT * FROM orders WHERE user_id = $1 AND id < $2)
         SELECT ",
        " FROM o JOIN sales s ON s.id = o.sale_id ORDER BY o.id DESC LIMIT $3"
    );
    let query = query.bind(user);
    let query = query.bind(page.after.map_or(i64::MAX, OrderId::get));
    query.bind(i64::from(page.limit)).fetch_all(postgres).await
}

/// An operator's filter.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    /// Orders of this status; `None`: of any.
    pub status: Option<OrderStatus>,
    /// Orders of this user; `None`: of any.
    pub user: Option<UserId>,
}

/// An operator's list. For all users it walks the primary key backwards: an index would cost every
/// purchase, and this list is read by hand. For one user it is found like a shopper's.
pub async fn list_of_sale(
    postgres: &Pool,
    sale: SaleId,
    Wanted { status, user }: Wanted,
    page: Page,
) -> sqlx::Result<Vec<Order>> {
    let before = page.after.map_or(i64::MAX, OrderId::get);
    let query = match user {
        None => order_query!(
            " FROM orders o JOIN sales s ON s.id = o.sale_id
             WHERE o.sale_id = $1 AND o.id < $2 AND ($3::order_status IS NULL OR o.status = $3)
             ORDER BY o.id DESC LIMIT $4"
        ),
        Some(_) => order_query!(
            "WITH o AS MATERIALIZED (
                 SELECT * FROM orders
                 WHERE sale_id = $1 AND id < $2 AND ($3::order_status IS NULL OR status = $3)
                     AND user_id = $5)
             SELECT ",
            " FROM o JOIN sales s ON s.id = o.sale_id ORDER BY o.id DESC LIMIT $4"
        ),
    };
    let query = query.bind(sale).bind(before).bind(status);
    let query = query.bind(i64::from(page.limit));
    let query = match user {
        None => query,
        Some(user) => query.bind(user),
    };
    query.fetch_all(postgres).await
}

/// The orders with these ids that exist, of any user.
pub async fn by_ids(postgres: &Pool, ids: &[i64]) -> sqlx::Result<Vec<Order>> {
    let query =
        order_query!(" FROM orders o JOIN sales s ON s.id = o.sale_id WHERE o.id = ANY($1)");
    query.bind(ids).fetch_all(postgres).await
}

/// Which of these orders are rows, live or not.
pub async fn existing(postgres: &Pool, ids: &[i64]) -> sqlx::Result<HashSet<OrderId>> {
    let found = sqlx::query_scalar("SELECT id FROM orders WHERE id = ANY($1)");
    let found: Vec<OrderId> = found.bind(ids).fetch_all(postgres).await?;
    Ok(found.into_iter().collect())
}
