//! The plans of the statements that run under load, read out of Postgres' own list of what the
//! program has prepared. `--nocapture` shows them; docs/indexes.md quotes them.

use crate::support::{
    Servers,
    app::{Options, TestApp},
};
use flash_sale::{
    domain::{OrderId, UserId},
    sale::{Page, orders},
    worker,
};
use reqwest::StatusCode;
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, PgPool, pool::PoolConnection};

/// A statement that the program has prepared on this connection.
struct Prepared {
    connection: usize,
    name: String,
    text: String,
}

/// Takes all connections, so that the program stands still, and lists every distinct statement that
/// it has prepared.
async fn prepared(pool: &PgPool) -> (Vec<PoolConnection<sqlx::Postgres>>, Vec<Prepared>) {
    let mut connections = Vec::new();
    for _ in 0..pool.options().get_max_connections() {
        connections.push(pool.acquire().await.expect("a connection"));
    }
    let mut statements: Vec<Prepared> = Vec::new();
    for (connection, session) in connections.iter_mut().enumerate() {
        let known: Vec<(String, String)> =
            sqlx::query_as("SELECT name, statement FROM pg_prepared_statements")
                .persistent(false)
                .fetch_all(&mut **session)
                .await
                .expect("pg_prepared_statements");
        for (name, statement) in known {
            let text = statement.split_whitespace().collect::<Vec<_>>().join(" ");
            if !statements.iter().any(|other| other.text == text) {
                statements.push(Prepared {
                    connection,
                    name,
                    text,
                });
            }
        }
    }
    (connections, statements)
}

/// The plan of a prepared statement with these arguments, made for them or for any.
async fn explain(
    session: &mut PgConnection,
    statement: &Prepared,
    arguments: &str,
    mode: &str,
) -> String {
    session
        .execute(AssertSqlSafe(format!("SET plan_cache_mode = {mode}")))
        .await
        .expect("plan_cache_mode");
    let arguments = if arguments.is_empty() {
        String::new()
    } else {
        format!("({arguments})")
    };
    let call = format!(
        "EXPLAIN (COSTS OFF) EXECUTE \"{}\" {arguments}",
        statement.name
    );
    let lines: Vec<String> = sqlx::query_scalar(AssertSqlSafe(call.as_str()))
        .persistent(false)
        .fetch_all(session)
        .await
        .unwrap_or_else(|error| panic!("{call} of {}: {error}", statement.text));
    lines.join("\n")
}

/// A statement that runs under load, by words that only it has.
struct Case {
    title: &'static str,
    words: &'static [&'static str],
    /// One text for every parameter; ORDER, USER and SALE are replaced.
    arguments: &'static str,
    /// The indexes that the plan for these arguments must use.
    uses: &'static [&'static str],
}

/// The first so many are what shoppers do.
const SHOPPERS: usize = 5;

const CASES: [Case; 18] = [
    Case {
        title: "A shopper's order, looked up alone",
        words: &["FROM orders o", "WHERE o.id = $1 AND o.user_id = $2"],
        arguments: "ORDER, USER",
        uses: &["orders_pkey"],
    },
    Case {
        title: "My orders, newest first",
        words: &["WHERE user_id = $1 AND id < $2", "ORDER BY o.id DESC LIMIT"],
        arguments: "USER, 9223372036854775807, 50",
        uses: &["orders_one_live_per_user_slot"],
    },
    Case {
        title: "Orders that somebody follows or asks for (one query for all event streams, one for all looks of a moment)",
        words: &["WHERE o.id = ANY($1)"],
        arguments: "ARRAY[ORDER, ORDER - 1, ORDER - 2]",
        uses: &["orders_pkey"],
    },
    Case {
        title: "Paying",
        words: &["WITH paid AS", "INSERT INTO payments"],
        arguments: "ORDER, USER, 'reference'",
        uses: &["orders_pkey"],
    },
    Case {
        title: "Cancelling",
        words: &["SET status = 'cancelled'"],
        arguments: "ORDER, USER",
        uses: &["orders_pkey"],
    },
    Case {
        title: "The scrubber: the newest orders",
        words: &["ORDER BY id DESC LIMIT $1) AS picked"],
        arguments: "64",
        uses: &["orders_pkey"],
    },
    Case {
        title: "The scrubber: orders that follow a random id",
        words: &["random()", "ORDER BY id LIMIT $1) AS picked"],
        arguments: "64",
        uses: &["orders_pkey"],
    },
    Case {
        title: "The sweeper: what is due, of any sale",
        words: &["SET status = 'expired'", "SKIP LOCKED"],
        arguments: "500, NULL",
        uses: &["orders_by_pay_by", "orders_pkey"],
    },
    Case {
        title: "One order that is paid or cancelled after its time",
        words: &["SET status = 'expired'", "WHERE id = $1"],
        arguments: "ORDER",
        uses: &["orders_pkey"],
    },
    Case {
        title: "The outbox: which sales have units to return",
        words: &["SELECT DISTINCT sale_id FROM releases"],
        arguments: "",
        uses: &[], // a queue that is empty most of the time: read whole
    },
    Case {
        title: "The outbox: a sale's units to return",
        words: &["SELECT user_id, order_id, created_at FROM releases WHERE sale_id = $1"],
        arguments: "SALE, 1000",
        uses: &[], // the same
    },
    Case {
        title: "The outbox: units that have been returned",
        words: &["DELETE FROM releases"],
        arguments: "ARRAY[ORDER, ORDER - 1, ORDER - 2], ARRAY[now(), now(), now()]",
        uses: &[], // the same
    },
    Case {
        title: "Live orders of a group of sales, and those that answer replays (a rebuild)",
        words: &["SELECT sale_id, id, user_id, slot, idempotency_hash, status"],
        arguments: "ARRAY[SALE], 8",
        uses: &["orders_by_sale", "orders_replayable"],
    },
    Case {
        title: "Live orders of a sale (the audit)",
        words: &["SELECT id, user_id FROM orders WHERE sale_id = $1 AND status IN"],
        arguments: "SALE",
        uses: &["orders_by_sale"],
    },
    Case {
        title: "Users with too many live orders (the audit)",
        words: &["HAVING count(*) > $2"],
        arguments: "SALE, 1",
        uses: &["orders_by_sale"],
    },
    Case {
        title: "An operator's list of a sale's orders",
        words: &["WHERE o.sale_id = $1 AND o.id < $2"],
        arguments: "SALE, 9223372036854775807, NULL, 50",
        uses: &["Index Scan Backward using orders_pkey"],
    },
    Case {
        title: "An operator's list of a user's orders in a sale",
        words: &["WHERE sale_id = $1 AND id < $2", "AND user_id = $5"],
        arguments: "SALE, 9223372036854775807, NULL, 50, USER",
        uses: &["orders_one_live_per_user_slot"],
    },
    Case {
        title: "A new floor for the id generator",
        words: &["UPDATE id_clock"],
        arguments: "0, 0",
        uses: &["orders_pkey"],
    },
];

