//! People who keep buying while something is broken, and what they were told.

use super::app::{Entrance, PATIENCE, Reply, Shopper, TestApp, all_at_once, eventually};
use flash_sale::domain::UserId;
use reqwest::StatusCode;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::task::JoinHandle;

/// Somebody who was told 202, and the order's id.
pub type Winner = (Shopper, String);

/// Buys with `count` new shoppers at once; those who were told 202.
pub async fn crowd(app: &TestApp, sale: &str, count: usize) -> Vec<Winner> {
    let replies = all_at_once((0..count).map(|_| {
        let (shopper, sale) = (app.shopper(), sale.to_owned());
        async move {
            let reply = shopper.buy(&sale).await;
            (shopper, reply)
        }
    }))
    .await;
    replies
        .into_iter()
        .filter(|(_, reply)| reply.is_accepted())
        .map(|(shopper, reply)| (shopper, reply.text("order_id").to_owned()))
        .collect()
}

/// The next customer of a lane comes this much later, so that a rush lasts and the stock does too.
const BREATH: Duration = Duration::from_millis(20);

/// Who was told 503 comes back after this.
const RETRY: Duration = Duration::from_millis(25);

/// A rush on a sale at some instances: strangers who ask once, and regulars, who have an order and ask
/// again and again. The stock must be larger than what they buy: then a stranger may hear only 202 or
/// 503, and a regular only 503 or the name of their order. Anything else is a wrong answer.
pub struct Rush {
    enough: Arc<AtomicBool>,
    accepted: Arc<AtomicUsize>,
    shed: Arc<AtomicUsize>,
    strangers: Vec<JoinHandle<Vec<Winner>>>,
    regulars: Vec<JoinHandle<usize>>,
}

/// What a rush was told.
pub struct Told {
    pub winners: Vec<Winner>,
    /// How often a stranger was told to come back later.
    pub shed: usize,
    /// How often a regular was told the right order.
    pub reminded: usize,
}

impl Rush {
    /// Starts `lanes` strangers at a time at each instance, and the regulars, each at every instance.
    pub fn start(apps: &[&TestApp], sale: &str, lanes: usize, regulars: &[Winner]) -> Self {
        let entrances = apps.iter().map(|app| app.entrance());
        Self::start_at(entrances, sale, lanes, regulars)
    }

    /// The same at instances that are processes of their own.
    pub fn start_at(
        entrances: impl Iterator<Item = Entrance>,
        sale: &str,
        lanes: usize,
        regulars: &[Winner],
    ) -> Self {
        let mut rush = Self {
            enough: Arc::default(),
            accepted: Arc::default(),
            shed: Arc::default(),
            strangers: Vec::new(),
            regulars: Vec::new(),
        };
        for entrance in entrances {
            for _ in 0..lanes {
                let (entrance, sale, enough) =
                    (entrance.clone(), sale.to_owned(), rush.enough.clone());
                let (accepted, shed) = (rush.accepted.clone(), rush.shed.clone());
                rush.strangers.push(tokio::spawn(async move {
                    let mut winners = Vec::new();
                    while !enough.load(Relaxed) {
                        let shopper = entrance.shopper();
                        let reply = shopper.buy(&sale).await;
                        if reply.is_accepted() {
                            accepted.fetch_add(1, Relaxed);
                            winners.push((shopper, reply.text("order_id").to_owned()));
                            tokio::time::sleep(BREATH).await;
                        } else {
                            assert_shed(&reply);
                            shed.fetch_add(1, Relaxed);
                            tokio::time::sleep(RETRY).await;
                        }
                    }
                    winners
                }));
            }
            for (shopper, id) in regulars {
                let (shopper, id) = (entrance.welcome(shopper), id.clone());
                let sale = sale.to_owned();
                let enough = rush.enough.clone();
                rush.regulars.push(tokio::spawn(async move {
                    let mut reminded = 0;
                    while !enough.load(Relaxed) {
                        let reply = shopper.buy(&sale).await;
                        if reply.status == StatusCode::CONFLICT {
                            reply.assert_problem(409, "already_ordered");
                            assert_eq!(reply.text("order_id"), id, "another order of a regular");
                            reminded += 1;
                        } else {
                            assert_shed(&reply);
                        }
                        tokio::time::sleep(RETRY).await;
                    }
                    reminded
                }));
            }
        }
        rush
    }

    /// How many strangers have been told 202 so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Relaxed)
    }

    /// Waits until so many more strangers have been told 202.
    pub async fn until_accepted(&self, more: usize) {
        let wanted = self.accepted() + more;
        self.until(&format!("{more} more have bought"), || {
            self.accepted() >= wanted
        })
        .await;
    }

    /// Waits until so many more strangers have been told 503.
    pub async fn until_shed(&self, more: usize) {
        let wanted = self.shed.load(Relaxed) + more;
        self.until(&format!("{more} more were shed"), || {
            self.shed.load(Relaxed) >= wanted
        })
        .await;
    }

    async fn until(&self, what: &str, reached: impl Fn() -> bool) {
        eventually(what, async || {
            // A lane that was told something wrong has panicked; waiting would not bring it back.
            let broken = self.strangers.iter().any(JoinHandle::is_finished)
                || self.regulars.iter().any(JoinHandle::is_finished);
            assert!(!broken, "somebody was told something wrong, see above");
            reached().then_some(())
        })
        .await;
    }

    /// Nobody new comes; waits for those who still wait.
    pub async fn end(self) -> Told {
        self.enough.store(true, Relaxed);
        let mut told = Told {
            winners: Vec::new(),
            shed: 0,
            reminded: 0,
        };
        for lane in self.strangers {
            told.winners.extend(lane.await.expect("no wrong answer"));
        }
        for regular in self.regulars {
            told.reminded += regular.await.expect("no wrong answer");
        }
        told.shed = self.shed.load(Relaxed);
        told
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
    /// I3 and I6: everybody who was told 202 has a row of their own, each under another id; how many
    /// of those have each status. Waits for rows that are not written yet.
    pub async fn assert_kept(&self, sale: &str, winners: &[Winner]) -> BTreeMap<String, usize> {
        let ids: Vec<i64> = winners
            .iter()
            .map(|(_, id)| id.parse().expect("an id"))
            .collect();
        let owners: HashMap<i64, UserId> = ids
            .iter()
            .copied()
            .zip(winners.iter().map(|(shopper, _)| shopper.user))
            .collect();
        assert_eq!(owners.len(), winners.len(), "two orders under one id");
        let deadline = std::time::Instant::now() + PATIENCE;
        loop {
            let mut connection = self.database.connect().await;
            let rows: Vec<(i64, UserId, i64, String)> = sqlx::query_as(
                "SELECT id, user_id, sale_id, status::text FROM orders WHERE id = ANY($1)",
            )
            .bind(&ids)
            .fetch_all(&mut connection)
            .await
            .expect("the orders");
            if rows.len() == ids.len() {
                let mut statuses = BTreeMap::new();
                for (id, user, row_sale, status) in rows {
                    assert_eq!(owners[&id], user, "order {id} belongs to somebody else");
                    assert_eq!(row_sale.to_string(), sale, "order {id} is of another sale");
                    *statuses.entry(status).or_default() += 1;
                }
                return statuses;
            }
            assert!(
                std::time::Instant::now() < deadline,
                "I3 broken: {} of {} orders that were answered 202 are rows",
                rows.len(),
                ids.len()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
