//! The two functions of a room under random calls of many instances: what must hold after each.

use crate::support::{plant::*, prelude::*};
use flash_sale::access::waiting_room::functions::{self as room, *};

const PERCENT: i64 = 130;

struct Watched {
    connection: MultiplexedConnection,
    keys: Keys,
    sale: SaleId,
    terms: Terms,
    numbers: HashMap<UserId, u64>,
    given: u64,
    crowd: Option<Crowd>,
    frontier: u64,
    /// Turns that began and are not used, by their second.
    unused: HashMap<i64, u64>,
}

impl Watched {
    fn note(&mut self, crowd: Crowd) {
        assert_eq!(crowd.joined, self.given);
        assert!(crowd.early.is_none_or(|early| early <= crowd.joined));
        if let Some(known) = &self.crowd {
            assert_eq!(crowd.generation, known.generation);
            assert!(known.early.is_none() || crowd.early == known.early);
            assert!(known.seed.is_none() || crowd.seed == known.seed);
        }
        assert!(crowd.seed.is_none() || crowd.early.is_some(), "a seed before that");
        self.crowd = Some(crowd);
    }

    async fn ask(&mut self, user: UserId, joining: Joining) {
        let (redis, keys, terms) = (&mut self.connection, &self.keys, &self.terms);
        let generation = Generation(*b"whatever");
        let asked = room::join(redis, keys, self.sale, user, joining, terms, generation);
        let (_, joined) = asked.await.expect("an answer");
        let known = self.numbers.get(&user).copied();
        match joined {
            Joined::Here { number, crowd } => {
                let anew = |instead_of| Joining::JoinAnew { instead_of };
                match known.filter(|number| joining != anew(*number)) {
                    Some(known) => assert_eq!(number, known, "one place for a user"),
                    None => {
                        assert_eq!(number, self.given, "behind everybody");
                        self.given += 1;
                        self.numbers.insert(user, number);
                    }
                }
                self.note(crowd);
            }
            Joined::Absent => assert!(known.is_none() && joining == Joining::Read),
            Joined::Full => assert_eq!(self.given, self.terms.most),
        }
    }

    async fn advance(&mut self, random: &mut Random, change: i64, remaining: i64) {
        let mut used = Vec::new();
        for (second, unused) in &mut self.unused {
            if *unused > 0 && random.chance(0.5) {
                let now = 1 + random.below(*unused);
                *unused -= now;
                used.push((*second, now));
            }
        }
        let steps = Steps {
            seed: std::array::from_fn(|_| random.next() as u8),
            may_begin: random.chance(0.9),
            epoch: 1,
            revision: change,
            remaining,
            per_second: 100_000.0,
            turn: Duration::from_secs(600),
            percent: PERCENT,
            forgotten_at: OffsetDateTime::now_utc() + time::Duration::HOUR,
            used: &used,
        };
        let open_before: u64 = self.unused.values().sum();
        let advanced = room::advance(&mut self.connection, &self.keys, self.sale, &steps).await;
        let Some(Advanced { crowd, frontier, turns, .. }) = advanced.expect("an answer").1 else {
            assert_eq!(self.given, 0);
            return;
        };
        self.note(crowd.clone());
        assert!(frontier >= self.frontier && frontier <= self.given);
        assert!(frontier == 0 || crowd.seed.is_some(), "a turn before the draw");
        let is_same = frontier == self.frontier;
        assert!(steps.may_begin || is_same, "a turn while the sale does not sell");
        let began: u64 = turns.iter().map(|turn| turn.began).sum();
        assert_eq!(began, frontier, "every place is in one turn");
        let seconds = turns.iter().map(|turn| (turn.second, turn.frontier));
        assert!(seconds.is_sorted_by(|one, other| one.0 < other.0 && one.1 < other.1));
        self.unused = turns.iter().map(|turn| (turn.second, turn.began - turn.used)).collect();
        let open: u64 = self.unused.values().sum();
        let most = u64::try_from(remaining * PERCENT).expect("units").div_ceil(100);
        assert!(open <= most.max(open_before), "{open} turns for {remaining} units");
        self.frontier = frontier;
    }
}

async fn live(redis: MultiplexedConnection) {
    for round in 0..40 {
        let mut random = Random::of(2026, "room", round);
        let now = OffsetDateTime::now_utc();
        let opens_at = now + time::Duration::milliseconds(random.below(60) as i64);
        let mut room = Watched {
            connection: redis.clone(),
            keys: Keys::new(&format!("room{round}:")),
            sale: SaleId::from_i64(1),
            terms: Terms {
                opens_at,
                settling: Duration::from_millis(20),
                forgotten_at: now + time::Duration::MINUTE,
                most: 60,
            },
            numbers: HashMap::new(),
            given: 0,
            crowd: None,
            frontier: 0,
            unused: HashMap::new(),
        };
        let users: Vec<UserId> = (0..30).map(|_| UserId::random()).collect();
        let mut remaining = 1 + random.below(20) as i64;
        for change in 0..150 {
            let user = users[random.index(users.len())];
            match random.below(10) {
                0..4 => room.ask(user, Joining::Join).await,
                4 => room.ask(user, Joining::Read).await,
                5 => {
                    let number = room.numbers.get(&user).copied().unwrap_or(7);
                    room.ask(user, Joining::JoinAnew { instead_of: number }).await;
                }
                _ => {
                    remaining = (remaining - random.below(2) as i64).max(0);
                    room.advance(&mut random, change, remaining).await;
                }
            }
        }
        // The draw may still have to come; and then somebody's turn does.
        room.ask(users[0], Joining::Join).await;
        let turns = async {
            while room.frontier == 0 {
                room.advance(&mut random, 1_000, 5).await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, turns).await.expect("turns begin");
    }
}

#[tokio::test]
async fn whatever_is_called_in_whatever_order_a_room_stays_a_room() {
    live(redis_connection(&Servers::shared().await.redis.url()).await).await;
}

/// Turns that nobody counted: everybody's begins at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_beyond_the_stock_are_noticed() {
    let (_servers, app) = TestApp::on_own_servers().await;
    plant(&mut app.redis().await, LET_EVERYBODY_IN).await;
    let noticed = tokio::spawn(live(app.redis().await)).await.expect_err("noticed").into_panic();
    let why = noticed.downcast_ref::<String>().expect("a text");
    assert!(why.contains(" turns for "), "{why}");
}
