//! People who keep buying while something is broken or killed, and what they were told.

use crate::support::prelude::*;
use tokio::time::sleep;

pub type Winner = (Shopper, String);

pub async fn all_told(all: impl IntoIterator<Item = Shopper>, sale: &str) -> Vec<(Shopper, Reply)> {
    let asking = stream::iter(all).map(async |shopper: Shopper| {
        let reply = shopper.told(sale).await;
        (shopper, reply)
    });
    asking.buffered(256).collect().await
}

pub async fn crowd(app: &TestApp, sale: &str, count: usize) -> Vec<Winner> {
    let told = all_told(app.shoppers(count), sale).await.into_iter();
    told.filter_map(|(shopper, reply)| Some((shopper, reply.order()?))).collect()
}

pub async fn all_order(people: impl IntoIterator<Item = Shopper>, sale: &str) -> Vec<Winner> {
    let told = all_told(people, sale).await.into_iter();
    told.map(|(shopper, reply)| (shopper, reply.text("order_id").to_owned())).collect()
}

pub async fn all_written(orders: &[Winner]) {
    let each = stream::iter(orders.to_vec());
    let written = async |(shopper, id): Winner| drop(shopper.until(&id, "pending_payment").await);
    each.for_each_concurrent(200, written).await;
}

/// The next customer of a lane comes this much later, so that a rush lasts and the stock does too.
const PAUSE: Duration = Duration::from_millis(20);
const RETRY: Duration = Duration::from_millis(25);

#[derive(Default)]
pub struct Told {
    pub winners: Vec<Winner>,
    /// Newcomers who were told to come back later, or nothing at all.
    pub unanswered: Vec<Shopper>,
    /// How many of them because the sale was fenced, and not because the machine was busy.
    pub suspended: usize,
    pub reminded: usize,
    /// What else went well, and what went wrong how often, where a lane notes it.
    pub answers: usize,
    pub failures: BTreeMap<String, usize>,
    /// A request may get no answer at all.
    pub may_break: bool,
    pub is_over: bool,
}

/// Newcomers ask once (202 or 503, as stock never ends), regulars again and again (503 or order).
#[derive(Default)]
pub struct Rush {
    pub told: Arc<Mutex<Told>>,
    pub lanes: JoinSet<()>,
}

impl Rush {
    /// Starts `lanes` newcomers at a time at each entrance, and the regulars, each at every one.
    pub fn start(at: &[Entrance], sale: &str, lanes: usize, regulars: &[Winner]) -> Self {
        let mut rush = Self::default();
        for entrance in at {
            for _ in 0..lanes {
                rush.lanes.spawn(newcomers(entrance.clone(), sale.to_owned(), rush.told.clone()));
            }
            for (shopper, id) in regulars {
                let known = (entrance.welcome(shopper), id.clone());
                rush.lanes.spawn(regular(known, sale.to_owned(), rush.told.clone()));
            }
        }
        rush
    }

    pub async fn until(&self, more: usize, count: impl Fn(&Told) -> usize) {
        let counted = || count(&locked(&self.told));
        let wanted = counted() + more;
        wait_for!(&format!("{more} more were counted"), (counted() >= wanted).then_some(()));
    }

    pub async fn until_accepted(&self, more: usize) {
        self.until(more, |told| told.winners.len()).await;
    }

    pub async fn end(self) -> Told {
        locked(&self.told).is_over = true;
        self.lanes.join_all().await;
        std::mem::take(&mut *locked(&self.told))
    }
}

async fn newcomers(entrance: Entrance, sale: String, told: Arc<Mutex<Told>>) {
    while !locked(&told).is_over {
        let shopper = entrance.shopper();
        let pause = match shopper.buying(&sale).send().await {
            Ok(reply) if reply.is_accepted() => {
                locked(&told).winners.push((shopper, reply.text("order_id").to_owned()));
                PAUSE
            }
            answer => {
                let told = &mut *locked(&told);
                match answer {
                    Ok(reply) => {
                        assert_shed(&reply);
                        told.suspended += usize::from(reply.text("detail").contains("suspended"));
                    }
                    Err(error) => assert!(told.may_break, "{error:?}"),
                }
                told.unanswered.push(shopper);
                RETRY
            }
        };
        sleep(pause).await;
    }
}

async fn regular((shopper, id): Winner, sale: String, told: Arc<Mutex<Told>>) {
    while !locked(&told).is_over {
        let reply = shopper.buy(&sale).await;
        if reply.status == 409 {
            reply.assert_problem(409, "already_ordered");
            assert_eq!(reply.text("order_id"), id, "another order of a regular");
            locked(&told).reminded += 1;
        } else {
            assert_shed(&reply);
        }
        sleep(RETRY).await;
    }
}

#[track_caller]
pub fn assert_shed(reply: &Reply) {
    let after = reply.assert_told_when(503, "unavailable");
    assert!((1..=60).contains(&after), "Retry-After: {after}");
}

impl Database {
    /// I3 and I6: each 202 is a row of its own, once written; how many have each status.
    pub async fn assert_kept(&self, sale: &str, winners: &[Winner]) -> BTreeMap<String, usize> {
        let owner = |(shopper, id): &Winner| (id.parse().expect("an id"), shopper.user);
        let owners: HashMap<i64, UserId> = winners.iter().map(owner).collect();
        assert_eq!(owners.len(), winners.len(), "two orders under one id");
        let ids: Vec<i64> = owners.keys().copied().collect();
        let orders = "SELECT id, user_id, sale_id, status::text FROM orders WHERE id = ANY($1)";
        let what = format!("all {} orders are rows (I3)", ids.len());
        let rows: Vec<(i64, UserId, i64, String)> = wait_for!(&what, {
            let mut connection = self.connect().await;
            let rows = sqlx::query_as(orders).bind(&ids).fetch_all(&mut connection).await;
            rows.ok().filter(|rows| rows.len() == ids.len())
        });
        let mut statuses = BTreeMap::new();
        for (id, user, row_sale, status) in rows {
            assert_eq!(owners[&id], user, "order {id} belongs to somebody else");
            assert_eq!(row_sale.to_string(), sale, "order {id} is of another sale");
            *statuses.entry(status).or_default() += 1;
        }
        statuses
    }
}
