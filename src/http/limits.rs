//! Rate limits of this process: GCRA (`governor`).
//!
//! They keep one shopper or address from crowding out others; the sale itself is rationed by
//! admission. Each instance counts for itself. Keys that were quiet for as long as their burst
//! takes to refill are removed by [`Limits::upkeep`], so memory holds about a minute's callers.

use crate::domain::UserId;
use governor::clock::{Clock, QuantaInstant};
use governor::middleware::{RateLimitingMiddleware, StateInformationMiddleware};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use web::address::Address;
use web::limit::Policy;
use web::problem::Problem;

pub static USER: Policy =
    Policy { name: "user", per_second: 10, burst: 20, text: r#""user";q=20;w=2"# };
pub static SESSION: Policy =
    Policy { name: "session", per_second: 10, burst: 60, text: r#""session";q=60;w=6"# };
pub static ADDRESS: Policy =
    Policy { name: "address", per_second: 500, burst: 1_000, text: r#""address";q=1000;w=2"# };
pub static ADMIN: Policy =
    Policy { name: "admin", per_second: 5, burst: 10, text: r#""admin";q=10;w=2"# };

/// The limiters, with their figures in the policies above.
pub struct Limits {
    /// Purchases, payments and cancellations of one user.
    user: DefaultKeyedRateLimiter<UserId>,
    /// New sessions from one address.
    session: DefaultKeyedRateLimiter<Address>,
    /// Requests of one address, but for files and probes: wide, many shoppers may share it.
    address: DefaultKeyedRateLimiter<Address, StateInformationMiddleware>,
    /// Wrong admin tokens from one address.
    admin: DefaultKeyedRateLimiter<Address>,
}

impl Limits {
    pub fn new() -> Self {
        Self {
            user: RateLimiter::keyed(quota(&USER)),
            session: RateLimiter::keyed(quota(&SESSION)),
            address: RateLimiter::keyed(quota(&ADDRESS)).with_middleware(),
            admin: RateLimiter::keyed(quota(&ADMIN)),
        }
    }

    pub fn check_user(&self, user: UserId) -> Result<(), Problem> {
        check(&self.user, &user, &USER)
    }

    pub fn check_session(&self, address: Address) -> Result<(), Problem> {
        check(&self.session, &address, &SESSION)
    }

    /// Answers how many requests are left.
    pub fn check_address(&self, address: Address) -> Result<u32, Problem> {
        match self.address.check_key(&address) {
            Ok(state) => Ok(state.remaining_burst_capacity()),
            Err(too_early) => {
                let wait = too_early.wait_time_from(self.address.clock().now());
                Err(Problem::limited(&ADDRESS, wait))
            }
        }
    }

    /// After an admin token turned out to be wrong. The right one always passes: others at the
    /// operator's address must not lock them out.
    pub fn admin_failed(&self, address: Address) -> Result<(), Problem> {
        check(&self.admin, &address, &ADMIN)
    }

    /// Removes quiet keys every minute, for ever.
    pub async fn upkeep(self: Arc<Self>) {
        let mut minute = tokio::time::interval(Duration::from_secs(60));
        minute.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            minute.tick().await;
            self.forget_quiet();
        }
    }

    fn forget_quiet(&self) {
        forget(&self.user);
        forget(&self.session);
        forget(&self.address);
        forget(&self.admin);
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::new()
    }
}

const fn quota(policy: &Policy) -> Quota {
    let (rate, burst) = (NonZeroU32::new(policy.per_second), NonZeroU32::new(policy.burst));
    let (Some(rate), Some(burst)) = (rate, burst) else {
        panic!("a limit of nothing");
    };
    Quota::per_second(rate).allow_burst(burst)
}

fn check<K: Hash + Eq + Clone>(
    limiter: &DefaultKeyedRateLimiter<K>,
    key: &K,
    policy: &'static Policy,
) -> Result<(), Problem> {
    wait_for(limiter, key).map_or(Ok(()), |wait| Err(Problem::limited(policy, wait)))
}

fn wait_for<K: Hash + Eq + Clone>(
    limiter: &DefaultKeyedRateLimiter<K>,
    key: &K,
) -> Option<Duration> {
    let too_early = limiter.check_key(key).err()?;
    Some(too_early.wait_time_from(limiter.clock().now()))
}

fn forget<K: Hash + Eq + Clone, M: RateLimitingMiddleware<QuantaInstant>>(
    limiter: &DefaultKeyedRateLimiter<K, M>,
) {
    limiter.retain_recent();
    limiter.shrink_to_fit();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::testing::{self, request, send};
    use crate::http::{HttpState, router};
    use axum::http::{HeaderValue, Method, StatusCode};

    fn address(text: &str) -> Address {
        Address::from(text.parse::<std::net::IpAddr>().expect("an address"))
    }

    /// How many of `tries` pass. A slow machine may refill a few in between.
    fn passes<T>(tries: usize, check: impl Fn() -> Result<T, Problem>) -> usize {
        (0..tries).filter(|_| check().is_ok()).count()
    }

    #[test]
    fn a_burst_passes_and_then_it_drips() {
        let limits = Limits::new();
        let (one, other) = (UserId::random(), UserId::random());
        assert!((20..25).contains(&passes(100, || limits.check_user(one))));
        assert!(limits.check_user(other).is_ok());
        let refused = (0..10).find_map(|_| limits.check_user(one).err()).expect("a refusal");
        assert_eq!(refused.kind().code, "rate_limited");
        assert!((60..70).contains(&passes(300, || limits.check_session(address("10.0.0.1")))));
        assert!(
            (1_000..1_400).contains(&passes(3_000, || limits.check_address(address("10.0.0.1"))))
        );
    }

    #[test]
    fn wrong_admin_tokens_are_slowed_down() {
        let limits = Limits::new();
        let (guesser, other) = (address("10.0.0.1"), address("10.0.0.2"));
        assert!((10..13).contains(&passes(50, || limits.admin_failed(guesser))));
        assert!(limits.admin_failed(other).is_ok());
    }

    #[test]
    fn the_quiet_are_forgotten() {
        let limits = Limits::new();
        for last in 0..=255 {
            limits.check_address(Address::V4([10, 0, 0, last])).expect("the first request passes");
        }
        assert_eq!(limits.address.len(), 256);
        std::thread::sleep(Duration::from_millis(20));
        limits.forget_quiet();
        assert_eq!(limits.address.len(), 0);
    }

    #[tokio::test]
    async fn limits_answer_429_with_a_wait() {
        let router =
            router(HttpState { limits: Some(Arc::new(Limits::new())), ..testing::state() });
        let mut refused = None;
        for _ in 0..200 {
            let (response, body) =
                send(&router, request(Method::POST, "/api/v1/session", &[], "")).await;
            if response.status() == StatusCode::TOO_MANY_REQUESTS {
                refused = Some((response, body));
                break;
            }
        }
        let (response, body) = refused.expect("a refusal");
        assert_eq!(
            (&body["code"], &response.headers()["retry-after"]),
            (&"rate_limited".into(), &HeaderValue::from(1))
        );
        assert!(body["retry_after_ms"].as_u64().is_some_and(|wait| (1..=1_000).contains(&wait)));
        // Another address is not affected.
        let mut other = request(Method::POST, "/api/v1/session", &[], "");
        other
            .extensions_mut()
            .insert(axum::extract::ConnectInfo(std::net::SocketAddr::from(([10, 0, 0, 9], 1))));
        assert_eq!(send(&router, other).await.0.status(), StatusCode::CREATED);
    }
}
