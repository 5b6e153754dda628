//! People who keep buying while something is broken or killed, and what they were told.

use super::app::Entrance;
use super::locked;
use crate::support::prelude::*;
use futures_util::future::ready;
use futures_util::{StreamExt, stream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

/// Somebody who was told 202, and the order's id.
pub type Winner = (Shopper, String);

/// Buys with `count` new shoppers at once; those who were told 202.
pub async fn crowd(app: &TestApp, sale: &str, count: usize) -> Vec<Winner> {
    let shoppers = app.shoppers(count);
    let replies = TestApp::all_buy(shoppers.clone(), sale).await;
    let all = shoppers.into_iter().zip(&replies);
    let accepted = all.filter(|(_, reply)| reply.is_accepted());
    accepted.map(|(shopper, reply)| (shopper, reply.text("order_id").to_owned())).collect()
}

/// The next customer of a lane comes this much later, so that a rush lasts and the stock does too.
const PAUSE: Duration = Duration::from_millis(20);

/// A customer who was told 503 comes back after this.
const RETRY: Duration = Duration::from_millis(25);

/// What a rush was told.
#[derive(Default)]
pub struct Told {
    pub winners: Vec<Winner>,
    /// How often a newcomer was told to come back later.
    pub shed: usize,
    /// How often a regular was told the right order.
    pub reminded: usize,
    /// Nobody new comes.
    is_over: bool,
}

/// A rush on a sale at some instances: newcomers who ask once, and regulars, who have an order and
/// ask again and again. The stock must be larger than what they buy: then a newcomer may hear only
/// 202 or 503, and a regular only 503 or the name of their order. Anything else is a wrong answer.
pub struct Rush {
    told: Arc<Mutex<Told>>,
    lanes: JoinSet<()>,
}

impl Rush {
    /// Starts `lanes` newcomers at a time at each instance, and the regulars, each at every
    /// instance.
    pub fn start(apps: &[&TestApp], sale: &str, lanes: usize, regulars: &[Winner]) -> Self {
        Self::start_at(apps.iter().map(|app| app.entrance()), sale, lanes, regulars)
    }

    /// The same at instances that are processes of their own.
    pub fn start_at(
        entrances: impl Iterator<Item = Entrance>,
        sale: &str,
        lanes: usize,
        regulars: &[Winner],
    ) -> Self {
        let mut rush = Self { told: Arc::default(), lanes: JoinSet::new() };
        for entrance in entrances {
            for _ in 0..lanes {
                let told = rush.told.clone();
                rush.lanes.spawn(newcomers(entrance.clone(), sale.to_owned(), told));
            }
            for (shopper, id) in regulars {
                let known = (entrance.welcome(shopper), id.clone());
                rush.lanes.spawn(regular(known, sale.to_owned(), rush.told.clone()));
            }
        }
        rush
    }

    /// Waits until so many more newcomers have been told 202.
    pub async fn until_accepted(&self, more: usize) {
        let accepted = || locked(&self.told).winners.len();
        let wanted = accepted() + more;
        // A lane that was told something wrong has panicked, and says so.
        eventually(&format!("{more} more were told 202"), async || {
            (accepted() >= wanted).then_some(())
        })
        .await;
    }

    /// Nobody new comes; waits for those who still wait.
    pub async fn end(self) -> Told {
        locked(&self.told).is_over = true;
        self.lanes.join_all().await;
        std::mem::take(&mut *locked(&self.told))
    }
}

async fn newcomers(entrance: Entrance, sale: String, told: Arc<Mutex<Told>>) {
    while !locked(&told).is_over {
        let shopper = entrance.shopper();
        let reply = shopper.buy(&sale).await;
        if reply.is_accepted() {
            let order = reply.text("order_id").to_owned();
            locked(&told).winners.push((shopper, order));
            sleep(PAUSE).await;
        } else {
            assert_shed(&reply);
            locked(&told).shed += 1;
            sleep(RETRY).await;
        }
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

/// Told to come back, and when.
#[track_caller]
pub fn assert_shed(reply: &Reply) {
    reply.assert_problem(503, "unavailable");
    let after: u64 = reply.header("retry-after").parse().expect("Retry-After");
    assert!((1..=60).contains(&after), "Retry-After: {after}");
}

impl TestApp {
    /// I3 and I6: everybody who was told 202 has a row of their own, each under another id; how
    /// many of those have each status. Waits for rows that are not written yet.
    pub async fn assert_kept(&self, sale: &str, winners: &[Winner]) -> BTreeMap<String, usize> {
        let owner = |(shopper, id): &Winner| (id.parse().expect("an id"), shopper.user);
        let owners: HashMap<i64, UserId> = winners.iter().map(owner).collect();
        assert_eq!(owners.len(), winners.len(), "two orders under one id");
        let ids: Vec<i64> = owners.keys().copied().collect();
        let orders = "SELECT id, user_id, sale_id, status::text FROM orders WHERE id = ANY($1)";
        let what = format!("all {} orders are rows (I3)", ids.len());
        let rows: Vec<(i64, UserId, i64, String)> = eventually(&what, async || {
            let mut connection = self.database.connect().await;
            let rows = sqlx::query_as(orders).bind(&ids).fetch_all(&mut connection).await;
            rows.ok().filter(|rows| rows.len() == ids.len())
        })
        .await;
        let mut statuses = BTreeMap::new();
        for (id, user, row_sale, status) in rows {
            assert_eq!(owners[&id], user, "order {id} belongs to somebody else");
            assert_eq!(row_sale.to_string(), sale, "order {id} is of another sale");
            *statuses.entry(status).or_default() += 1;
        }
        statuses
    }
}

/// An order that was answered 202, and the token of its owner.
pub type Bought = (String, String);

/// How the people of a [`Crowd`] buy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// As fast as they can, and they ask once.
    Once,
    /// They ask until there is an answer, with a pause between buyers, so that the rush lasts.
    Patient,
}

/// A crowd that buys one unit each, 200 at a time, from a program that may be killed meanwhile.
pub struct Crowd {
    count: Arc<AtomicUsize>,
    /// Nobody new comes.
    enough: Arc<AtomicBool>,
    buyers: JoinHandle<Vec<Result<Bought, String>>>,
}

impl Crowd {
    pub fn start(base: &str, sale: &str, tokens: Vec<String>, manner: Manner) -> Self {
        let (count, enough) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (accepted, is_over) = (count.clone(), enough.clone());
        let (client, url) = (client(), format!("{base}/api/v1/sales/{sale}/orders"));
        let buyer = move |token: String| {
            let (client, url, accepted) = (client.clone(), url.clone(), accepted.clone());
            async move {
                loop {
                    if let Some(order) = buy(&client, &url, &token).await {
                        accepted.fetch_add(1, Relaxed);
                        if manner == Manner::Patient {
                            sleep(5 * PAUSE).await;
                        }
                        return Ok((order, token));
                    }
                    if manner == Manner::Once {
                        return Err(token);
                    }
                    sleep(RETRY).await;
                }
            }
        };
        let coming = stream::iter(tokens).take_while(move |_| ready(!is_over.load(Relaxed)));
        let buyers = tokio::spawn(coming.map(buyer).buffer_unordered(200).collect());
        Self { count, enough, buyers }
    }

    pub fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    pub async fn until(&self, count: usize) {
        let what = format!("{count} have bought");
        eventually(&what, async || (self.count() >= count).then_some(())).await;
    }

    /// Nobody new comes.
    pub fn no_more(&self) {
        self.enough.store(true, Relaxed);
    }

    /// Waits until all have asked: what was promised, and who asked once and got no answer or 503.
    pub async fn leave(self) -> (Vec<Bought>, Vec<String>) {
        let (mut bought, mut unanswered) = (Vec::new(), Vec::new());
        for answer in self.buyers.await.expect("no panic") {
            match answer {
                Ok(one) => bought.push(one),
                Err(token) => unanswered.push(token),
            }
        }
        (bought, unanswered)
    }
}

/// One purchase: the order that it made or had made, or `None` if nobody answered or with 503.
async fn buy(client: &reqwest::Client, url: &str, token: &str) -> Option<String> {
    let response = client.post(url).bearer_auth(token).send().await.ok()?;
    let status = response.status();
    let body: Value = response.json().await.ok()?;
    match (status.as_u16(), body["code"].as_str()) {
        // `already_ordered`: accepted before; the answer was lost on its way.
        (202, None) | (409, Some("already_ordered")) => {}
        (503, Some("unavailable")) => return None,
        _ => panic!("{status}: {body:#}"),
    }
    Some(body["order_id"].as_str().expect("an order id").to_owned())
}

/// Every promised order belongs to its buyer alone, and is a row.
pub async fn assert_kept(program: &Program, bought: &[Bought]) {
    let client = &client();
    for some in bought.chunks(200) {
        join_all(some.iter().map(async |(order, token)| {
            eventually(&format!("order {order} is a row"), async || {
                let url = program.url(&format!("/api/v1/orders/{order}"));
                let reply = ask(client, "GET", url).bearer(token).await;
                assert_eq!(reply.status, 200, "order {order} is lost");
                assert_eq!(reply.text("order_id"), order);
                let status = reply.text("status");
                let may_be = ["queued", "pending_payment"].contains(&status);
                assert!(may_be, "order {order} ended as {:#}", reply.body);
                (status == "pending_payment").then_some(())
            })
            .await;
        }))
        .await;
    }
    let orders: HashSet<&str> = bought.iter().map(|(order, _)| order.as_str()).collect();
    assert_eq!(orders.len(), bought.len(), "no order has two owners");
}
