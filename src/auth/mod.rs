//! Authentication: signed user tokens and the admin token.
//!
//! A user token is a JWT (HS256), so there is no session store. It carries `sub` (the user's uuid),
//! `name` and `exp` (Unix seconds).

mod hs256;
pub mod signed_token;

use crate::auth::signed_token::SignedTokens;
use crate::domain::UserId;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use subtle::ConstantTimeEq;
use time::OffsetDateTime;
use uuid::Uuid;

/// The secret that signs user tokens is shorter than [`TokenSigner::LEAST_SECRET`] bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the token secret has {0} bytes; it needs at least {least}", least =
    TokenSigner::LEAST_SECRET)]
pub struct SecretTooShort(pub usize);

/// Cryptographically random bytes. Panics on a system without randomness.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.expect("the system gives random bytes");
    bytes
}

/// The claims of a valid token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub user_id: UserId,
    pub name: String,
    /// Whole seconds, as the token holds it.
    pub expires_at: OffsetDateTime,
}

#[derive(Serialize, Deserialize)]
struct Claims {
    sub: Uuid,
    name: String,
    exp: i64,
}

/// Mints and verifies user tokens.
pub struct TokenSigner {
    sign: EncodingKey,
    /// For tokens with our own header. Prepared once: the key setup costs as much as hashing the
    /// rest of a token.
    key: hmac::Key,
    /// For tokens with another header.
    verify: DecodingKey,
    validation: Validation,
    header: Header,
    /// The encoded header of our tokens, with its dot.
    own_header: String,
}

impl TokenSigner {
    /// HS256 is as strong as its key; RFC 7518 §3.2 asks for at least the size of the hash.
    pub const LEAST_SECRET: usize = 32;

    pub fn new(secret: &[u8]) -> Result<Self, SecretTooShort> {
        if secret.len() < Self::LEAST_SECRET {
            return Err(SecretTooShort(secret.len()));
        }
        hs256::install();
        let mut validation = Validation::new(Algorithm::HS256);
        // The library would compare with the wall clock; `verify` uses the caller's time.
        validation.validate_exp = false;
        validation.set_required_spec_claims(&["sub", "exp"]);
        let mut signer = Self {
            sign: EncodingKey::from_secret(secret),
            key: hmac::Key::new(hmac::HMAC_SHA256, secret),
            verify: DecodingKey::from_secret(secret),
            validation,
            header: Header::new(Algorithm::HS256),
            own_header: String::new(),
        };
        let sample = signer.mint(UserId::from_bytes([0; 16]), "", OffsetDateTime::UNIX_EPOCH);
        let header = sample.split_inclusive('.').next();
        signer.own_header = header.unwrap_or_default().to_owned();
        Ok(signer)
    }

    /// Signs tokens of other purposes: see [`signed_token`].
    pub fn signed_tokens(&self) -> SignedTokens {
        // A derived key, so that no token passes as one of the other kind. Its label stays:
        // versions must verify each other's tokens.
        let key = hmac::sign(&self.key, b"flash-sale slips");
        SignedTokens::new(key.as_ref())
    }

    /// A token for this user, valid until `expires_at` (whole seconds).
    pub fn mint(&self, user_id: UserId, name: &str, expires_at: OffsetDateTime) -> String {
        let claims =
            Claims { sub: user_id.uuid(), name: name.to_owned(), exp: expires_at.unix_timestamp() };
        encode(&self.header, &claims, &self.sign)
            .expect("three plain claims always encode under an HMAC key")
    }

    /// The identity of a valid token; `None` for anything else.
    ///
    /// Runs for every purchase: tokens with exactly our header take a fast path.
    ///
    /// The caller passes the time: the wall clock may be wrong (see
    /// [`crate::catalog::Catalog::now`]).
    pub fn verify(&self, token: &str, now: OffsetDateTime) -> Option<Identity> {
        let claims = match token.strip_prefix(&self.own_header) {
            Some(rest) => self.own_claims(token, rest)?,
            None => self.any_claims(token)?,
        };
        let expires_at = OffsetDateTime::from_unix_timestamp(claims.exp).ok()?;
        if expires_at <= now {
            return None;
        }
        Some(Identity { user_id: UserId::from_uuid(claims.sub), name: claims.name, expires_at })
    }

    /// The claims of a token with our header, if the signature is ours; `rest` follows the header.
    fn own_claims(&self, token: &str, rest: &str) -> Option<Claims> {
        let (claims, signature) = rest.split_once('.')?;
        let message = &token[..token.len() - signature.len() - 1];
        // A few bytes more than 32: a longer signature does not verify.
        let mut found = [0; 48];
        let length = BASE64_URL_SAFE_NO_PAD.decode_slice(signature, &mut found);
        let length = length.ok()?;
        // Compares in constant time.
        hmac::verify(&self.key, message.as_bytes(), &found[..length]).ok()?;
        serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
    }

