//! The counts of a verdict, on rows written by the test; the effects of crashes and losses.

use super::http::{assert_text, with_lab};
use crate::support::{prelude::*, test_lab::*};
use lab::strategy::{Harm, Language, Scenario};
use lab::{Trial, arena::Arena, losses::Losses, strategies, verdict::Verdict};
use tokio::io::{copy, split};
use tokio_util::sync::CancellationToken;

impl TestLab {
    async fn verdict_on(&self, arena: &Arena) -> Verdict {
        self.verdict(&arena.definition().id, Language::En).await.expect("a verdict")
    }
}

#[tokio::test]
async fn surplus_orders_of_one_buyer_do_not_pay_for_another() {
    let lab = TestLab::start("verdicts:").await;
    let arena = lab.arena("naive", 1, json!({})).await;
    let id = &arena.definition().id;
    let order = async |buyer: &str, number: usize| {
        let row = format!("('{id}-{buyer}-{number}', '{id}', '{buyer}')");
        lab.execute(&format!("INSERT INTO lab.orders (id, arena, buyer) VALUES {row}")).await;
    };
    let counts = async || {
        let verdict = lab.verdict_on(&arena).await;
        (verdict.sold, verdict.duplicates, verdict.undersold)
    };
    for number in 0..3 {
        order("ann", number).await;
    }
    for buyer in ["ann", "bob", "cem"] {
        let row = format!("('{id}', '{buyer}', 1)");
        lab.execute(&format!("INSERT INTO lab.buyers (arena, buyer, tries) VALUES {row}")).await;
    }
    assert_eq!(counts().await, (3, 2, 2), "two are left, and two want one");
    // Dan was told of a failure, and has an order all the same.
    order("dan", 0).await;
    assert_eq!(counts().await, (4, 2, 1), "one is left");
    order("bob", 0).await;
    assert_eq!(counts().await, (5, 2, 0), "none is left");
    lab.finish().await;
}

/// The tasks of a crashed shop end with it: its place is free, and another node finds its order.
#[tokio::test]
async fn a_crash_ends_a_node_at_once() {
    let lab = TestLab::with("verdicts-crash:", |servers| servers.allow_production_nodes(1)).await;
    let crash = json!({
        "crash_at": "accepted", "crash_node": 0, "crash_after": 1, "restart_ms": 10_000,
    });
    let arena = lab.arena("lua-stream", 2, crash).await;
    let answer = arena.purchase(&buyer("ann"), Some(0)).await;
    assert!(answer.outcome.is_err(), "the node crashed: {answer:?}");
    // The first node gets no more requests.
    wait_for!("the dead node's place becomes free", {
        let sold = arena.purchase(&buyer("bob"), Some(1)).await.outcome;
        let is_full = |why: &String| why.contains("as many nodes of lua-stream");
        assert!(sold.as_ref().err().is_none_or(is_full), "{sold:?}");
        sold.ok()
    });
    let verdict = lab.verdict_on(&arena).await;
    assert_eq!((verdict.sold, verdict.lost, verdict.undersold), (2, 0, 0), "{verdict:?}");
    lab.finish().await;
}

/// Another process was opening a node while its arena was deleted: the schema is found.
#[tokio::test]
async fn a_schema_without_an_arena_goes() {
    let lab = TestLab::start("verdicts-schema:").await;
    let arena = lab.arena("lua-stream", 1, json!({})).await;
    let live = format!("lab_{}", arena.definition().id);
    let orphan = "lab_0123456789abcdef0123456789abcdef";
    for schema in [orphan, &live, "lab_of_somebody_else"] {
        lab.execute(&format!("CREATE SCHEMA {schema}")).await;
    }
    let stop = CancellationToken::new();
    let upkeep = tokio::spawn(lab.lab.clone().upkeep(stop.clone()));
    let schemas = async || -> Vec<String> {
        let sql = "SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'lab\\_%' ORDER BY 1";
        sqlx::query_scalar(sql).fetch_all(&lab.servers.postgres).await.expect("names")
    };
    wait_for!(!schemas().await.iter().any(|name| name == orphan));
    assert_eq!(schemas().await, [&live, "lab_of_somebody_else"]);
    stop.cancel();
    upkeep.await.expect("it ends");
    lab.finish().await;
}

