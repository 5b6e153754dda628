//! Slips: short signed statements about one user and one sale, good until a moment that stands in them.
//!
//! ```text
//! slip = base64url( expires_at_ms (8) │ body (0 to 64) │ tag (16) )
//! tag  = HMAC-SHA256(key, purpose │ user │ sale │ expires_at_ms │ body), its first 16 bytes
//! ```
//!
//! User, sale and purpose are not in the slip, only in what is signed: whoever shows it says who they are and
//! which sale they mean, and somebody else's slip, another sale's or one for another purpose does not verify.
//! No server keeps a list; what is to count once has to be remembered by whoever takes the slip.

use crate::domain::{SaleId, UserId};
use aws_lc_rs::hmac;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use std::fmt;
use subtle::ConstantTimeEq;
use time::OffsetDateTime;

/// The first half of an HMAC-SHA256: nobody guesses 128 bits before a slip ends (RFC 2104 §5).
const TAG: usize = 16;
const LONGEST_BODY: usize = 64;
/// The most characters of a slip.
const LONGEST: usize = (8 + LONGEST_BODY + TAG) * 4 / 3 + 3;

/// What a slip is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// It is the user's turn to buy.
    Admission = 1,
    /// The sale has opened, and the user has asked.
    Pass = 2,
    /// A puzzle to be solved first.
    Challenge = 3,
}

/// A slip that says what it should.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slip {
    pub body: Vec<u8>,
    /// Whole milliseconds.
    pub expires_at: OffsetDateTime,
}

/// Why a text is no good as a slip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadSlip {
    /// Not signed here, or for somebody else, another sale or another purpose.
    Forged,
    /// It was good until some time ago.
    Expired,
}

/// Writes slips and verifies them.
pub struct Slips {
    key: hmac::Key,
}

impl Slips {
    pub(crate) fn new(secret: &[u8]) -> Self {
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, secret),
        }
    }

    /// A slip for this user and sale. `body` has at most 64 bytes; milliseconds of `expires_at` count.
    pub fn write(
        &self,
        purpose: Purpose,
        user: UserId,
        sale: SaleId,
        expires_at: OffsetDateTime,
        body: &[u8],
    ) -> String {
        debug_assert!(body.len() <= LONGEST_BODY);
        let expires_ms = i64::try_from(expires_at.unix_timestamp_nanos() / 1_000_000);
        let expires_ms = expires_ms.unwrap_or(0).to_be_bytes();
        let tag = self.tag(purpose, user, sale, &expires_ms, body);
        BASE64_URL_SAFE_NO_PAD.encode([&expires_ms[..], body, &tag].concat())
    }

    /// What the slip says, if it is one for this user and sale and good at `now`.
    pub fn verify(
        &self,
        purpose: Purpose,
        user: UserId,
        sale: SaleId,
        text: &str,
        now: OffsetDateTime,
    ) -> Result<Slip, BadSlip> {
        if text.len() > LONGEST {
            return Err(BadSlip::Forged);
        }
        let bytes = BASE64_URL_SAFE_NO_PAD
            .decode(text)
            .map_err(|_| BadSlip::Forged)?;
        let (expires_ms, rest) = bytes.split_first_chunk::<8>().ok_or(BadSlip::Forged)?;
        let (body, tag) = rest.split_last_chunk::<TAG>().ok_or(BadSlip::Forged)?;
        let expected = self.tag(purpose, user, sale, expires_ms, body);
        if !bool::from(expected[..].ct_eq(&tag[..])) {
            return Err(BadSlip::Forged);
        }
        let nanos = i128::from(i64::from_be_bytes(*expires_ms)) * 1_000_000;
        let expires_at =
            OffsetDateTime::from_unix_timestamp_nanos(nanos).map_err(|_| BadSlip::Forged)?;
        if expires_at <= now {
            return Err(BadSlip::Expired);
        }
        Ok(Slip {
            body: body.to_vec(),
            expires_at,
        })
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
        // All but the last part are of fixed length: no two statements are the same bytes.
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

impl fmt::Debug for Slips {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slips(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use time::{Duration, macros::datetime};

    const NOW: OffsetDateTime = datetime!(2026-11-20 10:00 UTC);

    fn slips() -> Slips {
        Slips::new(b"a key of a test")
    }

    proptest! {
        #[test]
        fn a_slip_says_what_was_written(user: [u8; 16], sale in 1i64.., body in prop::collection::vec(any::<u8>(), 0..=64), ms in 1i64..1_000_000) {
            let (user, sale) = (UserId::from_bytes(user), SaleId::from_i64(sale));
            let expires_at = NOW + Duration::milliseconds(ms);
            let text = slips().write(Purpose::Admission, user, sale, expires_at, &body);
            let verify = |now| slips().verify(Purpose::Admission, user, sale, &text, now);
            prop_assert_eq!(verify(NOW), Ok(Slip { body, expires_at }));
            prop_assert_eq!(verify(expires_at), Err(BadSlip::Expired));
        }

        #[test]
        fn nobody_elses_slip_counts(user: [u8; 16], other: [u8; 16], sale in 1i64..i64::MAX) {
            prop_assume!(user != other);
            let (user, other, sale) = (UserId::from_bytes(user), UserId::from_bytes(other), SaleId::from_i64(sale));
            let text = slips().write(Purpose::Admission, user, sale, NOW + Duration::HOUR, b"1");
            let next = SaleId::from_i64(sale.get() + 1);
            for (user, sale) in [(other, sale), (user, next)] {
                let verified = slips().verify(Purpose::Admission, user, sale, &text, NOW);
                prop_assert_eq!(verified, Err(BadSlip::Forged));
            }
            let strange = Slips::new(b"another key");
            prop_assert_eq!(strange.verify(Purpose::Admission, user, sale, &text, NOW), Err(BadSlip::Forged));
        }

        #[test]
        fn a_changed_character_is_noticed(at in any::<prop::sample::Index>(), with in "[A-Za-z0-9_-]") {
            let (user, sale) = (UserId::random(), SaleId::from_i64(7));
            let text = slips().write(Purpose::Admission, user, sale, NOW + Duration::HOUR, b"body");
            let at = at.index(text.len());
            prop_assume!(text[at..=at] != with);
            let mut changed = text;
            changed.replace_range(at..=at, &with);
            prop_assert_eq!(slips().verify(Purpose::Admission, user, sale, &changed, NOW), Err(BadSlip::Forged));
        }

        #[test]
        fn any_text_is_refused(text in ".{0,160}|[A-Za-z0-9_-]{0,160}") {
            let verified = slips().verify(Purpose::Admission, UserId::random(), SaleId::from_i64(1), &text, NOW);
            prop_assert_eq!(verified, Err(BadSlip::Forged));
        }
    }
}
