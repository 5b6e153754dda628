//! The locks of Postgres: its own, and a row.

use super::{
    ONCE, SOON, acquiring, held, is_contended, let_in, name, pool, soon, stage::Stage, until,
};
use flash_sale::lock::{
    AdvisoryLock, Guard, Lock, LockError, Released, SessionAdvisoryLock, TableLock, Why, wire::Sql,
};
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(500);

async fn client(name: &str, connections: u32) -> Sql {
    let sql = Sql::new(pool(connections).await).of(name);
    // No lease of a test shall be spent on connecting.
    sql.execute("SELECT 1", |query| query)
        .await
        .expect("postgres");
    sql
}

// --- advisory

#[tokio::test]
async fn advisory_lets_one_in_and_the_next_waits_its_turn() {
    let name = name("advisory");
    let (a, b) = (
        AdvisoryLock::new(client("a", 2).await),
        AdvisoryLock::new(client("b", 2).await),
    );
    let guard = held(&a, &name).await;
    assert!(is_contended(&b, &name).await);
    let foreign: Option<(bool,)> = client("c", 1)
        .await
        .optional(
            "SELECT pg_advisory_unlock(hashtextextended($1, 0))",
            |query| query.bind(name.clone()),
        )
        .await
        .expect("postgres");
    assert_eq!(foreign, Some((false,)), "nobody else's to unlock");
    assert!(is_contended(&b, &name).await);
    let in_vain = soon("an answer", b.acquire(&name, SHORT)).await;
    assert!(in_vain.expect("postgres").held().is_none());
    let waiting = acquiring(b, &name, LEASE);
    assert_eq!(guard.release().await.expect("postgres"), Released::Freed);
    let next = let_in(waiting).await;
    assert_eq!(next.release().await.expect("postgres"), Released::Freed);
}

#[tokio::test]
async fn advisory_the_unlock_is_the_commit_of_the_work() {
    let name = name("advisory-work");
    let sql = client("a", 2).await;
    let lock = AdvisoryLock::new(sql.clone());
    let count = async |lock: &str| {
        let row: Option<(i64,)> = sql
            .optional("SELECT count(*) FROM lab.fenced WHERE name = $1", |query| {
                query.bind(lock)
            })
            .await
            .expect("postgres");
        row.expect("a row").0
    };
    let write = "INSERT INTO lab.fenced (name, newest, value) VALUES ($1, 1, '')";
    for (commit, expected) in [(false, 0), (true, 1)] {
        let guard = held(&lock, &name).await;
        let mut transaction = guard.transaction().await.expect("the transaction");
        transaction
            .execute(write, |query| query.bind(&name))
            .await
            .expect("postgres");
        drop(transaction);
        if commit {
            assert_eq!(guard.release().await.expect("postgres"), Released::Freed);
        } else {
            drop(guard);
            // The pool rolls back when it gets to it, and the next one would be turned away until then.
            until("the dropped one is free", async || {
                !is_contended(&lock, &name).await
            })
            .await;
        }
        assert_eq!(count(&name).await, expected);
    }
}

#[tokio::test]
async fn advisory_a_dead_connection_frees_the_lock_and_tells_the_holder() {
    let name = name("advisory-cut");
    let lock = AdvisoryLock::new(client("a", 2).await);
    let guard = held(&lock, &name).await;
    let row: Option<(i32,)> = guard
        .transaction()
        .await
        .expect("the transaction")
        .optional("SELECT pg_backend_pid()", |query| query)
        .await
        .expect("postgres");
    let (pid,) = row.expect("a pid");
    let lost = guard.lost();
    client("admin", 1)
        .await
        .execute("SELECT pg_terminate_backend($1)", |query| query.bind(pid))
        .await
        .expect("postgres");
    let next = soon(
        "the next",
        AdvisoryLock::new(client("b", 1).await).acquire(&name, SOON),
    )
    .await;
    assert!(next.expect("postgres").held().is_some());
    assert_eq!(soon("it is told", lost).await, Why::SessionGone);
    let released = guard.release().await;
    assert!(
        matches!(released, Err(LockError::Postgres(_))),
        "{released:?}"
    );
}

#[tokio::test]
async fn advisory_an_acquire_that_is_given_up_leaves_nothing() {
    let name = name("advisory-abandoned");
    let stage = Stage::new();
    let answered = stage.hold_after("pg_try_advisory_xact_lock");
    let lock = AdvisoryLock::new(client("a", 2).await.watched_by(stage));
    let asking = acquiring(lock, &name, ONCE);
    answered.reached().await;
    asking.abort();
    let next = AdvisoryLock::new(client("b", 1).await);
    drop(let_in(acquiring(next, &name, SOON)).await);
}

