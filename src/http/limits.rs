//! How often somebody may ask: GCRA limiters (`governor`), in this process' memory.
//!
//! They keep one shopper or one address from crowding out the others; they do not ration the sale
//! (the gate does). With several instances each counts for itself. A key that has been quiet for as
//! long as its burst takes to refill is as good as new and is forgotten by [`Limits::upkeep`], so
//! memory holds a minute's worth of callers. With limits off none of this runs.

use super::error::Problem;
use crate::{config::ProxyTrust, domain::UserId};
use axum::{
    extract::ConnectInfo,
    http::{Extensions, HeaderMap},
};
use dashmap::DashMap;
use governor::{
    DefaultKeyedRateLimiter, Quota, RateLimiter,
    clock::{Clock, QuantaInstant},
    middleware::{RateLimitingMiddleware, StateInformationMiddleware},
};
use std::{
    fmt,
    hash::Hash,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

/// Where a request comes from, as far as limits go. One customer gets a whole IPv6 /64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Address {
    V4([u8; 4]),
    V6Net([u8; 8]),
}

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self::V4(ip.octets()),
            IpAddr::V6(ip) => {
                let [a, b, c, d, e, f, g, h, ..] = ip.octets();
                Self::V6Net([a, b, c, d, e, f, g, h])
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(octets) => Ipv4Addr::from(*octets).fmt(f),
            Self::V6Net(head) => {
                let mut octets = [0; 16];
                octets[..8].copy_from_slice(head);
                write!(f, "{}/64", Ipv6Addr::from(octets))
            }
        }
    }
}

impl Address {
    /// The peer's address; if the peer is a known proxy, whom X-Forwarded-For names.
    pub fn of(extensions: &Extensions, headers: &HeaderMap, trust_proxy: ProxyTrust) -> Self {
        let peer = extensions
            .get::<ConnectInfo<SocketAddr>>()
            .map(|ConnectInfo(peer)| peer.ip());
        let client = match trust_proxy {
            ProxyTrust::Nobody => None,
            _ => trust_proxy.client(peer, forwarded(headers)),
        };
        // Without connect info (a router driven by a test) everybody is one.
        client.or(peer).map_or(Self::V4([0; 4]), Self::from)
    }
}

/// The elements of X-Forwarded-For, the last one first. A header that is no text ends them.
fn forwarded(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all("x-forwarded-for")
        .iter()
        .rev()
        .map_while(|value| value.to_str().ok())
        .flat_map(|value| value.rsplit(','))
}

/// A limit as clients are told of it (draft-ietf-httpapi-ratelimit-headers-10): its name, how many requests it has,
/// and in how many seconds an empty one is full again.
#[derive(Debug, PartialEq, Eq)]
pub struct Policy {
    pub name: &'static str,
    per_second: u32,
    pub burst: u32,
    /// What `RateLimit-Policy` says.
    pub text: &'static str,
}

pub static USER: Policy = Policy {
    name: "user",
    per_second: 10,
    burst: 20,
    text: r#""user";q=20;w=2"#,
};
pub static SESSION: Policy = Policy {
    name: "session",
    per_second: 10,
    burst: 60,
    text: r#""session";q=60;w=6"#,
};
pub static ADDRESS: Policy = Policy {
    name: "address",
    per_second: 500,
    burst: 1_000,
    text: r#""address";q=1000;w=2"#,
};
pub static ADMIN: Policy = Policy {
    name: "admin",
    per_second: 5,
    burst: 10,
    text: r#""admin";q=10;w=2"#,
};

impl Policy {
    const fn quota(&self) -> Quota {
        quota(self.per_second, self.burst)
    }

    /// What `RateLimit` says while so many requests are left: how many, and when all of them are there again.
    pub fn state(&self, left: u32) -> String {
        let taken = self.burst.saturating_sub(left);
        let full = taken.div_ceil(self.per_second);
        format!(r#""{}";r={left};t={full}"#, self.name)
    }
}

/// The limiters, with their figures in the policies above.
pub struct Limits {
    /// Purchases, payments and cancellations of one user.
    user: DefaultKeyedRateLimiter<UserId>,
    /// New sessions from one address.
    session: DefaultKeyedRateLimiter<Address>,
    /// Everything under /api from one address: wide, many shoppers may share it.
    address: DefaultKeyedRateLimiter<Address, StateInformationMiddleware>,
    /// Wrong admin tokens from one address.
    admin: DefaultKeyedRateLimiter<Address>,
    /// Addresses that spent their wrong admin tokens: until then not even the right one counts, or
    /// the answer to a guess would still tell.
    admin_shut: DashMap<Address, Instant>,
}

impl Limits {
    pub fn new() -> Self {
        Self {
            user: RateLimiter::keyed(USER.quota()),
            session: RateLimiter::keyed(SESSION.quota()),
            address: RateLimiter::keyed(ADDRESS.quota()).with_middleware(),
            admin: RateLimiter::keyed(ADMIN.quota()),
            admin_shut: DashMap::new(),
        }
    }

    pub fn check_user(&self, user: UserId) -> Result<(), Problem> {
        check(&self.user, &user, &USER)
    }

    pub fn check_session(&self, address: Address) -> Result<(), Problem> {
        check(&self.session, &address, &SESSION)
    }

    /// How many requests the address has left.
    pub fn check_address(&self, address: Address) -> Result<u32, Problem> {
        match self.address.check_key(&address) {
            Ok(state) => Ok(state.remaining_burst_capacity()),
            Err(too_early) => {
                let wait = too_early.wait_time_from(self.address.clock().now());
                Err(Problem::limited(&ADDRESS, wait))
            }
        }
    }