/// Statements that do read the whole table, and may.
const NOT_UNDER_LOAD: [&str; 1] = [
    // The audit counts every order of a sale, closed ones too; nobody waits for it.
    "SELECT status, count(*) FROM orders WHERE sale_id = $1 GROUP BY status",
];

/// 20 sales of 3,000 orders each, of 15,000 users, in every state. They ended long ago, so that
/// nobody takes them for sales that Redis has lost.
const FILL: &str = "
    INSERT INTO sales (title, price_cents, stock, taken, opens_at, closes_at)
    SELECT 'sale ' || n, 100, 5000, 2000, now() - interval '9 days', now() - interval '8 days'
    FROM generate_series(1, 20) AS n;
    INSERT INTO orders (id, sale_id, user_id, slot, status, price_cents, idempotency_hash, created_at, pay_by,
                        paid_at, closed_at)
    SELECT n::bigint << 20, s.id, md5((n % 15000)::text)::uuid,
           CASE WHEN d.status IN ('pending_payment', 'paid') THEN 0 END, d.status::order_status, 100,
           CASE WHEN n % 7 = 0 THEN n END, now() - interval '1 hour',
           now() + make_interval(secs => 3600 + n), CASE WHEN d.status = 'paid' THEN now() END,
           CASE WHEN d.status IN ('cancelled', 'expired') THEN now() END
    FROM generate_series(1, 60000) AS n
    JOIN (SELECT id, row_number() OVER (ORDER BY id) - 1 AS number FROM sales WHERE title LIKE 'sale %') AS s
      ON s.number = (n - 1) / 3000
    CROSS JOIN LATERAL (SELECT (ARRAY['pending_payment', 'paid', 'paid', 'paid', 'cancelled', 'expired'])[1 + n % 6]
                        AS status) AS d;
    INSERT INTO payments (order_id, amount_cents, reference) SELECT id, 100, 'x' FROM orders WHERE status = 'paid';
    SELECT brin_summarize_new_values('orders_by_sale');
    ANALYZE;";

