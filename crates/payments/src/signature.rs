//! The signature of a webhook: `Webhook-Signature: t=UNIX,v1=HEX`, where HEX is the HMAC-SHA256 of
//! `UNIX.BODY`. The time is signed too, so that an old webhook cannot be sent again.

use ring::hmac;
use subtle::ConstantTimeEq;
use time::OffsetDateTime;

pub const HEADER: &str = "webhook-signature";

/// How far the clocks of both sides, and the time on the way, may be apart.
const TOLERANCE_SECONDS: u64 = 300;

/// The secret that both sides share.
#[derive(Clone)]
pub struct WebhookSecret(hmac::Key);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    #[error("the signature is missing or not by this secret")]
    Invalid,
    #[error("the signature is too old or from the future")]
    Expired,
}

impl WebhookSecret {
    pub fn new(secret: &str) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()))
    }

    /// The header's value.
    pub fn sign(&self, body: &[u8], now: OffsetDateTime) -> String {
        let time = now.unix_timestamp().to_string();
        let tag = self.tag(&time, body);
        format!("t={time},v1={tag}")
    }

    /// Checks a header's value. Accepts any text.
    pub fn verify(
        &self,
        header: &str,
        body: &[u8],
        now: OffsetDateTime,
    ) -> Result<(), SignatureError> {
        let (time, tag) = header
            .strip_prefix("t=")
            .and_then(|rest| rest.split_once(",v1="))
            .ok_or(SignatureError::Invalid)?;
        let is_ours: bool = self.tag(time, body).as_bytes().ct_eq(tag.as_bytes()).into();
        if !is_ours {
            return Err(SignatureError::Invalid);
        }
        let time: i64 = time.parse().map_err(|_| SignatureError::Invalid)?;
        match now.unix_timestamp().abs_diff(time) <= TOLERANCE_SECONDS {
            true => Ok(()),
            false => Err(SignatureError::Expired),
        }
    }

    fn tag(&self, time: &str, body: &[u8]) -> String {
        let mut signing = hmac::Context::with_key(&self.0);
        for part in [time.as_bytes(), b".", body] {
            signing.update(part);
        }
        signing.sign().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use time::Duration;

    const BODY: &[u8] = br#"{"id":"evt_1"}"#;

    fn now() -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(1_800_000_000).expect("a time")
    }

    fn verified(header: &str) -> Result<(), SignatureError> {
        WebhookSecret::new("secret").verify(header, BODY, now())
    }

    fn signed(by: &str, age: i64) -> String {
        WebhookSecret::new(by).sign(BODY, now() - Duration::seconds(age))
    }

    /// Computed with `openssl dgst -sha256 -hmac secret`.
    #[test]
    fn the_signature_is_what_others_compute() {
        let tag = "5847cdad07809eddc3ac6ac8796d56ab2884e2b0831aa11ebd49b6c942021281";
        assert_eq!(signed("secret", 0), format!("t=1800000000,v1={tag}"));
        assert_eq!(verified(&format!("t=1800000000,v1={tag}")), Ok(()));
    }

    #[test]
    fn a_signature_counts_for_five_minutes() {
        for age in [-300, -1, 0, 1, 300] {
            assert_eq!(verified(&signed("secret", age)), Ok(()), "{age}");
        }
        for age in [-301, 301, 86_400, -1_000_000_000] {
            assert_eq!(verified(&signed("secret", age)), Err(SignatureError::Expired), "{age}");
        }
    }

    #[test]
    fn another_key_body_time_or_form_is_refused() {
        let good = signed("secret", 0);
        let (time, tag) = good.split_once(",v1=").expect("both parts");
        for bad in [
            signed("secreT", 0),
            signed("", 0),
            String::new(),
            format!("{good} "),
            format!(" {good}"),
            format!("{good},v1={tag}"),
            format!("v1={tag},{time}"),
            format!("t=1800000001,v1={tag}"),
            format!("t=+1800000000,v1={tag}"),
            format!("{time},v1={}", tag.to_uppercase()),
            format!("{time},v1={}", &tag[..62]),
            format!("{time},v1="),
            time.to_owned(),
        ] {
            assert_eq!(verified(&bad), Err(SignatureError::Invalid), "{bad:?}");
        }
        let other = WebhookSecret::new("secret").verify(&good, br#"{"id":"evt_2"}"#, now());
        assert_eq!(other, Err(SignatureError::Invalid));
    }

    /// What the secret's owner signed by mistake is refused, too.
    #[test]
    fn a_time_that_is_no_number_is_refused() {
        for time in ["", "now", "9223372036854775808", "1e9"] {
            let tag = WebhookSecret::new("secret").tag(time, BODY);
            let header = format!("t={time},v1={tag}");
            assert_eq!(verified(&header), Err(SignatureError::Invalid), "{time}");
        }
    }

    proptest! {
        #[test]
        fn any_header_is_judged_without_a_panic(header in ".*|t=[0-9+-]{0,25},v1=[0-9a-f]{0,70}") {
            prop_assert!(verified(&header).is_err());
        }

        /// Any signed time, the ends of its range too.
        #[test]
        fn any_signed_time_is_judged_by_its_distance(time: i64) {
            let tag = WebhookSecret::new("secret").tag(&time.to_string(), BODY);
            let is_near = time.abs_diff(1_800_000_000) <= 300;
            prop_assert_eq!(verified(&format!("t={time},v1={tag}")).is_ok(), is_near);
        }

        #[test]
        fn what_is_signed_is_verified(secret: String, body: Vec<u8>, age in -300i64..=300) {
            let secret = WebhookSecret::new(&secret);
            let header = secret.sign(&body, now() - Duration::seconds(age));
            prop_assert_eq!(secret.verify(&header, &body, now()), Ok(()));
        }
    }
}