    /// The claims of a token with any HS256 header.
    fn any_claims(&self, token: &str) -> Option<Claims> {
        let decoded = decode::<Claims>(token, &self.verify, &self.validation);
        Some(decoded.ok()?.claims)
    }
}

impl fmt::Debug for TokenSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSigner(secret)")
    }
}

/// The token that opens the admin routes.
///
/// Kept as a hash and compared in constant time, so timing reveals nothing of it.
#[derive(Clone)]
pub struct AdminToken {
    hash: [u8; 32],
}

impl AdminToken {
    pub fn new(token: &str) -> Self {
        Self { hash: Sha256::digest(token.as_bytes()).into() }
    }

    pub fn matches(&self, presented: &[u8]) -> bool {
        let presented: [u8; 32] = Sha256::digest(presented).into();
        self.hash.ct_eq(&presented).into()
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminToken(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use time::Duration;

    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

    fn signer() -> TokenSigner {
        TokenSigner::new(SECRET).expect("32 bytes")
    }

    fn now() -> OffsetDateTime {
        OffsetDateTime::now_utc()
    }

    fn in_an_hour() -> OffsetDateTime {
        now() + Duration::HOUR
    }

    #[test]
    fn a_token_says_what_it_was_minted_with() {
        let (user, expires_at) =
            (UserId::random(), in_an_hour().replace_nanosecond(0).expect("zero"));
        let token = signer().mint(user, "Ada", expires_at);
        assert_eq!(
            signer().verify(&token, now()),
            Some(Identity { user_id: user, name: "Ada".to_owned(), expires_at })
        );
    }

    #[test]
    fn a_short_secret_is_refused() {
        assert_eq!(TokenSigner::new(&SECRET[1..]).err(), Some(SecretTooShort(31)));
    }

    #[test]
    fn another_secret_does_not_verify() {
        let other = TokenSigner::new(b"another secret, also of 32 bytes").expect("32 bytes");
        assert_eq!(
            signer().verify(&other.mint(UserId::random(), "Eve", in_an_hour()), now()),
            None
        );
    }

    #[test]
    fn an_expired_token_is_refused_without_leeway() {
        let now = now();
        for past in [now, now - Duration::SECOND, now - Duration::DAY, OffsetDateTime::UNIX_EPOCH] {
            assert_eq!(signer().verify(&signer().mint(UserId::random(), "late", past), now), None);
        }
    }

    #[test]
    fn the_callers_clock_decides_whatever_the_machines_says() {
        let claims = Claims {
            sub: Uuid::new_v4(),
            name: "Ada".to_owned(),
            exp: in_an_hour().unix_timestamp(),
        };
        let bare = Header { typ: None, ..Header::new(Algorithm::HS256) };
        let key = EncodingKey::from_secret(SECRET);
        // Our own spelling of the header and another one take different ways.
        for header in [Header::new(Algorithm::HS256), bare] {
            let token = encode(&header, &claims, &key).expect("encodes");
            let valid = |at| signer().verify(&token, at).is_some();
            assert!(valid(now()) && valid(now() - 2 * Duration::DAY));
            assert!(!valid(now() + Duration::DAY));
            // This machine's clock has long passed it; the shop's has not.
            let (old, then) = (now() - Duration::DAY, now() - 2 * Duration::DAY);
            let claims = Claims {
                exp: old.unix_timestamp(),
                ..Claims { sub: claims.sub, name: claims.name.clone(), exp: 0 }
            };
            let token = encode(&header, &claims, &key).expect("encodes");
            assert!(signer().verify(&token, then).is_some());
            assert!(signer().verify(&token, now()).is_none());
        }
    }

    #[test]
    fn another_spelling_of_the_header_is_verified_too_but_only_hs256() {
        let claims = Claims {
            sub: Uuid::new_v4(),
            name: "k6".to_owned(),
            exp: in_an_hour().unix_timestamp(),
        };
        let key = EncodingKey::from_secret(SECRET);
        let with = |header: Header| encode(&header, &claims, &key).expect("encodes");
        let bare = Header { typ: None, ..Header::new(Algorithm::HS256) };
        assert_eq!(
            signer().verify(&with(bare), now()).map(|found| found.user_id.uuid()),
            Some(claims.sub)
        );
        let hs256 = with(Header::new(Algorithm::HS256));
        let body = hs256.split('.').nth(1).expect("claims");
        // {"alg":"HS512"}, well signed
        let signed = format!("eyJhbGciOiJIUzUxMiJ9.{body}");
        let key = hmac::Key::new(hmac::HMAC_SHA512, SECRET);
        let tag = BASE64_URL_SAFE_NO_PAD.encode(hmac::sign(&key, signed.as_bytes()));
        assert_eq!(signer().verify(&format!("{signed}.{tag}"), now()), None);
        // {"alg":"none"}, unsigned
        assert_eq!(signer().verify(&format!("eyJhbGciOiJub25lIn0.{body}."), now()), None);
    }

    #[test]
    fn only_the_admin_token_matches() {
        let token = AdminToken::new("open sesame");
        assert!(token.matches(b"open sesame"));
        for wrong in ["", "open", "open sesame ", "Open sesame"] {
            assert!(!token.matches(wrong.as_bytes()));
        }
    }

    proptest! {
        #[test]
        fn no_string_is_a_token_or_a_panic(text in ".*", tail in "[A-Za-z0-9_.-]{0,80}") {
            let signer = signer();
            prop_assert_eq!(signer.verify(&text, now()), None);
            prop_assert_eq!(signer.verify(&format!("{}{}", signer.own_header, tail), now()), None);
        }

        #[test]
        fn a_changed_byte_is_refused(at in any::<prop::sample::Index>(), with in "[A-Za-z0-9_.-]") {
            let signer = signer();
            let mut token = signer.mint(UserId::random(), "Ada", in_an_hour());
            let at = at.index(token.len());
            prop_assume!(token[at..=at] != with);
            token.replace_range(at..=at, &with);
            prop_assert_eq!(signer.verify(&token, now()), None);
        }

        #[test]
        fn a_minted_token_says_what_it_was_minted_with(bytes: [u8; 16], name in ".{0,60}",
            seconds in 1i64..1_000_000_000) {
            let signer = signer();
            let whole = OffsetDateTime::now_utc().replace_nanosecond(0).expect("zero");
            let expires_at = whole + Duration::seconds(seconds + 60);
            let user_id = UserId::from_bytes(bytes);
            let found = signer.verify(&signer.mint(user_id, &name, expires_at), now());
            prop_assert_eq!(found, Some(Identity { user_id, name, expires_at }));
        }

        #[test]
        fn a_cut_token_is_refused(name in ".{0,20}", at in any::<prop::sample::Index>()) {
            let signer = signer();
            let token = signer.mint(UserId::random(), &name, in_an_hour());
            prop_assert_eq!(signer.verify(&token[..at.index(token.len())], now()), None);
        }

        /// Whatever the header and the claims are: without a signature under our secret they count
        /// for nothing, and with one only HS256 and our claims do.
        #[test]
        fn any_header_and_any_claims_are_refused(
            algorithm in "none|None|NONE|HS256|HS384|HS512|RS256|ES256|EdDSA|[A-Za-z0-9]{0,6}",
            more in "[a-z\":,{}\\[\\]0-9]{0,20}",
            claims in ".{0,80}",
            signature in "[A-Za-z0-9_-]{0,43}",
        ) {
            let signer = signer();
            let part = |text: &str| base64url(text.as_bytes());
            for header in [format!(r#"{{"alg":"{algorithm}"}}"#),
                format!(r#"{{"alg":"{algorithm}",{more}}}"#), more.clone()] {
                let message = format!("{}.{}", part(&header), part(&claims));
                prop_assert_eq!(signer.verify(&message, now()), None);
                prop_assert_eq!(signer.verify(&format!("{message}."), now()), None);
                prop_assert_eq!(signer.verify(&format!("{message}.{signature}"), now()), None);
            }
        }

        /// Even a signature of ours does not make other claims than ours a token, or panic.
        #[test]
        fn signed_nonsense_is_refused(sub in ".{0,40}", exp in any::<i64>(), extra in ".{0,20}") {
            let key = EncodingKey::from_secret(SECRET);
            let header = Header::new(Algorithm::HS256);
            for claims in [
                serde_json::json!({ "sub": sub, "name": extra, "exp": exp }),
                serde_json::json!({ "sub": Uuid::nil(), "name": 1, "exp": exp }),
                serde_json::json!({ "sub": Uuid::nil(), "name": extra, "exp": extra }),
                serde_json::json!([sub, extra, exp]),
                serde_json::json!(exp),
            ] {
                let token = encode(&header, &claims, &key).expect("encodes");
                prop_assert!(signer().verify(&token, now()).is_none_or(|found| found.name ==
                    extra));
            }
            let far = serde_json::json!({ "sub": Uuid::nil(), "name": "", "exp": exp });
            let _ = signer().verify(&encode(&header, &far, &key).expect("encodes"), now());
        }
    }

    /// Base64url without padding, for headers that the library would not write.
    fn base64url(bytes: &[u8]) -> String {
        const LETTERS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let mut text = String::new();
        for three in bytes.chunks(3) {
            let group = three.iter().fold(0u32, |group, byte| (group << 8) | u32::from(*byte))
                << (8 * (3 - three.len()));
            for at in 0..=three.len() {
                text.push(char::from(LETTERS[(group >> (18 - 6 * at)) as usize & 63]));
            }
        }
        text
    }
}
