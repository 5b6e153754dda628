//! Which process of Redis may be sold from, on real servers; two versions of the function library.

use crate::support::{prelude::*, redis_servers::RedisProcess};
use flash_sale::redis::functions::{self, AdmitOptions, Buyer, Fenced, Verdict};
use flash_sale::{admission::ids, redis::library::LIBRARY};

/// Their ids are far from those that the generator leases.
fn fresh_buyer() -> Buyer {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = u32::MAX - NUMBER.fetch_add(1, Relaxed);
    let id = ids::encode(OffsetDateTime::now_utc().unix_timestamp(), number);
    Buyer { user: UserId::random(), order_id: id.expect("an id"), key: None }
}

async fn ask(server: &RedisProcess, sale: SaleId, epoch: i64) -> Result<Verdict, Fenced> {
    let mut redis = server.connection().await.expect("it answers");
    let (keys, buyers) = (Keys::new(""), [fresh_buyer()]);
    let options = AdmitOptions { high_water: 1_000_000, own_writer: false, readmitted: None };
    let answer = functions::admit(&mut redis, &keys, sale, epoch, options, &buyers).await;
    answer.expect("an answer").map(|admitted| admitted.verdicts[0])
}

const SOLD: Result<Verdict, Fenced> = Ok(Verdict::Accepted { slot: 0 });

async fn follow(replica: &RedisProcess, primary: &RedisProcess) {
    replica.follow(primary).await;
    wait_for!(
        primary.info("replication", "master_repl_offset").await
            == replica.info("replication", "slave_repl_offset").await
    );
}

