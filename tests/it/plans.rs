//! Plans of what the program has prepared (`--nocapture`); docs/indexes/plans.txt records them.

use crate::support::prelude::*;
use flash_sale::audit::scrubber::Scrubber;
use flash_sale::orders::queries::{self, Page};
use sqlx::{PgPool, pool::PoolConnection};

struct Prepared {
    connection: usize,
    name: String,
    text: String,
}

async fn prepared(pool: &PgPool) -> (Vec<PoolConnection<sqlx::Postgres>>, Vec<Prepared>) {
    let mut connections = Vec::new();
    for _ in 0..pool.options().get_max_connections() {
        connections.push(pool.acquire().await.expect("a connection"));
    }
    let mut statements: Vec<Prepared> = Vec::new();
    for (connection, session) in connections.iter_mut().enumerate() {
        let known = sqlx::query_as("SELECT name, statement FROM pg_prepared_statements");
        let known = known.persistent(false).fetch_all(&mut **session).await;
        for (name, statement) in known.expect("pg_prepared_statements") {
            let statement: String = statement;
            let text = statement.split_whitespace().collect::<Vec<_>>().join(" ");
            if !statements.iter().any(|other| other.text == text) {
                statements.push(Prepared { connection, name, text });
            }
        }
    }
    (connections, statements)
}

async fn explain(session: &mut PgConnection, one: &Prepared, values: &str, mode: &str) -> String {
    let set = AssertSqlSafe(format!("SET plan_cache_mode = {mode}"));
    session.execute(set).await.expect("plan_cache_mode");
    let mut call = format!("EXPLAIN (COSTS OFF) EXECUTE \"{}\" ", one.name);
    if !values.is_empty() {
        call += &format!("({values})");
    }
    let query = sqlx::query_scalar(AssertSqlSafe(call.as_str())).persistent(false);
    let lines = query.fetch_all(session).await;
    let lines: Vec<String> = lines.unwrap_or_else(|error| panic!("{call}: {error}"));
    lines.join("\n")
}

/// Title → indexes that it must use; words of this statement alone; ORDER, USER, SALE: values.
const CASES: &str = "
    A shopper's order, looked up alone → orders_pkey
        FROM orders o|WHERE o.id = $1 AND o.user_id = $2
        ORDER, USER
    My orders, newest first → orders_one_live_per_user_slot
        WHERE user_id = $1 AND id < $2|ORDER BY o.id DESC LIMIT
        USER, 9223372036854775807, 50
    Orders that somebody follows or asks for (one query for all of a moment) → orders_pkey
        WHERE o.id = ANY($1)
        ARRAY[ORDER, ORDER - 1, ORDER - 2]
    Paying → orders_pkey
        WITH paid AS|INSERT INTO payments
        ORDER, USER, 'reference'
    Cancelling → orders_pkey
        SET status = 'cancelled'
        ORDER, USER
    The scrubber: the newest orders → orders_pkey
        FROM orders ORDER BY id DESC LIMIT $1
        64
    The scrubber: the next orders by id → orders_pkey
        FROM orders WHERE id > $1 ORDER BY id LIMIT $2
        0, 256
    The sweeper: what is due, of any sale → orders_by_pay_by, orders_pkey
        SET status = 'expired'|SKIP LOCKED
        500, NULL
    One order that is paid or cancelled after its time → orders_pkey
        SET status = 'expired'|WHERE id = $1
        ORDER
    The outbox: which sales have units to return → none
        SELECT DISTINCT sale_id FROM releases
        none
    The outbox: a sale's units to return → none
        SELECT user_id, order_id, created_at FROM releases WHERE sale_id = $1
        SALE, 1000
    The outbox: units that have been returned → none
        DELETE FROM releases
        ARRAY[ORDER, ORDER - 1, ORDER - 2], ARRAY[now(), now(), now()]
    Live orders of some sales, and those that answer replays → orders_by_sale, orders_replayable
        SELECT sale_id, id, user_id, slot, idempotency_hash, status
        ARRAY[SALE], 8
    Live orders of a sale (the audit) → orders_by_sale
        SELECT id, user_id FROM orders WHERE sale_id = $1 AND status IN
        SALE
    Users with too many live orders (the audit) → orders_by_sale
        HAVING count(*) > $2
        SALE, 1
    An operator's list of a sale's orders → Index Scan Backward using orders_pkey
        WHERE o.sale_id = $1 AND o.id < $2
        SALE, 9223372036854775807, NULL, 50
    An operator's list of a user's orders in a sale → orders_one_live_per_user_slot
        WHERE sale_id = $1 AND id < $2|AND user_id = $5
        SALE, 9223372036854775807, NULL, 50, USER
    A new floor for the id generator → orders_pkey
        UPDATE id_clock
        0, 0";

