//! Refused webhooks in HTTP.

use crate::ledger::LedgerError;
use crate::signature::SignatureError;
use std::time::Duration;
use web::kinds;
use web::problem::{Problem, away, internal};

kinds! {
    WEBHOOK_MALFORMED = BAD_REQUEST "webhook_malformed", "Malformed event",
        "The body is no event of a payment.";
    WEBHOOK_SIGNATURE_INVALID = UNAUTHORIZED "webhook_signature_invalid", "Signature not valid",
        "The event is not signed with this shop's secret.";
    WEBHOOK_EXPIRED = UNAUTHORIZED "webhook_expired", "Signature expired",
        "The event was signed too long ago: sign it again.";
    CHARGE_UNKNOWN = UNPROCESSABLE_ENTITY "charge_unknown", "Unknown charge",
        "This shop has asked for no charge with this reference.";
    AMOUNT_MISMATCH = UNPROCESSABLE_ENTITY "amount_mismatch", "Amounts do not match",
        "The charge has another amount or currency than was asked for.";
}

impl From<LedgerError> for Problem {
    fn from(error: LedgerError) -> Self {
        let kind = match &error {
            LedgerError::Postgres(error) if stores::postgres::is_away(error) => {
                return away("postgres", error);
            }
            LedgerError::Provider(error) => {
                tracing::warn!(%error, "the payment provider does not answer");
                let what = "the payment provider does not answer";
                return Self::unavailable(what, Duration::from_secs(1));
            }
            LedgerError::Malformed(_) => &WEBHOOK_MALFORMED,
            LedgerError::Signature(SignatureError::Invalid) => &WEBHOOK_SIGNATURE_INVALID,
            LedgerError::Signature(SignatureError::Expired) => &WEBHOOK_EXPIRED,
            LedgerError::ChargeUnknown { .. } => &CHARGE_UNKNOWN,
            LedgerError::AmountMismatch { .. } => &AMOUNT_MISMATCH,
            error => return internal("payments", error),
        };
        tracing::warn!(code = kind.code, %error, "a webhook is refused");
        Self::new(kind)
    }
}