/// A client asks for a verdict and hangs up while it is written.
#[tokio::test]
async fn a_verdict_that_nobody_waits_for_loses_nothing() {
    let lab = TestLab::start("verdicts-cut:").await;
    let arena = lab.arena("conditional-update", 1, json!({"interleave": "off"})).await;
    let id = &arena.definition().id;
    for name in ["ann", "bob", "cem"] {
        buy(&arena, name).await;
    }
    // The tally cannot be written as long as another transaction has its row.
    let mut other = lab.servers.postgres.begin().await.expect("a transaction");
    let lock = format!("SELECT FROM lab.tallies WHERE arena = '{id}' FOR UPDATE");
    sqlx::query(AssertSqlSafe(lock)).execute(&mut *other).await.expect("the row");
    let hung_up = tokio::time::timeout(Duration::from_millis(500), lab.verdict_on(&arena));
    assert!(hung_up.await.is_err(), "it waits for the row");
    other.rollback().await.expect("the row is free");
    let verdict = lab.verdict_on(&arena).await;
    let query = format!(
        "SELECT (SELECT coalesce(sum(tries), 0)::bigint FROM lab.buyers WHERE arena = '{id}'),
                (SELECT count(*) FROM lab.told WHERE arena = '{id}')"
    );
    let kept = sqlx::query_as(AssertSqlSafe(query)).fetch_one(&lab.servers.postgres);
    let kept: (i64, i64) = kept.await.expect("counts");
    assert_eq!((kept, verdict.sold), ((3, 3), 3), "{verdict:?}");
    lab.finish().await;
}

/// "Sold" is said before the commit, which takes a while; nothing crashes.
#[tokio::test]
async fn a_verdict_waits_until_what_buyers_were_told_is_true() {
    let lab = TestLab::start("early:").await;
    const SLOWLY: &str = "
        CREATE FUNCTION lab.slowly() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_sleep(0.2); RETURN NULL; END';
        CREATE CONSTRAINT TRIGGER slowly AFTER INSERT ON lab.orders
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION lab.slowly()";
    lab.execute(SLOWLY).await;
    let strategy = strategies::find("group-update").expect("it");
    let scenario = Scenario::SMALL.buyers(5).options(&[("answer", "before-commit")]);
    let verdict = Trial::of(strategy, &scenario).run(&lab, Language::En, |_| {}).await;
    assert!(verdict.as_ref().is_ok_and(|verdict| verdict.shows(Harm::Holds)), "{verdict:?}");
    lab.finish().await;
}

/// The relay has marked the message and is slow to publish it; nothing crashes.
#[tokio::test]
async fn a_verdict_waits_for_a_message_that_is_on_its_way() {
    let lab = TestLab::start("on-its-way:").await;
    let arena = lab.arena("transactional-message", 1, json!({"relay": "mark-first"})).await;
    // Nobody meets the relay: it stands between marking and publishing until it gives up.
    buy(&arena, "ann").await;
    let verdict = lab.verdict_on(&arena).await;
    let counts = (verdict.sold, verdict.lost, verdict.undersold, verdict.quiet);
    assert_eq!(counts, (1, 0, 0, true), "{verdict:?}");
    lab.finish().await;
}

#[tokio::test]
async fn a_redis_that_does_not_start_leaves_no_folder() {
    let lab = TestLab::start("no-start:").await;
    let arena = lab.arena("reentrant-lock", 1, json!({"redis_node_loss": 1})).await;
    let root = lab.servers.data_dir.clone().expect("a folder");
    let folder = root.join(format!("{}-1", arena.definition().id));
    // A file stands where the server would have its data.
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("redis"), "").expect("a file");
    let answer = arena.purchase(&buyer("ann"), None).await;
    assert!(answer.outcome.is_err() && !folder.exists(), "{answer:?}");
    lab.finish().await;
}

/// The buyer hangs up, or the node crashes, while the session is made to lapse.
#[tokio::test]
async fn a_loss_that_is_given_up_does_not_leave_the_node_cut_off() {
    let echo = |connection: TcpStream| async move {
        let (mut reads, mut writes) = split(connection);
        let _ = copy(&mut reads, &mut writes).await;
    };
    let losses = Losses::default();
    let way = losses.wire_to(0, serve_each(echo).await.to_string()).await.expect("a way");
    // Its ZooKeeper never answers, so the session does not end.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let nobody = silent.local_addr().expect("an address").to_string();
    let ends = losses.end_session(0, &nobody, "/lock");
    let given_up = tokio::time::timeout(Duration::from_millis(200), ends).await;
    assert!(given_up.is_err() || cfg!(not(feature = "zookeeper")), "{given_up:?}");
    let hears = async {
        let mut connection = TcpStream::connect(way).await.expect("a connection");
        connection.write_all(b"?").await.expect("sent");
        connection.read_u8().await.expect("an answer")
    };
    let heard = tokio::time::timeout(Duration::from_secs(60), hears).await;
    assert_eq!(heard, Ok(b'?'), "the node is cut off for good");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_that_needs_a_private_redis_is_refused_without_one() {
    let app = with_lab().await;
    let mut wanted = json!({"strategy": "reentrant-lock", "stock": 1});
    app.post(ARENAS, wanted.clone()).await.assert(201);
    wanted["options"] = json!({"redis_node_loss": 1});
    let refused = app.post(ARENAS, wanted).await;
    refused.assert_problem(409, "strategy_unavailable");
    assert_text(&refused.body["detail"], "independent Redis servers are needed");
}