/// While the transaction is lent out nobody else looks after the connection.
#[tokio::test]
async fn advisory_a_statement_that_finds_its_session_ended_tells_the_holder() {
    let name = name("advisory-lent");
    let lock = AdvisoryLock::new(client("a", 2).await);
    let guard = held(&lock, &name).await;
    let mut lent = guard.transaction().await.expect("the transaction");
    let row: Result<Option<(i32,)>, _> =
        (lent.optional("SELECT pg_backend_pid()", |query| query)).await;
    let (pid,) = row.expect("postgres").expect("a pid");
    assert!(is_contended(&lock, &name).await);
    assert!(!guard.lost().is_lost());
    client("admin", 1)
        .await
        .execute("SELECT pg_terminate_backend($1)", |query| query.bind(pid))
        .await
        .expect("postgres");
    lent.execute("SELECT 1", |query| query)
        .await
        .expect_err("the session has ended");
    // Lent out still: it was the statement that told.
    assert_eq!(soon("it is told", guard.lost()).await, Why::SessionGone);
    drop(lent);
    let released = guard.release().await;
    assert!(
        matches!(released, Err(LockError::Postgres(_))),
        "{released:?}"
    );
}

/// Postgres frees what an aborted transaction had locked without waiting for its end, and answers its COMMIT with
/// a rollback.
#[tokio::test]
async fn advisory_a_statement_that_is_refused_frees_the_lock_and_tells_the_holder() {
    let name = name("advisory-refused");
    let lock = AdvisoryLock::new(client("a", 2).await);
    for ending in ["release", "roll back"] {
        let guard = held(&lock, &name).await;
        let mut lent = guard.transaction().await.expect("the transaction");
        let refused = lent.execute("SELECT 1 / 0", |query| query).await;
        assert!(matches!(refused, Err(sqlx::Error::Database(_))));
        // Postgres says so before it does so: a moment may pass.
        let next = soon("the next", lock.acquire(&name, SOON)).await;
        let next = next.expect("postgres").held().expect("freed");
        // Lent out still: it was the statement that told, and not the heartbeat.
        assert_eq!(soon("it is told", guard.lost()).await, Why::NotOurs);
        drop(lent);
        let released = match ending {
            "release" => guard.release().await,
            _ => guard.roll_back().await,
        };
        assert_eq!(released.expect("postgres"), Released::NotHeld, "{ending}");
        assert_eq!(next.release().await.expect("postgres"), Released::Freed);
    }
}

/// However it ends: what goes back to the pool has no lock.
#[tokio::test]
async fn advisory_what_was_lent_comes_back_without_the_lock() {
    const LOCKS: &str = "SELECT count(*) FROM pg_locks
                          WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
    // The only connection of its pool: whoever asks next gets the same, if it is still there.
    let sql = client("a", 1).await;
    let lock = AdvisoryLock::new(sql.clone());
    let other = AdvisoryLock::new(client("b", 1).await);
    for ending in ["release", "roll back", "drop", "drop amid a statement"] {
        let name = name("advisory-returned");
        let guard = held(&lock, &name).await;
        let mut lent = guard.transaction().await.expect("the transaction");
        let row: Option<(i64,)> = (lent.optional(LOCKS, |query| query).await).expect("postgres");
        assert_eq!(row, Some((1,)), "{ending}");
        if ending == "drop amid a statement" {
            let mut statement = Box::pin(lent.execute("SELECT pg_sleep(0.3)", |query| query));
            // Sent, and then nobody waits for the answer any more.
            let sent = futures_util::poll!(&mut statement);
            assert!(sent.is_pending());
        }
        drop(lent);
        assert!(
            is_contended(&other, &name).await,
            "{ending}: it is still held"
        );
        match ending {
            "release" => assert_eq!(guard.release().await.expect(ending), Released::Freed),
            "roll back" => assert_eq!(guard.roll_back().await.expect(ending), Released::Freed),
            _ => drop(guard),
        }
        let row: Option<(i64,)> = sql.optional(LOCKS, |query| query).await.expect("postgres");
        assert_eq!(row, Some((0,)), "{ending}");
        let next = soon("the next", other.acquire(&name, SOON)).await;
        let next = next.expect("postgres").held().expect(ending);
        assert_eq!(next.release().await.expect("postgres"), Released::Freed);
    }
}

