//! Which process of Redis may be sold from is for Redis itself to say: every way in which a process
//! can be another one than the sale was installed in, on real servers; and two versions of the
//! function library side by side.

use crate::support::{
    Servers,
    app::{Options, TestApp, eventually},
    proxy::free_port,
    redis_servers::RedisProcess,
};
use flash_sale::{
    domain::{OrderId, SaleId, UserId},
    redis::{
        Keys,
        functions::{self, AdmitOptions, Buyer, Fenced, Verdict},
        library::LIBRARY,
    },
};
use redis::aio::MultiplexedConnection;
use serde_json::json;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use time::OffsetDateTime;

/// Far from those that the generator leases.
fn fresh_id() -> OrderId {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let second = OffsetDateTime::now_utc().unix_timestamp() - 1_735_689_600;
    let number = u32::MAX - NUMBER.fetch_add(1, Relaxed);
    OrderId::from_i64(second << 32 | i64::from(number))
}

fn fresh_buyer() -> Buyer {
    Buyer {
        user: UserId::random(),
        order_id: fresh_id(),
        key: None,
    }
}

const OPTIONS: AdmitOptions = AdmitOptions {
    high_water: 1_000_000,
    own_writer: false,
    readmitted: None,
};

/// What a purchase hears from this server, in this epoch.
async fn ask(server: &RedisProcess, sale: SaleId, epoch: i64) -> Result<Verdict, Fenced> {
    let mut connection = server.connection().await.expect("it answers");
    let keys = Keys::new("");
    let buyers = [fresh_buyer()];
    functions::admit(&mut connection, &keys, sale, epoch, OPTIONS, &buyers)
        .await
        .expect("an answer")
        .map(|admitted| admitted.verdicts[0])
}

const SOLD: Result<Verdict, Fenced> = Ok(Verdict::Accepted { slot: 0 });

async fn follow(replica: &RedisProcess, primary: &RedisProcess) {
    let port = primary.port.to_string();
    let _: String = replica.command(&["REPLICAOF", "127.0.0.1", &port]).await;
    eventually("the replica follows", async || {
        (replica.info("replication", "master_link_status").await? == "up").then_some(())
    })
    .await;
    // In step with everything that was written so far.
    eventually("the replica has it all", async || {
        let offset = primary.info("replication", "master_repl_offset").await;
        (offset == replica.info("replication", "slave_repl_offset").await).then_some(())
    })
    .await;
}