const SHOPPERS: usize = 5;

/// The audit counts every order of a sale, closed ones too; nobody waits for it.
const NOT_UNDER_LOAD: &str =
    "SELECT status, count(*) FROM orders WHERE sale_id = $1 GROUP BY status";

/// 20 sales of 3,000 orders in every state, over for too long to be taken for lost ones.
const FILL: &str = "
    INSERT INTO sales (title, price_cents, stock, taken, opens_at, closes_at)
    SELECT 'sale ' || n, 100, 5000, 2000, now() - interval '9 days', now() - interval '8 days'
    FROM generate_series(1, 20) AS n;
    INSERT INTO orders (id, sale_id, user_id, slot, status, price_cents, idempotency_hash,
                        created_at, pay_by, paid_at, closed_at)
    SELECT n::bigint << 20, s.id, md5((n % 15000)::text)::uuid,
           CASE WHEN d.status IN ('pending_payment', 'paid') THEN 0 END, d.status::order_status,
           100,
           CASE WHEN n % 7 = 0 THEN n END, now() - interval '1 hour',
           now() + make_interval(secs => 3600 + n), CASE WHEN d.status = 'paid' THEN now() END,
           CASE WHEN d.status IN ('cancelled', 'expired') THEN now() END
    FROM generate_series(1, 60000) AS n
    JOIN (SELECT id, row_number() OVER (ORDER BY id) - 1 AS number
          FROM sales WHERE title LIKE 'sale %') AS s ON s.number = (n - 1) / 3000
    CROSS JOIN LATERAL (SELECT (ARRAY['pending_payment', 'paid', 'paid', 'paid', 'cancelled',
                        'expired'])[1 + n % 6] AS status) AS d;
    INSERT INTO payments (order_id, amount_cents, reference)
    SELECT id, 100, 'x' FROM orders WHERE status = 'paid';
    SELECT brin_summarize_new_values('orders_by_sale');
    ANALYZE;";

struct Case {
    title: &'static str,
    words: Vec<&'static str>,
    arguments: &'static str,
    uses: Vec<&'static str>,
}

impl Case {
    fn all() -> Vec<Self> {
        let lines: Vec<&str> = CASES.trim().lines().map(str::trim).collect();
        let case = |lines: &[&'static str]| {
            let (title, uses) = lines[0].split_once(" → ").expect("a title and indexes");
            Self {
                title,
                words: lines[1].split('|').collect(),
                arguments: lines[2].trim_start_matches("none"),
                uses: uses.split(", ").filter(|index| *index != "none").collect(),
            }
        };
        lines.chunks(3).map(case).collect()
    }

    fn is_of(&self, statement: &Prepared) -> bool {
        self.words.iter().all(|words| statement.text.contains(words))
    }
}

async fn run_everything(app: &TestApp) {
    let orders = &app.services.orders;
    let sale = app.sale(100, json!({})).await;
    let hasty = app.sale(100, json!({"payment_timeout_secs": 1})).await;
    let (payer, canceller, idler) = (app.shopper(), app.shopper(), app.shopper());
    let paid = payer.order_to_pay(&sale).await;
    payer.pay(&paid).await.assert(200);
    payer.cancel(&paid).await.assert(409);
    canceller.cancel(&canceller.order_to_pay(&sale).await).await.assert(200);
    idler.until(&idler.must_buy(&hasty).await, "expired").await;
    payer.get("/api/v1/orders").await.assert(200);
    let page = Page { limit: 50, after: None };
    let sale_id = sale.parse().expect("an id");
    let (nobody, unknown) = (UserId::random(), OrderId::from_i64(1));
    for user in [None, Some(nobody)] {
        let wanted = queries::Wanted { status: None, user };
        orders.sale_orders(sale_id, wanted, page).await.expect("the operator's list");
    }
    queries::by_ids(&app.services.databases.postgres, &[1, 2]).await.expect("by ids");
    queries::of_user(&app.services.databases.postgres, nobody, unknown).await.expect("alone");
    app.audit(&sale).await;
    app.services.rebuild.by_hand(Some(sale_id)).await.expect("a rebuild");
    orders.release_all().await.expect("releases");
    let mut scrubber = Scrubber::default();
    for _ in 0..2 {
        scrubber.step(&app.services.auditor).await.expect("a look");
    }
    orders.order(nobody, unknown).await.expect_err("nobody's");
}

