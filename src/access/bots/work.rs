//! Proof of work, after hashcash (Back, 1997): a buyer finds a number, and one hash verifies it.
//!
//! ```text
//! challenge = a signed token for this user and sale: bits (1) │ salt (16)
//! solution  = challenge ":" number, with SHA-256(solution) beginning with `bits` zero bits
//! ```
//!
//! Each bit doubles the work: 2^bits hashes on average. A phone's browser makes some 100,000 a
//! second: 0.7 seconds for 16 bits, ten for 20. Challenges are not stored; used solutions are,
//! until their challenge expires.

use crate::auth::random;
use crate::auth::signed_token::{BadToken, Purpose, SignedTokens};
use crate::domain::{SaleId, UserId};
use ring::digest::{SHA256, digest};
use time::{Duration, OffsetDateTime};

pub const LIFE: Duration = Duration::seconds(120);
const SALT: usize = 16;

/// Why a solution is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadSolution {
    /// Not a challenge for this user and sale, or a wrong number.
    Wrong,
    /// The challenge has ended.
    Expired,
    /// It was used before.
    Spent,
}

/// A new challenge of so many bits.
pub fn challenge(
    signed_tokens: &SignedTokens,
    user: UserId,
    sale: SaleId,
    bits: u8,
    now: OffsetDateTime,
) -> (String, OffsetDateTime) {
    let mut body = random::<{ 1 + SALT }>();
    body[0] = bits;
    let expires_at = now + LIFE;
    let challenge = signed_tokens.write(Purpose::Challenge, user, sale, expires_at, &body);
    (challenge, expires_at)
}

/// The salt and the expiry of the solved challenge.
pub fn verify(
    signed_tokens: &SignedTokens,
    user: UserId,
    sale: SaleId,
    solution: &str,
    now: OffsetDateTime,
) -> Result<(Vec<u8>, OffsetDateTime), BadSolution> {
    let (challenge, number) = solution.split_once(':').ok_or(BadSolution::Wrong)?;
    if number.is_empty() || number.len() > 20 || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(BadSolution::Wrong);
    }
    let verified = signed_tokens.verify(Purpose::Challenge, user, sale, challenge, now);
    let token = verified.map_err(|why| match why {
        BadToken::Forged => BadSolution::Wrong,
        BadToken::Expired => BadSolution::Expired,
    })?;
    let (bits, salt) = token.body.split_first().ok_or(BadSolution::Wrong)?;
    if zero_bits(digest(&SHA256, solution.as_bytes()).as_ref()) < u32::from(*bits) {
        return Err(BadSolution::Wrong);
    }
    Ok((salt.to_vec(), token.expires_at))
}

/// A number that solves the challenge. For tests and load scripts: a browser has its own.
pub fn solve(challenge: &str, bits: u8) -> String {
    let mut number = 0u64;
    loop {
        let solution = format!("{challenge}:{number}");
        if zero_bits(digest(&SHA256, solution.as_bytes()).as_ref()) >= u32::from(bits) {
            return solution;
        }
        number += 1;
    }
}

fn zero_bits(hash: &[u8]) -> u32 {
    let zeros = hash.iter().take_while(|byte| **byte == 0).count();
    let next = hash.get(zeros).map_or(0, |byte| byte.leading_zeros());
    8 * zeros as u32 + next
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::TokenSigner;
    use proptest::prelude::*;
    use time::macros::datetime;

    const NOW: OffsetDateTime = datetime!(2026-11-20 10:00 UTC);

    fn signed_tokens() -> SignedTokens {
        let signer = TokenSigner::new(b"a secret of at least 32 bytes....").expect("long enough");
        signer.signed_tokens()
    }

    #[test]
    fn a_solution_is_for_one_user_one_sale_and_a_while() {
        let (signed_tokens, ada, eve) = (signed_tokens(), UserId::random(), UserId::random());
        let (one, other) = (SaleId::from_i64(1), SaleId::from_i64(2));
        let (asked, expires_at) = challenge(&signed_tokens, ada, one, 8, NOW);
        let solution = solve(&asked, 8);
        let verify =
            |user, sale, now| verify(&signed_tokens, user, sale, &solution, now).map(|_| ());
        assert_eq!(verify(ada, one, NOW), Ok(()));
        assert_eq!(verify(eve, one, NOW), Err(BadSolution::Wrong));
        assert_eq!(verify(ada, other, NOW), Err(BadSolution::Wrong));
        assert_eq!(verify(ada, one, expires_at), Err(BadSolution::Expired));
    }

    #[test]
    fn less_work_than_asked_for_is_noticed() {
        let (signed_tokens, user, sale) = (signed_tokens(), UserId::random(), SaleId::from_i64(1));
        let (asked, _) = challenge(&signed_tokens, user, sale, 12, NOW);
        let wrong = (0u64..)
            .map(|number| format!("{asked}:{number}"))
            .find(|solution| zero_bits(digest(&SHA256, solution.as_bytes()).as_ref()) == 11)
            .expect("there is one");
        let verified = verify(&signed_tokens, user, sale, &wrong, NOW);
        assert_eq!(verified, Err(BadSolution::Wrong));
    }

    proptest! {
        #[test]
        fn any_text_is_refused(text in ".{0,200}|[A-Za-z0-9_-]{0,80}:[0-9]{0,25}") {
            let verified = verify(&signed_tokens(), UserId::random(), SaleId::from_i64(1), &text,
                NOW);
            prop_assert_eq!(verified, Err(BadSolution::Wrong));
        }

        #[test]
        fn bits_are_counted_from_the_front(bytes in prop::collection::vec(any::<u8>(), 0..5)) {
            let text: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
            let zeros = text.find('1').unwrap_or(text.len());
            prop_assert_eq!(zero_bits(&bytes) as usize, zeros);
        }
    }
}
