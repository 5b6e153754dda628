//! The locks of Postgres: its own, and a row.

use crate::support::locks::*;

const SHORT: Duration = Duration::from_millis(500);
const LOCKS: &str = "SELECT count(*) FROM pg_locks
                      WHERE locktype = 'advisory' AND pid = pg_backend_pid()";

async fn client(name: &str, connections: u32) -> Sql {
    let sql = Sql::new(pool(connections).await).of(name);
    // Connects, so that no lease of a test is spent on that.
    sql.run("SELECT 1", ()).await.expect("postgres");
    sql
}

async fn watched(client_name: &str) -> (Sql, Arc<Interceptor>) {
    let interceptor = Interceptor::new();
    (client(client_name, 2).await.watched_by(interceptor.clone()), interceptor)
}

async fn value<T>(row: impl Future<Output = sqlx::Result<Option<(T,)>>>) -> T {
    row.await.expect("postgres").expect("a row").0
}

#[tokio::test]
async fn advisory_lets_one_in_and_the_next_waits_its_turn() {
    let name = name("advisory");
    let a = AdvisoryLock(client("a", 2).await);
    let b = AdvisoryLock(client("b", 2).await);
    let guard = held(&a, &name).await;
    assert!(is_contended(&b, &name).await);
    let unlock = "SELECT pg_advisory_unlock(hashtextextended($1, 0))";
    let unlocked: bool = value(client("c", 1).await.row(unlock, (&name,))).await;
    assert!(!unlocked, "nobody else's to unlock");
    assert!(is_contended(&b, &name).await);
    turned_away(acquiring(b.clone(), &name, SHORT)).await;
    let waiting = acquiring(b, &name, LEASE);
    freed(guard).await;
    freed(let_in(waiting).await).await;
}

#[tokio::test]
async fn advisory_the_unlock_is_the_commit_of_the_work() {
    let name = name("advisory-work");
    let sql = client("a", 2).await;
    let lock = AdvisoryLock(sql.clone());
    let count = "SELECT count(*) FROM lab.fenced WHERE name = $1";
    let write = "INSERT INTO lab.fenced (name, newest, value) VALUES ($1, 1, '')";
    for (commit, expected) in [(false, 0), (true, 1)] {
        let guard = held(&lock, &name).await;
        let mut lent = guard.transaction().await.expect("the transaction");
        lent.run(write, (&name,)).await.expect("postgres");
        drop(lent);
        if commit {
            freed(guard).await;
        } else {
            drop(guard);
            // The pool rolls back when it gets to it; the next acquire would be turned away.
            wait_for!(!is_contended(&lock, &name).await);
        }
        assert_eq!(value::<i64>(sql.row(count, (&name,))).await, expected);
    }
}

/// While the transaction is lent out nothing but its statements watches the connection.
#[tokio::test]
async fn advisory_a_dead_connection_frees_the_lock_and_tells_the_holder() {
    let [lock, other] = [client("a", 2).await, client("b", 1).await].map(AdvisoryLock);
    let admin = client("admin", 1).await;
    for is_lent_out in [false, true] {
        let (name, case) = (name("advisory-cut"), format!("lent out: {is_lent_out}"));
        let guard = held(&lock, &name).await;
        let mut lent = guard.transaction().await.expect("the transaction");
        let pid: i32 = value(lent.row("SELECT pg_backend_pid()", ())).await;
        let mut lent = is_lent_out.then_some(lent);
        let lost = guard.lost();
        assert!(is_contended(&lock, &name).await && !lost.is_lost(), "{case}");
        admin.run("SELECT pg_terminate_backend($1)", (pid,)).await.expect("postgres");
        if let Some(lent) = &mut lent {
            lent.run("SELECT 1", ()).await.expect_err("the session has ended");
            assert_eq!(soon("it is told", guard.lost()).await, Why::SessionGone);
        }
        drop(lent);
        freed(held_soon(&other, &name).await).await;
        assert_eq!(soon(&case, lost).await, Why::SessionGone, "{case}");
        let released = guard.release().await;
        assert!(matches!(released, Err(LockError::Postgres(_))), "{case}: {released:?}");
    }
}

#[tokio::test]
async fn an_acquire_that_is_given_up_leaves_nothing() {
    let [advisory, table] = ["advisory", "table"].map(name);
    let (sql, interceptor) = watched("a").await;
    let answered = interceptor.hold_after("advisory_xact_lock");
    given_up(acquiring(AdvisoryLock(sql.clone()), &advisory, ONCE), answered).await;
    let answered = interceptor.hold_after("INSERT INTO lab.locks");
    given_up(acquiring(TableLock::new(sql, LEASE), &table, ONCE), answered).await;
    let b = client("b", 1).await;
    drop(held_soon(&TableLock::new(b.clone(), LEASE), &table).await);
    drop(held_soon(&AdvisoryLock(b), &advisory).await);
}