    /// Before an admin token is looked at.
    pub fn check_admin(&self, address: Address) -> Result<(), Problem> {
        let Some(until) = self.admin_shut.get(&address).map(|until| *until) else {
            return Ok(());
        };
        match until.checked_duration_since(Instant::now()) {
            Some(wait) if !wait.is_zero() => Err(Problem::limited(&ADMIN, wait)),
            _ => Ok(()),
        }
    }

    /// After an admin token turned out to be wrong.
    pub fn admin_failed(&self, address: Address) -> Result<(), Problem> {
        wait_for(&self.admin, &address).map_or(Ok(()), |wait| {
            self.admin_shut.insert(address, Instant::now() + wait);
            Err(Problem::limited(&ADMIN, wait))
        })
    }

    /// Forgets who has been quiet, every minute, for ever.
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
        let now = Instant::now();
        self.admin_shut.retain(|_, until| *until > now);
        self.admin_shut.shrink_to_fit();
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::new()
    }
}

const fn quota(per_second: u32, burst: u32) -> Quota {
    let (Some(rate), Some(burst)) = (NonZeroU32::new(per_second), NonZeroU32::new(burst)) else {
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
    use axum::http::HeaderValue;
    use proptest::prelude::*;

    fn address(text: &str) -> Address {
        Address::from(text.parse::<IpAddr>().expect("an address"))
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
        let refused = (0..10)
            .find_map(|_| limits.check_user(one).err())
            .expect("a refusal");
        assert_eq!(refused.kind().code, "rate_limited");
        assert!((60..70).contains(&passes(300, || limits.check_session(address("10.0.0.1")))));
        assert!(
            (1_000..1_400).contains(&passes(3_000, || limits.check_address(address("10.0.0.1"))))
        );
    }

    #[test]
    fn wrong_admin_tokens_shut_the_address_out_for_a_moment() {
        let limits = Limits::new();
        let (guesser, operator) = (address("10.0.0.1"), address("10.0.0.2"));
        assert!(limits.check_admin(guesser).is_ok());
        assert!((10..13).contains(&passes(50, || limits.admin_failed(guesser))));
        assert!(limits.check_admin(guesser).is_err());
        assert!(limits.check_admin(operator).is_ok());
        std::thread::sleep(Duration::from_millis(250));
        assert!(limits.check_admin(guesser).is_ok());
    }

    #[test]
    fn the_quiet_are_forgotten() {
        let limits = Limits::new();
        for last in 0..=255 {
            limits
                .check_address(Address::V4([10, 0, 0, last]))
                .expect("the first request passes");
        }
        assert_eq!(limits.address.len(), 256);
        std::thread::sleep(Duration::from_millis(20));
        limits.forget_quiet();
        assert_eq!(limits.address.len(), 0);
    }

    #[test]
    fn an_ipv6_network_is_one_address() {
        assert_eq!(address("2001:db8:0:1::1"), address("2001:db8:0:1:ffff::2"));
        assert_ne!(address("2001:db8:0:1::1"), address("2001:db8:0:2::1"));
        assert_eq!(address("::ffff:10.0.0.1"), address("10.0.0.1"));
    }

    #[test]
    fn only_a_trusted_proxy_can_say_who_is_asking_and_only_its_own_word_counts() {
        let mut extensions = Extensions::new();
        extensions.insert(ConnectInfo(SocketAddr::from(([127, 0, 0, 1], 5000))));
        let of = |forwarded: &[&'static str], is_trusted: bool| {
            let trust_proxy = if is_trusted {
                ProxyTrust::Everybody
            } else {
                ProxyTrust::Nobody
            };
            let mut headers = HeaderMap::new();
            for value in forwarded {
                headers.append("x-forwarded-for", HeaderValue::from_static(value));
            }
            Address::of(&extensions, &headers, trust_proxy)
        };
        let peer = address("127.0.0.1");
        assert_eq!(of(&["1.2.3.4"], false), peer);
        assert_eq!(of(&[], true), peer);
        assert_eq!(of(&["unknown"], true), peer);
        assert_eq!(of(&["6.6.6.6, 1.2.3.4"], true), address("1.2.3.4"));
        assert_eq!(
            of(&["6.6.6.6", "5.5.5.5, 1.2.3.4:5678"], true),
            address("1.2.3.4")
        );
        assert_eq!(of(&["[2001:db8::1]:443"], true), address("2001:db8::9"));
    }

    fn last_forwarded(value: &[u8]) -> Option<Option<IpAddr>> {
        let value = HeaderValue::from_bytes(value).ok()?;
        let headers = HeaderMap::from_iter([(
            axum::http::HeaderName::from_static("x-forwarded-for"),
            value,
        )]);
        Some(ProxyTrust::Everybody.client(None, forwarded(&headers)))
    }

    proptest! {
        #[test]
        fn any_forwarded_for_is_an_address_or_ignored(value in prop::collection::vec(any::<u8>(), 0..60), text in "[0-9a-f:., \\[\\]%]{0,50}") {
            last_forwarded(&value);
            last_forwarded(text.as_bytes());
        }

        #[test]
        fn the_last_address_is_read_back_as_written(claimed in "[ -~]{0,30}", ip: IpAddr, port: u16) {
            for written in [ip.to_string(), SocketAddr::new(ip, port).to_string()] {
                prop_assert_eq!(last_forwarded(format!("{claimed}, {written}").as_bytes()), Some(Some(ip)));
            }
        }
    }
}