async fn rebuilt(app: &TestApp, server: &RedisProcess, sale: SaleId) -> i64 {
    wait_for!("it is rebuilt", {
        let epoch = app.number("SELECT epoch FROM sales").await;
        (ask(server, sale, epoch).await == SOLD).then_some(epoch)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_sells_only_what_was_activated_in_it() {
    let servers = Servers::own().await;
    let start = |name: &str| RedisProcess::start(&servers.folder(name), free_port(), &[]);
    let (first, second) = (start("first"), start("second"));
    first.until_ready().await;
    second.until_ready().await;
    let launch = |database, server: &RedisProcess| {
        TestApp::launch(database, server.url(), String::new(), Options::default())
    };
    let app = launch(servers.database().await, &first).await;
    let sale: SaleId = app.sale(1_000, json!({})).await.parse().expect("an id");
    let database = app.stop().await;
    assert_eq!(ask(&first, sale, 1).await, SOLD);
    assert_eq!(ask(&first, sale, 2).await, Err(Fenced::Epoch));

    // An approval of before a promotion of Postgres is void for the audit, too.
    let (services, _) = services_without_tasks(&database, &first.url(), "");
    for (ahead, approved) in [(0, true), (1, false), (-1, true)] {
        let moved = format!("UPDATE redis_incarnation SET timeline = timeline + {ahead}");
        database.connect().await.execute(AssertSqlSafe(moved)).await.expect("moved");
        let audit = services.auditor.audit(sale).await.expect("an audit");
        assert_eq!(audit.redis.run_id_approved, approved, "{ahead}");
    }

    // A first replica changes what INFO says of replication, and nothing that matters.
    follow(&second, &first).await;
    assert_eq!(ask(&first, sale, 1).await, SOLD);
    // A library that Redis has dropped is loaded again, without a rebuild.
    let _: String = first.command(&["FUNCTION", "FLUSH"]).await;
    assert_eq!(ask(&first, sale, 1).await, SOLD);

    // A replica that has everything is another process all the same.
    follow(&second, &first).await;
    let _: String = second.command(&["REPLICAOF", "NO", "ONE"]).await;
    assert_eq!(ask(&second, sale, 1).await, Err(Fenced::NotApproved));

    // Others go on there. The old primary knows the old epoch, which nobody names any more.
    let app = launch(database, &second).await;
    let epoch = rebuilt(&app, &second, sale).await;
    assert!(epoch > 1);
    let database = app.stop().await;
    assert_eq!(ask(&first, sale, epoch).await, Err(Fenced::Epoch));

    // It follows the new one and is promoted in turn: what it once was approved for is void.
    follow(&first, &second).await;
    let _: String = first.command(&["REPLICAOF", "NO", "ONE"]).await;
    assert_eq!(ask(&first, sale, epoch).await, Err(Fenced::NotApproved));
    assert_eq!(ask(&second, sale, epoch).await, SOLD);

    // Killed and started on its own files, which are complete.
    second.kill();
    second.come_back().await.expect("it answers");
    let after = wait_for!("it has loaded its files", {
        let mut connection = second.connection().await.ok()?;
        let call = functions::snapshot(&Keys::new(""), sale);
        functions::Snapshot::from_reply(call.query_async(&mut connection).await.ok()?)
    });
    assert_eq!((after.epoch, after.is_approved()), (epoch, false));
    assert_eq!(ask(&second, sale, epoch).await, Err(Fenced::NotApproved));

    // Emptied: the process is the same, and sees that the sale is not there.
    let app = launch(database, &second).await;
    let epoch = rebuilt(&app, &second, sale).await;
    app.stop().await;
    let _: String = second.command(&["FLUSHALL"]).await;
    assert_eq!(ask(&second, sale, epoch).await, Err(Fenced::Absent));
}

async fn buy_with(of: &str, mut line: MultiplexedConnection, keys: Keys, sale: SaleId) -> usize {
    let mut sold = 0;
    loop {
        let Buyer { user, order_id, .. } = fresh_buyer();
        let packed = [user.as_bytes(), &order_id.get().to_be_bytes()[..], &[0; 8]].concat();
        let names = [keys.state(sale), keys.log(sale), keys.buyers(sale, 1)];
        let mut call = redis::cmd("FCALL");
        call.arg(format!("admit_{of}")).arg(3).arg(&names);
        call.arg(&[1, 1_000_000, 0, 0]).arg(packed);
        let reply: Vec<redis::Value> = call.query_async(&mut line).await.expect("an answer");
        let text = |at: usize| redis::from_redis_value::<String>(reply[at].clone()).expect("text");
        assert_eq!(text(0), "ok");
        match text(6).as_str() {
            "A" => sold += 1,
            "S" => return sold,
            other => panic!("{other}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_versions_of_the_library_sell_side_by_side() {
    const STOCK: usize = 3_000;
    let (app, sale) = TestApp::selling(STOCK as i64, json!({})).await;
    let id: SaleId = sale.parse().expect("an id");
    // The same code under another name is what a change of a comment would make of it.
    let other = "ffffffff";
    let source = LIBRARY.source().replace(LIBRARY.name_of("").trim_start_matches('_'), other);
    app.in_redis::<String>(redis::cmd("FUNCTION").arg(&["LOAD", "REPLACE", &source])).await;
    let newer = tokio::spawn(buy_with(other, app.redis().await, Keys::new(&app.prefix), id));
    let mut older = 0;
    while !newer.is_finished() {
        older += crowd(&app, &sale, 50).await.len();
    }
    let newer = newer.await.expect("no panic");
    assert!(older > 0 && newer > 0, "{older} and {newer}");
    assert_eq!(older + newer, STOCK);
    assert_eq!(app.assert_sound(&sale).await.live, STOCK as i64);
    assert_eq!(app.number("SELECT epoch FROM sales").await, 1, "it was rebuilt");
    let other = format!("flash_sale_{other}");
    app.in_redis::<()>(redis::cmd("FUNCTION").arg(&["DELETE", &other])).await;
}

/// The cache may still hold a late answer of the process that was there before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approval_on_a_single_server_replaces_all_others() {
    let app = TestApp::start().await;
    // A sale that is not rebuilt any more, so that nothing corrects the answer.
    let long_ago = json!({"opens_at": "2025-01-01T00:00:00Z", "closes_at": "2025-01-02T00:00:00Z"});
    let sale: SaleId = app.sale(1, long_ago).await.parse().expect("an id");
    let (services, _) = app.services_without_tasks();
    let cached = services.catalog.refresh(sale).await.expect("it is there");
    let now = cached.snapshot().expect("its state");
    cached.tell(Some(functions::Snapshot { process: "gone".into(), ..now.clone() }));
    let gone = "INSERT INTO redis_incarnation SELECT 'gone', approved_at, timeline
                FROM redis_incarnation";
    app.execute(gone).await;
    services.rebuild.by_hand(None).await.expect("it is rebuilt");
    assert_eq!(&*cached.snapshot().expect("its state").process, "gone", "the late answer stays");
    let approved = services.catalog.approved_processes().await.expect("approved processes");
    assert_eq!(approved, HashSet::from([now.process.to_string()]));
}