#[tokio::test]
async fn session_advisory_leaks_with_a_pool() {
    let name = name("leak");
    let sql = client("a", 2).await;
    let lock = SessionAdvisoryLock::new(sql.clone());
    let guard = held(&lock, &name).await;
    // The session that has the lock is lent to somebody else when the unlock comes.
    const HAS_IT: &str = "SELECT count(*) FROM pg_locks
                           WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
    let mut sessions = [
        sql.session().await.expect("postgres"),
        sql.session().await.expect("postgres"),
    ];
    let first: Option<(i64,)> = sessions[0]
        .optional(HAS_IT, |query| query)
        .await
        .expect("postgres");
    let [one, other] = sessions;
    let (lent, idle) = if first == Some((1,)) {
        (one, other)
    } else {
        (other, one)
    };
    drop(idle);
    assert_eq!(guard.release().await.expect("postgres"), Released::NotHeld);
    drop(lent);
    let other = SessionAdvisoryLock::new(client("b", 1).await);
    assert!(
        is_contended(&other, &name).await,
        "nobody holds it, and nobody can have it"
    );
}

#[tokio::test]
async fn session_advisory_lets_two_of_one_pool_in() {
    let name = name("twice");
    let lock = SessionAdvisoryLock::new(client("a", 1).await);
    let first = held(&lock, &name).await;
    let second = held(&lock, &name).await;
    for guard in [first, second] {
        assert_eq!(guard.release().await.expect("postgres"), Released::Freed);
    }
}

// --- table

#[tokio::test]
async fn table_lets_one_in_and_numbers_them() {
    let name = name("table");
    let (a, b) = (
        TableLock::new(client("a", 2).await, LEASE),
        TableLock::new(client("b", 2).await, LEASE),
    );
    let first = held(&a, &name).await;
    assert_eq!(first.fencing(), Some(1));
    let contended = b.acquire(&name, ONCE).await.expect("postgres");
    assert!(
        matches!(contended, flash_sale::lock::Acquired::Contended { remaining: Some(left) } if left > LEASE / 2)
    );
    assert_eq!(first.release().await.expect("postgres"), Released::Freed);
    let second = held(&b, &name).await;
    assert_eq!(second.fencing(), Some(2));
    assert_eq!(second.release().await.expect("postgres"), Released::Freed);
}

#[tokio::test]
async fn table_ends_by_itself_and_a_late_release_touches_nobody_elses() {
    let name = name("table-late");
    let sql = client("a", 1).await;
    let late = held(&TableLock::new(sql, SHORT), &name).await;
    assert_eq!(soon("its end", late.lost()).await, Why::LeaseOver);
    let next = TableLock::new(client("b", 1).await, LEASE);
    let theirs = soon("the next", next.acquire(&name, SOON)).await;
    let theirs = theirs.expect("postgres").held().expect("ended");
    assert_eq!(late.release().await.expect("postgres"), Released::NotHeld);
    assert_eq!(theirs.release().await.expect("postgres"), Released::Freed);
}

#[tokio::test]
async fn table_replies_that_are_lost() {
    let name = name("table-lost");
    let stage = Stage::new();
    stage.lose("INSERT INTO lab.locks", 1);
    stage.lose("UPDATE lab.locks SET owner = NULL", 1);
    let lock = TableLock::new(client("a", 2).await.watched_by(stage), LEASE);
    let guard = soon("its own lock", lock.acquire(&name, LEASE)).await;
    let guard = guard.expect("postgres").held().expect("free");
    assert_eq!(guard.fencing(), Some(1), "counted once");
    assert_eq!(guard.release().await.expect("postgres"), Released::Freed);
}

#[tokio::test]
async fn table_held_when_its_validity_has_gone() {
    for request_is_late in [false, true] {
        let name = name("table-validity");
        let stage = Stage::new();
        let late = if request_is_late {
            stage.hold("INSERT INTO lab.locks")
        } else {
            stage.hold_after("INSERT INTO lab.locks")
        };
        let sql = client("a", 2).await.watched_by(stage.clone());
        let lock = TableLock::new(sql, SHORT);
        let asking = tokio::spawn({
            let name = name.clone();
            async move {
                lock.acquire(&name, ONCE)
                    .await
                    .map(|acquired| acquired.held().is_some())
            }
        });
        late.reached().await;
        // Time is the subject here: a lease passes.
        tokio::time::sleep(SHORT).await;
        late.open();
        let held = soon("an answer", asking).await.expect("no panic");
        assert!(!held.expect("postgres"));
        until("it is given back", async || {
            stage.answered("owner = NULL") > 0
        })
        .await;
        let next = TableLock::new(client("b", 1).await, LEASE);
        assert!(!is_contended(&next, &name).await);
    }
}

#[tokio::test]
async fn table_an_acquire_that_is_given_up_leaves_nothing() {
    let name = name("table-abandoned");
    let stage = Stage::new();
    let answered = stage.hold_after("INSERT INTO lab.locks");
    let lock = TableLock::new(client("a", 2).await.watched_by(stage), LEASE);
    let asking = acquiring(lock, &name, ONCE);
    answered.reached().await;
    asking.abort();
    let next = TableLock::new(client("b", 1).await, LEASE);
    drop(let_in(acquiring(next, &name, SOON)).await);
}
