//! A sale's state in Redis is there, and is nonsense or wrong: the sale stops, or the scrubber
//! finds the damage, until it is rebuilt from Postgres by itself; the others go on undisturbed.

use super::*;
use redis::{Cmd, Pipeline};

/// The keys of one sale.
struct Damaged {
    state: String,
    log: String,
    buyers: String,
}

async fn damaged(app: &TestApp, sale: &str) -> Damaged {
    let (keys, id) = keys_of(app, sale);
    let buyers = keys.buyers(id, epoch(app, sale).await);
    let (state, log) = (keys.state(id), keys.log(id));
    Damaged { state, log, buyers }
}

/// What is done to the keys of one sale.
#[derive(Debug, Clone, Copy)]
enum Corruption {
    /// A field of the state has this value.
    Field(&'static str, &'static str),
    /// A field of the state is not there.
    Missing(&'static str),
    StateOfAnotherType,
    LogOfAnotherType,
    BuyersOfAnotherType,
    /// An entry as the function appends it, counted and all, with this header and length of orders.
    Entry(&'static [u8], usize),
}

const CORRUPTIONS: [Corruption; 14] = [
    Corruption::Field("epoch", "?"),
    Corruption::Field("opens", "soon"),
    Corruption::Field("closes", ""),
    Corruption::Field("limit", "one"),
    Corruption::Field("remaining", "many"),
    Corruption::Field("pending", "0x"),
    Corruption::Missing("admitted"),
    Corruption::Field("change", "-"),
    Corruption::StateOfAnotherType,
    Corruption::LogOfAnotherType,
    Corruption::BuyersOfAnotherType,
    Corruption::Entry(b"\xff\xfe", 99), // a header of noise
    Corruption::Entry(b"1 1767225600000 0", 98), // cut off
    Corruption::Entry(b"1 1767225600000 0", 0),
];

impl Corruption {
    fn of(self, keys: &Damaged) -> Pipeline {
        let state = &keys.state;
        let mut pipeline = redis::pipe();
        let another_type = |pipeline: &mut Pipeline, key: &str| {
            pipeline.del(key).set(key, "something else");
        };
        match self {
            Self::Field(field, nonsense) => drop(pipeline.hset(state, field, nonsense)),
            Self::Missing(field) => drop(pipeline.hdel(state, field)),
            Self::StateOfAnotherType => another_type(&mut pipeline, state),
            Self::LogOfAnotherType => another_type(&mut pipeline, &keys.log),
            Self::BuyersOfAnotherType => another_type(&mut pipeline, &keys.buyers),
            Self::Entry(meta, length) => {
                pipeline.xadd(&keys.log, "*", &[("m", meta), ("o", &vec![1; length])]);
                for (field, add) in [("pending", 3), ("admitted", 3), ("remaining", -3)] {
                    pipeline.hincr(state, field, add);
                }
            }
        }
        pipeline.atomic();
        pipeline
    }
}

/// A new shopper buys as soon as the sale takes orders again; until then they hear 503.
async fn buy_when_healed(what: Corruption, shopper: Shopper, sale: &str) -> Winner {
    let mut unsure = false;
    let id = wait_for!(&format!("the sale heals: {what:?}"), {
        let reply = shopper.buy(sale).await;
        // An attempt that was told 503 may have gone through.
        if reply.is_accepted() || (unsure && reply.status == StatusCode::CONFLICT) {
            return Some(reply.text("order_id").to_owned());
        }
        assert_shed(&reply);
        unsure = true;
        None
    });
    (shopper, id)
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
    let rush = Rush::start(&[&app], &neighbour, 4, &[]);
    rush.until_accepted(20).await;
    let mut redis = app.redis().await;
    for (how, sale, _) in &broken {
        how.of(&damaged(&app, sale).await).exec_async(&mut redis).await.expect("corrupted");
    }
    for (how, sale, winners) in &mut broken {
        winners.push(buy_when_healed(*how, app.shopper(), sale).await);
        // What was quarantined is rebuilt a moment later than a shopper can buy.
        until_sound(&app, sale).await;
        assert_all_pending(&app, sale, winners).await;
        crowd(&app, sale, 20).await;
        assert_eq!(app.assert_sound(sale).await.live, STOCK, "{how:?}");
    }
    rush.until_accepted(20).await;
    let told = rush.end().await;
    assert_eq!(told.shed, 0, "the neighbour stopped, too");
    app.assert_kept(&neighbour, &told.winners).await;
    app.assert_sound(&neighbour).await;
    // What could not be read is not thrown away.
    let pattern = format!("{}*:unreadable", app.prefix);
    let aside: Vec<String> = app.in_redis(redis::cmd("KEYS").arg(pattern)).await;
    assert_eq!(aside.len(), 4, "three entries and a log: {aside:?}");
    app.finish().await;
}

cases! { the_scrubber_has_it_rebuilt:
    buyers_that_are_gone_come_back => |keys| {
        redis::cmd("UNLINK").arg(keys.buyers).take()
    },
    units_from_nowhere_are_taken_away => |keys| {
        redis::cmd("HSET").arg(keys.state).arg("remaining").arg(999_999).take()
    },
    units_that_went_astray_come_back => |keys| {
        redis::cmd("HINCRBY").arg(keys.state).arg("remaining").arg(-5).take()
    },
}

/// Damage that no purchase meets, in a sale of 40, of which 20 are sold.
async fn the_scrubber_has_it_rebuilt(damage: fn(Damaged) -> Cmd) {
    let app = TestApp::start().await;
    let (sale, _) = sold(&app, 40, 20).await;
    let mut damage = damage(damaged(&app, &sale).await);
    rebuilt_by(&app, &sale, app.in_redis(&mut damage)).await;
    sells_out(&app, &sale).await;
    app.finish().await;
}

/// One buyer of twenty, whose place somebody who never bought has taken: the counts agree.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_buyer_that_was_replaced_is_missed() {
    let app = TestApp::start().await;
    let (sale, winners) = sold(&app, 40, 20).await;
    let buyers = damaged(&app, &sale).await.buyers;
    let mut redis = app.redis().await;
    app.assert_sound(&sale).await;
    let mut replace = redis::pipe();
    replace.atomic().hdel(&buyers, winners[7].0.user.as_bytes());
    replace.hset(&buyers, &[9u8; 16][..], &[0u8; 17][..]);
    rebuilt_by(&app, &sale, async {
        replace.exec_async(&mut redis).await.expect("the damage is done");
    })
    .await;
    winners[7].0.refused(&sale, "already_ordered").await;
    sells_out(&app, &sale).await;
    app.finish().await;
}

/// The instance has no writer: the orders are in the log only, and the log is emptied. Their users
/// hold a 202 that nothing can honour any more, but the units are not lost as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_of_a_log_that_was_trimmed_come_back() {
    let app = TestApp::start_with(Options::without_writer()).await;
    let (sale, _) = sold(&app, 40, 20).await;
    let log = damaged(&app, &sale).await.log;
    app.in_redis::<()>(redis::cmd("XTRIM").arg(log).arg("MAXLEN").arg(0)).await;
    let worker = app.another(Options::default()).await;
    until_rebuilt(&app, &sale, 1).await;
    app.finish_with(worker).await;
}
