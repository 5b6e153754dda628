//! Proof of work, after hashcash (Back, 1997): whoever wants to buy has to find a number, which takes a while, and
//! which is checked with one hash.
//!
//! ```text
//! challenge = a slip for this user and sale: bits (1) │ salt (16)
//! solution  = challenge ":" number, with SHA-256(solution) beginning with `bits` zero bits
//! ```
//!
//! Each bit doubles the work: 2^bits hashes on average. A phone's browser makes some 100,000 a second, so 16
//! bits take it half a second, 20 bits ten. Nothing about a challenge is stored; that a solution counts once is
//! remembered until its challenge ends.

use crate::{
    domain::{SaleId, UserId},
    slip::{BadSlip, Purpose, Slips},
};
use aws_lc_rs::digest::{SHA256, digest};
use time::{Duration, OffsetDateTime};

/// How long a challenge can be answered.
pub const LIFE: Duration = Duration::seconds(120);
const SALT: usize = 16;

/// Why a solution is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadSolution {
    /// No challenge of ours for this user and sale, or a number that does not solve it.
    Wrong,
    /// The challenge has ended.
    Expired,
    /// It was used before.
    Spent,
}

/// A new challenge of so many bits.
pub fn challenge(
    slips: &Slips,
    user: UserId,
    sale: SaleId,
    bits: u8,
    now: OffsetDateTime,
) -> (String, OffsetDateTime) {
    let mut body = [0; 1 + SALT];
    // It fails only where the system has no randomness at all; then no token could be trusted either.
    aws_lc_rs::rand::fill(&mut body).expect("the system gives random bytes");
    body[0] = bits;
    let expires_at = now + LIFE;
    (
        slips.write(Purpose::Challenge, user, sale, expires_at, &body),
        expires_at,
    )
}

/// The salt of the challenge that this solves, and when that ends.
pub fn verify(
    slips: &Slips,
    user: UserId,
    sale: SaleId,
    solution: &str,
    now: OffsetDateTime,
) -> Result<(Vec<u8>, OffsetDateTime), BadSolution> {
    let (challenge, number) = solution.split_once(':').ok_or(BadSolution::Wrong)?;
    if number.is_empty() || number.len() > 20 || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(BadSolution::Wrong);
    }
    let slip = slips
        .verify(Purpose::Challenge, user, sale, challenge, now)
        .map_err(|why| match why {
            BadSlip::Forged => BadSolution::Wrong,
            BadSlip::Expired => BadSolution::Expired,
        })?;
    let (bits, salt) = slip.body.split_first().ok_or(BadSolution::Wrong)?;
    if zero_bits(digest(&SHA256, solution.as_bytes()).as_ref()) < u32::from(*bits) {
        return Err(BadSolution::Wrong);
    }
    Ok((salt.to_vec(), slip.expires_at))
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
    let mut bits = 0;
    for byte in hash {
        bits += byte.leading_zeros();
        if *byte != 0 {
            break;
        }
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::TokenSigner;
    use proptest::prelude::*;
    use time::macros::datetime;

    const NOW: OffsetDateTime = datetime!(2026-11-20 10:00 UTC);

    fn slips() -> Slips {
        let signer = TokenSigner::new(b"a secret of at least 32 bytes....").expect("long enough");
        signer.slips()
    }

    #[test]
    fn a_solution_is_for_one_user_one_sale_and_a_while() {
        let (slips, ada, eve) = (slips(), UserId::random(), UserId::random());
        let (one, other) = (SaleId::from_i64(1), SaleId::from_i64(2));
        let (asked, expires_at) = challenge(&slips, ada, one, 8, NOW);
        let solution = solve(&asked, 8);
        let verify = |user, sale, now| verify(&slips, user, sale, &solution, now).map(|_| ());
        assert_eq!(verify(ada, one, NOW), Ok(()));
        assert_eq!(verify(eve, one, NOW), Err(BadSolution::Wrong));
        assert_eq!(verify(ada, other, NOW), Err(BadSolution::Wrong));
        assert_eq!(verify(ada, one, expires_at), Err(BadSolution::Expired));
    }

    #[test]
    fn less_work_than_asked_for_is_noticed() {
        let (slips, user, sale) = (slips(), UserId::random(), SaleId::from_i64(1));
        let (asked, _) = challenge(&slips, user, sale, 12, NOW);
        let wrong = (0u64..)
            .map(|number| format!("{asked}:{number}"))
            .find(|solution| zero_bits(digest(&SHA256, solution.as_bytes()).as_ref()) == 11)
            .expect("there is one");
        let verified = verify(&slips, user, sale, &wrong, NOW);
        assert_eq!(verified, Err(BadSolution::Wrong));
    }

    proptest! {
        #[test]
        fn any_text_is_refused(text in ".{0,200}|[A-Za-z0-9_-]{0,80}:[0-9]{0,25}") {
            let verified = verify(&slips(), UserId::random(), SaleId::from_i64(1), &text, NOW);
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
