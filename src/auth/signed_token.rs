//! Signed tokens for one user and one sale, with an expiry.
//!
//! ```text
//! token = base64url( expires_at_ms (8) │ body (0 to 64) │ tag (16) )
//! tag   = HMAC-SHA256(key, purpose │ user │ sale │ expires_at_ms │ body), its first 16 bytes
//! ```
//!
//! User, sale and purpose are signed, but not in the token: the request names them, and a token of
//! another user, sale or purpose does not verify. Servers keep no list; single use is enforced
//! where a token is accepted.

use crate::domain::{SaleId, UserId, unix_ms};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::hmac;
use std::fmt;
use subtle::ConstantTimeEq;
use time::OffsetDateTime;

/// Half of an HMAC-SHA256: 128 bits cannot be guessed before the expiry (RFC 2104 §5).
const TAG: usize = 16;
const LONGEST_BODY: usize = 64;
/// The most characters of a token.
const LONGEST: usize = (8 + LONGEST_BODY + TAG) * 4 / 3 + 3;

/// The purpose of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// A turn to buy.
    Turn = 1,
    /// A pass, issued after the opening.
    Pass = 2,
    /// A challenge to be solved.
    Challenge = 3,
}

/// A verified token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedToken {
    pub body: Vec<u8>,
    /// Whole milliseconds.
    pub expires_at: OffsetDateTime,
}

/// Why a token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadToken {
    /// Not our signature, or for another user, sale or purpose.
    Forged,
    /// It has expired.
    Expired,
}

/// Writes tokens and verifies them.
pub struct SignedTokens {
    key: hmac::Key,
}

impl SignedTokens {
    pub(crate) fn new(secret: &[u8]) -> Self {
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, secret) }
    }

    /// A token for this user and sale. `body` has at most 64 bytes; `expires_at` counts in ms.
    pub fn write(
        &self,
        purpose: Purpose,
        user: UserId,
        sale: SaleId,
        expires_at: OffsetDateTime,
        body: &[u8],
    ) -> String {
        debug_assert!(body.len() <= LONGEST_BODY);
        let expires_ms = unix_ms(expires_at).to_be_bytes();
        let tag = self.tag(purpose, user, sale, &expires_ms, body);
        BASE64_URL_SAFE_NO_PAD.encode([&expires_ms[..], body, &tag].concat())
    }

    /// The contents of a token for this user and sale that is valid at `now`.
    pub fn verify(
        &self,
        purpose: Purpose,
        user: UserId,
        sale: SaleId,
        text: &str,
        now: OffsetDateTime,
    ) -> Result<SignedToken, BadToken> {
        if text.len() > LONGEST {
            return Err(BadToken::Forged);
        }
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text);
        let bytes = bytes.map_err(|_| BadToken::Forged)?;
        let (expires_ms, rest) = bytes.split_first_chunk::<8>().ok_or(BadToken::Forged)?;
        let (body, tag) = rest.split_last_chunk::<TAG>().ok_or(BadToken::Forged)?;
        let expected = self.tag(purpose, user, sale, expires_ms, body);
        if !bool::from(expected[..].ct_eq(&tag[..])) {
            return Err(BadToken::Forged);
        }
        let nanos = i128::from(i64::from_be_bytes(*expires_ms)) * 1_000_000;
        let expires_at =
            OffsetDateTime::from_unix_timestamp_nanos(nanos).map_err(|_| BadToken::Forged)?;
        if expires_at <= now {
            return Err(BadToken::Expired);
        }
        Ok(SignedToken { body: body.to_vec(), expires_at })
    }

    fn tag(
        &self,
        purpose: Purpose,
        user: UserId,
        sale: SaleId,
        expires_ms: &[u8; 8],
        body: &[u8],
    ) -> [u8; TAG] {
        let mut signing = hmac::Context::with_key(&self.key);
        // All parts but the last have a fixed length, so the encoding is unambiguous.
        signing.update(&[purpose as u8]);
        signing.update(user.as_bytes());
        signing.update(&sale.get().to_be_bytes());
        signing.update(expires_ms);
        signing.update(body);
        let mut tag = [0; TAG];
        tag.copy_from_slice(&signing.sign().as_ref()[..TAG]);
        tag
    }
}

impl fmt::Debug for SignedTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SignedTokens(secret)")
    }
}

#[cfg(test)]
mod tests {
    use crate::auth::signed_token::*;
    use proptest::prelude::*;
    use time::{Duration, macros::datetime};

    const NOW: OffsetDateTime = datetime!(2026-11-20 10:00 UTC);

    fn signed_tokens() -> SignedTokens {
        SignedTokens::new(b"a key of a test")
    }

    proptest! {
        #[test]
        fn a_token_says_what_was_written(user: [u8; 16], sale in 1i64..,
            body in prop::collection::vec(any::<u8>(), 0..=64), ms in 1i64..1_000_000) {
            let (user, sale) = (UserId::from_bytes(user), SaleId::from_i64(sale));
            let expires_at = NOW + Duration::milliseconds(ms);
            let text = signed_tokens().write(Purpose::Turn, user, sale, expires_at,
                &body);
            let verify = |now| signed_tokens().verify(Purpose::Turn, user, sale, &text,
                now);
            prop_assert_eq!(verify(NOW), Ok(SignedToken { body, expires_at }));
            prop_assert_eq!(verify(expires_at), Err(BadToken::Expired));
        }

        #[test]
        fn nobody_elses_token_counts(user: [u8; 16], other: [u8; 16], sale in 1i64..i64::MAX) {
            prop_assume!(user != other);
            let (user, other, sale) = (UserId::from_bytes(user), UserId::from_bytes(other),
                SaleId::from_i64(sale));
            let text = signed_tokens().write(Purpose::Turn, user, sale,
                NOW + Duration::HOUR, b"1");
            let next = SaleId::from_i64(sale.get() + 1);
            for (user, sale) in [(other, sale), (user, next)] {
                let verified = signed_tokens().verify(Purpose::Turn, user, sale, &text,
                    NOW);
                prop_assert_eq!(verified, Err(BadToken::Forged));
            }
            let strange = SignedTokens::new(b"another key");
            prop_assert_eq!(strange.verify(Purpose::Turn, user, sale, &text, NOW),
                Err(BadToken::Forged));
        }

        #[test]
        fn a_changed_character_is_noticed(at in any::<prop::sample::Index>(),
            with in "[A-Za-z0-9_-]") {
            let (user, sale) = (UserId::random(), SaleId::from_i64(7));
            let text = signed_tokens().write(Purpose::Turn, user, sale,
                NOW + Duration::HOUR, b"body");
            let at = at.index(text.len());
            prop_assume!(text[at..=at] != with);
            let mut changed = text;
            changed.replace_range(at..=at, &with);
            prop_assert_eq!(signed_tokens().verify(Purpose::Turn, user, sale, &changed,
                NOW), Err(BadToken::Forged));
        }

        #[test]
        fn any_text_is_refused(text in ".{0,160}|[A-Za-z0-9_-]{0,160}") {
            let verified = signed_tokens().verify(Purpose::Turn, UserId::random(),
                SaleId::from_i64(1), &text, NOW);
            prop_assert_eq!(verified, Err(BadToken::Forged));
        }
    }
}