async fn with_values(app: &TestApp) -> impl Fn(&str) -> String + use<> {
    let some = "SELECT concat_ws(' ', id, user_id, sale_id) FROM orders
                WHERE status = 'pending_payment' ORDER BY id OFFSET 5000 LIMIT 1";
    let some: String = app.value(some).await;
    move |arguments| {
        let [order, user, sale] = some.split(' ').collect::<Vec<_>>()[..] else { panic!("{some}") };
        let arguments = arguments.replace("ORDER", &format!("{order}::bigint"));
        let arguments = arguments.replace("USER", &format!("'{user}'::uuid"));
        arguments.replace("SALE", &format!("{sale}::bigint"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_under_load_use_their_indexes() {
    let app = TestApp::start().await;
    app.execute(FILL).await;
    run_everything(&app).await;
    let with_values = with_values(&app).await;
    let (mut sessions, statements) = prepared(app.services.databases.postgres.connections()).await;
    // The outbox and what is due are empty but for moments: a sale that few pay for fills them.
    app.execute(
        "INSERT INTO releases (order_id, sale_id, user_id)
             SELECT id, sale_id, user_id FROM orders
             WHERE status = 'expired' ORDER BY created_at LIMIT 20000;
         UPDATE orders SET pay_by = now() WHERE status = 'pending_payment' AND id % 5 = 0;
         ANALYZE releases, orders;",
    )
    .await;
    let with_statement = |case: Case| {
        let found: Vec<&Prepared> = statements.iter().filter(|one| case.is_of(one)).collect();
        assert_eq!(found.len(), 1, "{}: not one statement", case.title);
        (case, found[0])
    };
    let cases: Vec<(Case, &Prepared)> = Case::all().into_iter().map(with_statement).collect();
    assert_eq!(cases.len(), 18);
    for (case, statement) in &cases {
        let title = case.title;
        let session = &mut sessions[statement.connection];
        let arguments = with_values(case.arguments);
        let for_these = explain(session, statement, &arguments, "force_custom_plan").await;
        let for_any = explain(session, statement, &arguments, "force_generic_plan").await;
        println!("### {title}\n\n```sql\n{}\n```\n", statement.text);
        println!("```text\n{for_these}\n```\n");
        let unused = case.uses.iter().find(|index| !for_these.contains(**index));
        assert_eq!(unused, None, "{title}: not used in\n{for_these}");
        for plan in [for_these, for_any] {
            assert!(!plan.contains("Seq Scan on orders"), "{title}:\n{plan}");
        }
    }
    // A sale fills the table within seconds, long before anybody has counted its rows.
    app.execute(
        "DELETE FROM pg_statistic WHERE starelid = 'orders'::regclass;
         ALTER TABLE orders SET (fillfactor = 100);",
    )
    .await;
    for (case, statement) in &cases[..SHOPPERS] {
        let session = &mut sessions[statement.connection];
        let arguments = with_values(case.arguments);
        for mode in ["force_custom_plan", "force_generic_plan"] {
            let plan = explain(session, statement, &arguments, mode).await;
            let uses_them = case.uses.iter().all(|index| plan.contains(index));
            assert!(uses_them, "without statistics:\n{plan}");
        }
    }
    app.execute("DELETE FROM releases").await;
    // A statement on orders that nobody has looked at here must not be added unseen.
    for statement in &statements {
        let has = |words: &&str| statement.text.contains(words);
        let on_orders = [" orders ", " orders)"].iter().any(has);
        let is_case = cases.iter().any(|(case, _)| case.is_of(statement));
        assert!(!on_orders || is_case || has(&NOT_UNDER_LOAD), "not checked: {}", statement.text);
    }
    drop(sessions);
}
