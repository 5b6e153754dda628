//! A sale's state in Redis is nonsense or wrong: it stops until it is rebuilt; others go on.

use super::*;
use Corruption::{Command, Entry};
use redis::Pipeline;

#[derive(Debug, Clone, Copy)]
enum Corruption {
    Command(&'static str),
    /// An entry as the function appends it, counted and all, with this header and length of orders.
    Entry(&'static [u8], usize),
}

const CORRUPTIONS: [Corruption; 14] = [
    Command("HSET STATE epoch ?"),
    Command("HSET STATE opens soon"),
    Command("HSET STATE closes "),
    Command("HSET STATE limit one"),
    Command("HSET STATE remaining many"),
    Command("HSET STATE pending 0x"),
    Command("HDEL STATE admitted"),
    Command("HSET STATE change -"),
    Command("SET STATE something-else"),
    Command("SET LOG something-else"),
    Command("SET BUYERS something-else"),
    Entry(b"\xff\xfe", 99),          // a header of noise
    Entry(b"1 1767225600000 0", 98), // cut off
    Entry(b"1 1767225600000 0", 0),
];

impl Corruption {
    fn of(self, keys: &LiveKeys) -> Pipeline {
        let mut pipeline = redis::pipe();
        match self {
            Command(words) => {
                let words = words.replace("STATE", &keys.state).replace("LOG", &keys.log);
                let words = words.replace("BUYERS", &keys.buyers);
                let mut words = words.split(' ');
                pipeline.cmd(words.next().expect("a command")).arg(words.collect::<Vec<_>>());
            }
            Entry(meta, length) => {
                pipeline.atomic().xadd(&keys.log, "*", &[("m", meta), ("o", &vec![1; length])]);
                for (field, add) in [("pending", 3), ("admitted", 3), ("remaining", -3)] {
                    pipeline.hincr(&keys.state, field, add);
                }
            }
        }
        pipeline
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_corrupt_sale_heals_by_itself_and_its_neighbours_notice_nothing() {
    const STOCK: i64 = 16;
    let app = TestApp::start().await;
    let neighbour = app.sale(50_000, json!({})).await;
    let mut broken = Vec::new();
    for how in CORRUPTIONS {
        let (sale, winners) = sold(&app, STOCK, 5).await;
        app.assert_sound(&sale).await;
        broken.push((how, sale, winners));
    }
    let rush = Rush::start(std::slice::from_ref(&app.entrance), &neighbour, 4, &[]);
    rush.until_accepted(20).await;
    let mut redis = app.redis().await;
    for (how, sale, _) in &broken {
        how.of(&live_keys(&app, sale).await).exec_async(&mut redis).await.expect("corrupted");
    }
    for (how, sale, winners) in &mut broken {
        println!("sale {sale} has to heal: {how:?}");
        winners.push(app.buyer(sale).await);
        // What was quarantined is rebuilt a moment later than a shopper can buy.
        app.until_sound(sale).await;
        assert_all_pending(&app, sale, winners).await;
        crowd(&app, sale, 20).await;
        assert_eq!(app.assert_sound(sale).await.live, STOCK, "{how:?}");
    }
    rush.until_accepted(20).await;
    let told = rush.end().await;
    assert_eq!(told.suspended, 0, "the neighbour stopped, too");
    app.database.assert_kept(&neighbour, &told.winners).await;
    app.assert_sound(&neighbour).await;
    let pattern = format!("{}*:unreadable", app.prefix);
    let aside: Vec<String> = app.in_redis(redis::cmd("KEYS").arg(pattern)).await;
    assert_eq!(aside.len(), 4, "three entries and a log: {aside:?}");
}

cases! { the_scrubber_has_it_rebuilt:
    buyers_that_are_gone_come_back => |pipeline, keys, _| {
        pipeline.unlink(&keys.buyers);
    },
    a_buyer_that_was_replaced_by_somebody_who_never_bought_is_missed => |pipeline, keys, user| {
        pipeline.atomic().hdel(&keys.buyers, user.as_bytes());
        pipeline.hset(&keys.buyers, &[9u8; 16][..], &[0u8; 17][..]);
    },
    units_from_nowhere_are_taken_away => |pipeline, keys, _| {
        pipeline.hset(&keys.state, "remaining", 999_999);
    },
    units_that_went_astray_come_back => |pipeline, keys, _| {
        pipeline.hincr(&keys.state, "remaining", -5);
    },
}

/// Damage that no purchase meets; this user's order is too old for the scrubber's first look.
async fn the_scrubber_has_it_rebuilt(damage: fn(&mut Pipeline, &LiveKeys, UserId)) {
    let app = TestApp::start().await;
    let (sale, winners) = sold(&app, 300, 150).await;
    app.assert_sound(&sale).await;
    let oldest = winners.iter().min_by_key(|(_, order)| order.parse::<i64>().expect("an id"));
    let buyer = &oldest.expect("somebody").0;
    let (mut redis, mut pipeline) = (app.redis().await, redis::pipe());
    damage(&mut pipeline, &live_keys(&app, &sale).await, buyer.user);
    let damaging = async { pipeline.exec_async(&mut redis).await.expect("the damage is done") };
    rebuilt_by(&app, &sale, damaging).await;
    buyer.refused(&sale, "already_ordered").await;
    sells_out(&app, &sale).await;
}

/// Only the log has the orders: nothing can honour their 202, but the units are not lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_of_a_log_that_was_trimmed_come_back() {
    let app = TestApp::start_with(Options::without_writer()).await;
    let (sale, _) = sold(&app, 40, 20).await;
    let log = live_keys(&app, &sale).await.log;
    app.in_redis::<()>(redis::cmd("XTRIM").arg(log).arg("MAXLEN").arg(0)).await;
    let _worker = app.another(Options::default()).await;
    until_rebuilt(&app, &sale, 1).await;
}

/// A copy that was put back after a rebuild, by the same process of Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_of_an_older_epoch_that_is_put_back_is_rebuilt() {
    let app = TestApp::start().await;
    let (sale, winners) = sold(&app, 40, 20).await;
    app.assert_sound(&sale).await;
    let state = live_keys(&app, &sale).await.state;
    let copy = format!("{state}:copy");
    app.in_redis::<()>(redis::cmd("COPY").arg(&state).arg(&copy)).await;
    let rebuild = app.services.rebuild.by_hand(Some(sale.parse().expect("an id")));
    assert_eq!(rebuild.await.expect("rebuilt"), 1);
    rebuilt_by(&app, &sale, app.in_redis(redis::cmd("RENAME").arg(&copy).arg(&state))).await;
    assert_all_pending(&app, &sale, &winners).await;
    sells_out(&app, &sale).await;
}