/// Postgres frees the locks of an aborted transaction at once, and answers its COMMIT by ROLLBACK.
#[tokio::test]
async fn advisory_a_statement_that_is_refused_frees_the_lock_and_tells_the_holder() {
    let name = name("advisory-refused");
    let lock = AdvisoryLock(client("a", 2).await);
    for ending in ["release", "roll back"] {
        let guard = held(&lock, &name).await;
        let mut lent = guard.transaction().await.expect("the transaction");
        let refused = lent.run("SELECT 1 / 0", ()).await;
        assert!(matches!(refused, Err(sqlx::Error::Database(_))));
        // Postgres says so before it does so: a moment may pass.
        let next = held_soon(&lock, &name).await;
        // Lent out still: it was the statement that told, and not the heartbeat.
        assert_eq!(soon("it is told", guard.lost()).await, Why::NotOurs);
        drop(lent);
        match ending {
            "release" => not_held(guard).await,
            _ => assert_eq!(guard.roll_back().await.expect(ending), Released::NotHeld),
        }
        freed(next).await;
    }
}

#[tokio::test]
async fn advisory_what_was_lent_comes_back_without_the_lock() {
    // The only connection of its pool: the next query gets the same, if it is still there.
    let sql = client("a", 1).await;
    let lock = AdvisoryLock(sql.clone());
    let other = AdvisoryLock(client("b", 1).await);
    for ending in ["release", "roll back", "drop", "drop amid a statement"] {
        let name = name("advisory-returned");
        let guard = held(&lock, &name).await;
        let mut lent = guard.transaction().await.expect("the transaction");
        assert_eq!(value::<i64>(lent.row(LOCKS, ())).await, 1, "{ending}");
        if ending == "drop amid a statement" {
            let mut statement = Box::pin(lent.run("SELECT pg_sleep(0.3)", ()));
            assert!(futures_util::poll!(&mut statement).is_pending());
        }
        drop(lent);
        assert!(is_contended(&other, &name).await, "{ending}: it is held");
        match ending {
            "release" => freed(guard).await,
            "roll back" => assert_eq!(guard.roll_back().await.expect(ending), Released::Freed),
            _ => drop(guard),
        }
        assert_eq!(value::<i64>(sql.row(LOCKS, ())).await, 0, "{ending}");
        freed(held_soon(&other, &name).await).await;
    }
}

#[tokio::test]
async fn table_ends_by_itself_and_a_late_release_touches_nobody_elses() {
    let sql = client("a", 2).await;
    let others = [(); 2].map(|()| TableLock::new(sql.clone(), LEASE));
    let late = TableLock::new(sql, SHORT);
    let guard = held(&late, &name("table-late")).await;
    assert_eq!(soon("its end", guard.lost()).await, Why::LeaseOver);
    assert!(!late_release_lets_a_third_in(late, others).await);
}

#[tokio::test]
async fn table_replies_that_are_lost() {
    let (sql, interceptor) = watched("a").await;
    interceptor.lose("INSERT INTO lab.locks", 1);
    interceptor.lose("UPDATE lab.locks SET owner = NULL", 1);
    let name = name("table-lost");
    let lock = TableLock::new(sql, LEASE);
    let guard = held_soon(&lock, &name).await;
    assert_eq!(guard.fencing(), Some(1), "counted once");
    let Ok(Acquired::Contended { remaining }) = lock.acquire(&name, ONCE).await else {
        panic!("two hold it");
    };
    assert!(remaining > Some(LEASE / 2), "{remaining:?}");
    freed(guard).await;
    assert_eq!(held(&lock, &name).await.fencing(), Some(2));
}

#[tokio::test]
async fn table_held_when_its_validity_has_gone() {
    // Its reply is late, or its request.
    for hold in [Interceptor::hold_after, Interceptor::hold] {
        let name = name("table-validity");
        let (sql, interceptor) = watched("a").await;
        let late = hold(&interceptor, "INSERT INTO lab.locks");
        turned_away_later(late, TableLock::new(sql, SHORT), &name, SHORT).await;
        wait_for!(interceptor.answered("owner = NULL") > 0);
        assert!(!is_contended(&TableLock::new(client("b", 1).await, LEASE), &name).await);
    }
}