#[tokio::test]
async fn statements_under_load_use_their_indexes() {
    let app = TestApp::start_on(Servers::shared().await, Options::default()).await;
    let mut connection = app.database.connect().await;
    connection.execute(FILL).await.expect("fills the tables");
    connection.close().await.expect("close");

    // Run everything once, so that the program prepares its statements.
    let sale = app.sale(100, json!({"payment_timeout_secs": 1})).await;
    let (payer, canceller, idler) = (app.shopper(), app.shopper(), app.shopper());
    let paid = payer.order_to_pay(&sale).await;
    payer.pay(&paid).await.assert(StatusCode::OK);
    payer.cancel(&paid).await.assert(StatusCode::CONFLICT);
    let cancelled = canceller.order_to_pay(&sale).await;
    canceller.cancel(&cancelled).await.assert(StatusCode::OK);
    let expired = idler.must_buy(&sale).await;
    idler.until(&expired, "expired").await;
    payer.get("/api/v1/orders").await.assert(StatusCode::OK);
    let page = Page {
        limit: 50,
        after: None,
    };
    let sale_id = sale.parse().expect("an id");
    for user in [None, Some(UserId::random())] {
        let wanted = orders::Wanted { status: None, user };
        app.shop
            .sale_orders(sale_id, wanted, page)
            .await
            .expect("the operator's list");
    }
    orders::by_ids(&app.shop.postgres, &[1, 2])
        .await
        .expect("by ids");
    orders::of_user(&app.shop.postgres, UserId::random(), OrderId::from_i64(1))
        .await
        .expect("alone");
    app.audit(&sale).await;
    worker::rebuild::by_hand(&app.shop, Some(sale_id))
        .await
        .expect("a rebuild");
    app.shop.release_all().await.expect("releases");
    let mut scrubber = worker::scrub::Scrubber::default();
    for _ in 0..2 {
        scrubber.step(&app.shop).await.expect("a look");
    }
    app.shop
        .order(UserId::random(), OrderId::from_i64(1))
        .await
        .expect_err("nobody's");

    // Arguments that exist, in a sale that is like the others.
    let mut connection = app.database.connect().await;
    let (order, user, sale_number): (OrderId, UserId, i64) = sqlx::query_as(
        "SELECT id, user_id, sale_id FROM orders WHERE status = 'pending_payment' ORDER BY id OFFSET 5000 LIMIT 1",
    )
    .fetch_one(&mut connection)
    .await
    .expect("an order");
    connection.close().await.expect("close");
    let with_values = |arguments: &str| {
        arguments
            .replace("ORDER", &format!("{order}::bigint"))
            .replace("USER", &format!("'{user}'::uuid"))
            .replace("SALE", &format!("{sale_number}::bigint"))
    };

    let (mut sessions, statements) = prepared(app.shop.postgres.connections()).await;
    let mut plans = String::new();
    // Both are empty but for moments: the outbox, and the list of what is due. A sale that few pay for
    // fills them.
    let mut connection = app.database.connect().await;
    connection
        .execute(
            "INSERT INTO releases (order_id, sale_id, user_id)
                 SELECT id, sale_id, user_id FROM orders
                 WHERE status = 'expired' ORDER BY created_at LIMIT 20000;
             UPDATE orders SET pay_by = now() WHERE status = 'pending_payment' AND id % 5 = 0;
             ANALYZE releases, orders;",
        )
        .await
        .expect("fills both");

    for case in &CASES {
        let found: Vec<&Prepared> = statements
            .iter()
            .filter(|statement| {
                case.words
                    .iter()
                    .all(|words| statement.text.contains(words))
            })
            .collect();
        let [statement] = found[..] else {
            panic!(
                "{}: {} statements have {:?}",
                case.title,
                found.len(),
                case.words
            );
        };
        let session = &mut sessions[statement.connection];
        let arguments = with_values(case.arguments);
        let for_these = explain(session, statement, &arguments, "force_custom_plan").await;
        let for_any = explain(session, statement, &arguments, "force_generic_plan").await;
        plans += &format!(
            "### {}\n\n```sql\n{}\n```\n\n```text\n{for_these}\n```\n\n",
            case.title, statement.text
        );
        for index in case.uses {
            assert!(
                for_these.contains(index),
                "{}: not {index:?} but\n{for_these}",
                case.title
            );
        }
        for plan in [for_these, for_any] {
            assert!(
                !plan.contains("Seq Scan on orders"),
                "{}:\n{plan}",
                case.title
            );
        }
    }
    println!("{plans}");

    // A sale fills the table within seconds, long before anybody has counted its rows.
    connection
        .execute("DELETE FROM pg_statistic WHERE starelid = 'orders'::regclass; ALTER TABLE orders SET (fillfactor = 100);")
        .await
        .expect("forgets the statistics");
    for case in &CASES[..SHOPPERS] {
        let is_it = |statement: &&Prepared| {
            case.words
                .iter()
                .all(|words| statement.text.contains(words))
        };
        let statement = statements.iter().find(is_it).expect("found above");
        let session = &mut sessions[statement.connection];
        let arguments = with_values(case.arguments);
        for mode in ["force_custom_plan", "force_generic_plan"] {
            let plan = explain(session, statement, &arguments, mode).await;
            for index in case.uses {
                assert!(
                    plan.contains(index),
                    "{}: without statistics not {index:?} but\n{plan}",
                    case.title
                );
            }
        }
    }
    connection
        .execute("DELETE FROM releases")
        .await
        .expect("empties the outbox");
    connection.close().await.expect("close");

    // A statement on orders that nobody has looked at here must not slip in.
    for statement in &statements {
        let on_orders = [" orders ", " orders)"]
            .iter()
            .any(|words| statement.text.contains(words));
        let is_known = CASES.iter().any(|case| {
            case.words
                .iter()
                .all(|words| statement.text.contains(words))
        }) || NOT_UNDER_LOAD
            .iter()
            .any(|text| statement.text.contains(text));
        assert!(
            !on_orders || is_known,
            "no plan is checked for: {}",
            statement.text
        );
    }
    drop(sessions);
    app.finish().await;
}
