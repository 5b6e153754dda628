//! Plans of what the program has prepared (`--nocapture`); docs/indexes/plans.txt records them.

use crate::support::prelude::*;
use flash_sale::orders::queries::{self, Page};
use flash_sale::{audit::scrubber::Scrubber, catalog::eviction};
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
        let known = "SELECT name, statement FROM pg_prepared_statements";
        let known = sqlx::query_as::<_, (String, String)>(known).persistent(false);
        let known = known.fetch_all(&mut **session).await;
        for (name, statement) in known.expect("pg_prepared_statements") {
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
    let query = sqlx::query_scalar::<_, String>(AssertSqlSafe(call.as_str())).persistent(false);
    query.fetch_all(session).await.unwrap_or_else(|error| panic!("{call}: {error}")).join("\n")
}

/// Title → indexes that it must use; words of this statement alone; ORDER, USER, SALE: values.
const CASES: &str = include_str!("plans/cases.txt");

const SHOPPERS: usize = 6;

/// The audit counts every order of a sale, closed ones too; nobody waits for it.
const NOT_UNDER_LOAD: &str =
    "SELECT status, count(*) FROM orders WHERE sale_id = $1 GROUP BY status";

/// 20 sales of 3,000 orders in every state, over for too long to be taken for lost ones.
const FILL: &str = include_str!("plans/fill.sql");

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
    let writer = app.another(Options::default()).await;
    let orders = &app.services.orders;
    let sale = app.sale(100, json!({})).await;
    let hasty = app.sale(100, json!({"payment_timeout_secs": 1})).await;
    let (payer, canceller, idler) = (app.shopper(), app.shopper(), app.shopper());
    let paid = payer.order_to_pay(&sale).await;
    payer.pay(&paid).await.assert(200);
    payer.cancel(&paid).await.assert(409);
    canceller.cancel(&canceller.order_to_pay(&sale).await).await.assert(200);
    idler.until(&idler.must_buy(&hasty).await, "expired").await;
    writer.stop().await; // from here on only the test steps
    orders.expire_step().await.expect("a sweep");
    orders.recover_step().await.expect("a pass");
    eviction::step(&app.services.catalog).await.expect("a pass");
    app.services.payments.ledger.refund_step().await.expect("a step");
    app.services.payments.ledger.reconcile_step().await.expect("a step");
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
    let again = "INSERT INTO releases (order_id, sale_id, user_id)
        SELECT id, sale_id, user_id FROM orders WHERE status = 'cancelled' LIMIT 1";
    app.execute(again).await;
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
    let app = TestApp::start_with(Options::without_writer()).await;
    app.execute(FILL).await;
    run_everything(&app).await;
    let with_values = with_values(&app).await;
    let (mut sessions, statements) = prepared(app.services.databases.postgres.connections()).await;
    // The outbox and what is due are empty but for moments: a sale that few pay for fills them.
    let due = "INSERT INTO releases (order_id, sale_id, user_id)
            SELECT id, sale_id, user_id FROM orders
            WHERE status = 'expired' ORDER BY created_at LIMIT 20000;
        UPDATE orders SET pay_by = now() WHERE status = 'pending_payment' AND id % 5 = 0;
        ANALYZE releases, orders;";
    app.execute(due).await;
    let with_statement = |case: Case| {
        let found: Vec<&Prepared> = statements.iter().filter(|one| case.is_of(one)).collect();
        assert_eq!(found.len(), 1, "{}: not one statement", case.title);
        (case, found[0])
    };
    let cases: Vec<(Case, &Prepared)> = Case::all().into_iter().map(with_statement).collect();
    assert_eq!(cases.len(), 19);
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
    let uncount = "DELETE FROM pg_statistic WHERE starelid = 'orders'::regclass;
        ALTER TABLE orders SET (fillfactor = 100);";
    app.execute(uncount).await;
    for (case, statement) in &cases[..SHOPPERS] {
        let session = &mut sessions[statement.connection];
        for mode in ["force_custom_plan", "force_generic_plan"] {
            let plan = explain(session, statement, &with_values(case.arguments), mode).await;
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
}
