//! A limit, as clients are told of it.

use axum::http::HeaderName;

/// How much is left of a limit (draft-ietf-httpapi-ratelimit-headers-10), and what the limit is.
pub const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// A limit as clients are told of it (draft-ietf-httpapi-ratelimit-headers-10): its name, how many requests it has,
/// and in how many seconds an empty one is full again.
#[derive(Debug, PartialEq, Eq)]
pub struct Policy {
    pub name: &'static str,
    pub per_second: u32,
    pub burst: u32,
    /// What `RateLimit-Policy` says.
    pub text: &'static str,
}

impl Policy {
    /// What `RateLimit` says while so many requests are left: how many, and when all of them are there again.
    pub fn state(&self, left: u32) -> String {
        let taken = self.burst.saturating_sub(left);
        let full = taken.div_ceil(self.per_second);
        format!(r#""{}";r={left};t={full}"#, self.name)
    }
}
