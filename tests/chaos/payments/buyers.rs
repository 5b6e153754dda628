//! Buyers who pay at once, on the provider's page, or not; operators; and what each was told.

use super::*;
use crate::support::checkers::money::Told;

const TRIES: u32 = 10;
/// Ways from here on, of a hundred, have two seconds to pay.
const LATE: u64 = 88;
const BUYER_TIMEOUT: Duration = Duration::from_secs(10);

pub struct Till {
    pub world: Arc<World>,
    pub told: Mutex<BTreeMap<i64, Told>>,
    pub paid: AtomicUsize,
    /// Requests without an answer, and such as were told to come again.
    pub unheard: AtomicUsize,
    pub refused: AtomicUsize,
    /// Answers that nobody expects.
    pub strange: Mutex<Vec<String>>,
}

impl Till {
    pub fn new(world: Arc<World>) -> Self {
        let (paid, unheard, refused) = Default::default();
        Self { world, told: Mutex::default(), paid, unheard, refused, strange: Mutex::default() }
    }
}

/// One buyer after the other, until the world stops.
pub async fn run(till: Arc<Till>, number: u16) {
    let mut random = Random::of(till.world.seed, "buyer", u64::from(number));
    // The page leads back to the shop, which nobody has to see.
    let http = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
    let Ok(http) = http.build() else { return };
    while !till.world.is_stopping() {
        let seed = random.next();
        let user = till.world.new_number();
        let token = till.world.token(user);
        let (till, http) = (till.clone(), http.clone());
        Buyer { till, http, user, token, order: String::new(), seed }.visit().await;
    }
}

struct Buyer {
    till: Arc<Till>,
    http: reqwest::Client,
    user: u32,
    token: String,
    order: String,
    seed: u64,
}

impl Buyer {
    fn dice(&self, what: &str) -> Random {
        Random::of(self.seed, what, 0)
    }

    async fn visit(mut self) {
        let way = self.dice("way").below(100);
        let sale = self.till.world.sales[usize::from(way >= LATE)].id;
        let buying = format!("sales/{sale}/orders");
        let Some(bought) = self.until_clear("buy", &buying, &[]).await else { return };
        let Some(order) = bought.body["order_id"].as_str() else { return };
        self.order = order.to_owned();
        let was_charged = match way {
            0..50 => self.pay().await,
            50..70 => self.check_out(Duration::ZERO).await,
            70..76 => tokio::join!(self.pay(), self.check_out(Duration::ZERO)).0,
            76..82 => tokio::join!(self.pay(), self.cancel()).0,
            82..LATE => tokio::join!(self.check_out(Duration::ZERO), self.cancel()).0,
            // Money that comes when the time to pay is just over, or nearly.
            LATE..94 => self.check_out(self.dice("late").millis(1_200..2_000)).await,
            94..97 => {
                self.cancel().await;
                false
            }
            _ => false,
        };
        if was_charged {
            // One is enough for the plan, whichever instance it was.
            self.till.world.accepted[0].fetch_add(1, Relaxed);
        }
        if self.dice("operator").chance(0.1) {
            self.refund().await;
        }
    }

    fn note(&self, tell: impl FnOnce(&mut Told)) {
        let order = self.order.parse().unwrap_or_default();
        let unknown = Told { user: self.user, ..Told::default() };
        tell(locked(&self.till.told).entry(order).or_insert(unknown));
    }

    /// An answer that is one, from any instance; `None`: none in many tries, or the run is over.
    async fn until_clear(&self, what: &str, path: &str, again: &[&str]) -> Option<Reply> {
        let mut random = self.dice(what);
        for attempt in 1..=TRIES {
            let at = self.till.world.addresses[random.index(SERVERS)];
            let asked = ask(&self.http, "POST", format!("http://{at}/api/v1/{path}"));
            let asked = if what.starts_with("refund") {
                let return_unit = random.chance(0.5);
                asked.bearer(ADMIN_TOKEN).json(json!({ "return_unit": return_unit }))
            } else {
                asked.bearer(&self.token)
            };
            match asked.within(BUYER_TIMEOUT).send().await {
                Ok(reply) if reply.status == 503 || again.contains(&reply.code()) => {
                    self.till.refused.fetch_add(1, Relaxed);
                }
                Ok(reply) if reply.status.is_success() || reply.status == 409 => {
                    return Some(reply);
                }
                Ok(reply) => {
                    locked(&self.till.strange).push(format!("{what}: {reply:?}"));
                    return None;
                }
                Err(_) => {
                    self.till.unheard.fetch_add(1, Relaxed);
                }
            }
            if self.till.world.is_stopping() {
                return None;
            }
            // Sooner, most orders are still queued, and asking takes the time of those that pay.
            tokio::time::sleep(random.millis(100..300) * attempt).await;
        }
        None
    }

    /// Whether something was charged.
    async fn pay(&self) -> bool {
        let path = format!("orders/{}/pay", self.order);
        for _ in 0..3 {
            let reply = self.until_clear("pay", &path, &["still_queued"]).await;
            let Some(reply) = reply else { break };
            if reply.status == 200 {
                if reply.body["status"] != "paid" {
                    locked(&self.till.strange).push(format!("pay: {reply:?}"));
                }
                self.till.paid.fetch_add(1, Relaxed);
                self.note(|told| told.paid = true);
                return true;
            }
            if reply.code() != "payment_declined" {
                break;
            }
        }
        false
    }

    async fn check_out(&self, pause: Duration) -> bool {
        let path = format!("orders/{}/checkout", self.order);
        let page = self.until_clear("checkout", &path, &["still_queued"]).await;
        let Some(url) = page.and_then(|page| Some(page.body["url"].as_str()?.to_owned())) else {
            return false;
        };
        tokio::time::sleep(pause).await;
        let decision = match self.dice("decision").below(100) {
            0..85 => "confirm",
            85..95 => "decline",
            _ => "leave",
        };
        let decided =
            ask(&self.http, "POST", format!("{url}/{decision}")).within(BUYER_TIMEOUT).send();
        decided.await.is_ok_and(|reply| reply.status == 303) && decision != "leave"
    }

    async fn cancel(&self) {
        let path = format!("orders/{}/cancel", self.order);
        let reply = self.until_clear("cancel", &path, &["still_queued"]).await;
        if reply.is_some_and(|reply| reply.status == 200) {
            self.note(|told| told.cancelled = true);
        }
    }

    /// By an operator, who may click twice. Every try may be one that is carried out.
    async fn refund(&self) {
        self.note(|told| told.may_be_refunded = true);
        let path = format!("admin/orders/{}/refund", self.order);
        // An order that is not found is still queued.
        let click = |what| self.until_clear(what, &path, &["order_not_found"]);
        for reply in join_all(["refund", "refund again"].map(click)).await.into_iter().flatten() {
            if reply.status == 200 && reply.body["status"] == "cancelled" {
                self.note(|told| told.refunded = true);
            }
        }
    }
}