async fn promote(replica: &RedisProcess) {
    let _: String = replica.command(&["REPLICAOF", "NO", "ONE"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_sells_only_what_was_installed_in_it() {
    let servers = Servers::own().await;
    let start = |name: &str| RedisProcess::start(&servers.folder(name), free_port(), &[]);
    let (first, second) = (start("first"), start("second"));
    for server in [&first, &second] {
        eventually("it answers", async || {
            server.ask::<String>(&["PING"]).await.ok()
        })
        .await;
    }
    let url = |server: &RedisProcess| format!("redis://{}", server.address());

    let app = TestApp::launch(
        servers.database().await,
        url(&first),
        String::new(),
        Options::default(),
    )
    .await;
    let sale: SaleId = app.sale(1_000, json!({})).await.parse().expect("an id");
    let database = app.stop().await;
    assert_eq!(ask(&first, sale, 1).await, SOLD);
    assert_eq!(ask(&first, sale, 2).await, Err(Fenced::Epoch));

    // A first replica changes what INFO says of replication, and nothing that matters.
    follow(&second, &first).await;
    assert_eq!(ask(&first, sale, 1).await, SOLD);
    // What Redis itself forgets of functions is given to it again, without a rebuild.
    let _: String = first.command(&["FUNCTION", "FLUSH"]).await;
    assert_eq!(ask(&first, sale, 1).await, SOLD);

    // A replica that has everything is another process all the same.
    follow(&second, &first).await;
    promote(&second).await;
    assert_eq!(ask(&second, sale, 1).await, Err(Fenced::NotApproved));

    // Others go on there. The old primary knows the old epoch, which nobody names any more.
    let app = TestApp::launch(database, url(&second), String::new(), Options::default()).await;
    let epoch = eventually("it is rebuilt", async || {
        let epoch = app.number("SELECT epoch FROM sales").await;
        (epoch > 1 && ask(&second, sale, epoch).await == SOLD).then_some(epoch)
    })
    .await;
    let database = app.stop().await;
    assert_eq!(ask(&first, sale, epoch).await, Err(Fenced::Epoch));

    // It follows the new one and is promoted in turn: what it once was approved for is void.
    follow(&first, &second).await;
    promote(&first).await;
    assert_eq!(ask(&first, sale, epoch).await, Err(Fenced::NotApproved));
    assert_eq!(ask(&second, sale, epoch).await, SOLD);

    // Killed and started on its own files, which are complete.
    second.kill();
    second.start_again();
    eventually("it answers again", async || {
        second.ask::<String>(&["PING"]).await.ok()
    })
    .await;
    let after = eventually("it has loaded its files", async || {
        let mut connection = second.connection().await.ok()?;
        let call = functions::snapshot(&Keys::new(""), sale);
        let reply = call.query_async(&mut connection).await.ok()?;
        functions::Snapshot::from_reply(reply)
    })
    .await;
    assert_eq!((after.epoch, after.is_approved()), (epoch, false));
    assert_eq!(ask(&second, sale, epoch).await, Err(Fenced::NotApproved));

    // Emptied: the process is the same, and sees that the sale is not there.
    let app = TestApp::launch(database, url(&second), String::new(), Options::default()).await;
    let epoch = eventually("it is rebuilt once more", async || {
        let epoch = app.number("SELECT epoch FROM sales").await;
        (ask(&second, sale, epoch).await == SOLD).then_some(epoch)
    })
    .await;
    app.stop().await;
    let _: String = second.command(&["FLUSHALL"]).await;
    assert_eq!(ask(&second, sale, epoch).await, Err(Fenced::Absent));
}

/// Buys under the functions of another version of the library until the sale is sold out.
async fn buy_with(
    version: &str,
    mut connection: MultiplexedConnection,
    keys: Keys,
    sale: SaleId,
) -> usize {
    let mut sold = 0;
    loop {
        let buyer = fresh_buyer();
        let mut packed = buyer.user.as_bytes().to_vec();
        packed.extend(buyer.order_id.get().to_be_bytes());
        packed.extend([0; 8]);
        let mut call = redis::cmd("FCALL");
        call.arg(format!("admit_{version}"))
            .arg(3)
            .arg(keys.state(sale))
            .arg(keys.log(sale))
            .arg(keys.buyers(sale, 1))
            .arg(&[1, 1_000_000, 0, 0])
            .arg(packed);
        type Reply = (String, i64, i64, i64, i64, String, String);
        let reply: redis::Value = call.query_async(&mut connection).await.expect("an answer");
        let redis::Value::Array(mut reply) = reply else {
            panic!("{reply:?}");
        };
        reply.truncate(7);
        let (outcome, .., verdict): Reply =
            redis::from_redis_value(redis::Value::Array(reply)).expect("a reply");
        assert_eq!(outcome, "ok");
        match verdict.as_str() {
            "A" => sold += 1,
            "S" => return sold,
            other => panic!("{other}"),
        }
    }
}

/// A rolling change of versions: an instance with the newer library works beside one with the older,
/// on one sale, and nobody has to rebuild it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_versions_of_the_library_sell_side_by_side() {
    const STOCK: usize = 3_000;
    let app = TestApp::start().await;
    let sale = app.sale(STOCK as i64, json!({})).await;
    let id: SaleId = sale.parse().expect("an id");
    // The same code under another name is what a change of a comment would make of it.
    let mine = LIBRARY.name_of("");
    let other = "ffffffff";
    let source = LIBRARY
        .source()
        .replace(mine.trim_start_matches('_'), other);
    redis::cmd("FUNCTION")
        .arg("LOAD")
        .arg("REPLACE")
        .arg(&source)
        .exec_async(&mut app.redis().await)
        .await
        .expect("it loads");
    let keys = Keys::new(&app.prefix);
    let newer = tokio::spawn(buy_with(other, app.redis().await, keys, id));
    let mut older = 0;
    while !newer.is_finished() {
        let bought = crate::support::load::crowd(&app, &sale, 50).await;
        older += bought.len();
    }
    let newer = newer.await.expect("no panic");
    assert!(older > 0 && newer > 0, "{older} and {newer}");
    assert_eq!(older + newer, STOCK);
    eventually("everything is written", async || {
        (app.number(&format!(
            "SELECT count(*) FROM orders WHERE sale_id = {sale}"
        ))
        .await
            == STOCK as i64)
            .then_some(())
    })
    .await;
    let audit = app.assert_sound(&sale).await;
    assert_eq!(audit.live, STOCK as i64);
    let epoch = format!("SELECT epoch FROM sales WHERE id = {sale}");
    assert_eq!(app.number(&epoch).await, 1, "it was rebuilt");
    redis::cmd("FUNCTION")
        .arg("DELETE")
        .arg(format!("flash_sale_{other}"))
        .exec_async(&mut app.redis().await)
        .await
        .expect("it goes");
    app.finish().await;
}
