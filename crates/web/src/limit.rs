//! Rate limit headers (draft-ietf-httpapi-ratelimit-headers-10).

use axum::http::HeaderName;

/// The header that says how much is left of a limit.
pub const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// The header that describes a limit.
pub const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// A limit: its name, how many requests it refills a second, and how many it holds.
#[derive(Debug, PartialEq, Eq)]
pub struct Policy {
    pub name: &'static str,
    pub per_second: u32,
    pub burst: u32,
    /// The value of `RateLimit-Policy`.
    pub text: &'static str,
}

impl Policy {
    /// The value of `RateLimit`: requests left, and seconds until the burst is full again.
    pub fn state(&self, left: u32) -> String {
        let taken = self.burst.saturating_sub(left);
        let full = taken.div_ceil(self.per_second);
        format!(r#""{}";r={left};t={full}"#, self.name)
    }
}
