//! The answer of Postgres to a write.

/// The result of writing a batch. Unless it is `Written`, nothing was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All are rows now; `new` of them were not before.
    Written {
        new: u64,
    },
    /// At least one is of an ended epoch or an unknown sale.
    StaleEpoch,
    /// At least one id is another user's order, which this program never makes.
    IdTaken,
    Refused {
        refusal: Refusal,
        why: String,
    },
}

/// How Postgres refuses rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// One of them was a row already.
    WrittenTwice,
    /// The guarded counter (I1).
    BeyondStock,
    /// Any other constraint, or a value that does not fit.
    Other,
}

impl Outcome {
    /// Errors that are no refusals remain: the write is tried again.
    pub fn of(answer: sqlx::Result<Self>) -> sqlx::Result<Self> {
        answer.or_else(|error| match Refusal::of(&error) {
            Some(refusal) => Ok(Self::Refused { refusal, why: error.to_string() }),
            None => Err(error),
        })
    }
}

impl Refusal {
    /// `None`: Postgres was unable to answer.
    pub fn of(error: &sqlx::Error) -> Option<Self> {
        let error = error.as_database_error()?;
        Self::read(&error.code()?, error.constraint())
    }

    /// Class 23 is integrity, class 22 data.
    fn read(sqlstate: &str, constraint: Option<&str>) -> Option<Self> {
        match (sqlstate.get(..2)?, constraint) {
            ("23", Some("orders_pkey")) => Some(Self::WrittenTwice),
            ("23", Some("sales_taken_within_stock")) => Some(Self::BeyondStock),
            ("22" | "23", _) => Some(Self::Other),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_integrity_and_data_are_refusals() {
        for (sqlstate, constraint, expected) in [
            ("23505", Some("orders_pkey"), Some(Refusal::WrittenTwice)),
            ("23514", Some("sales_taken_within_stock"), Some(Refusal::BeyondStock)),
            ("23505", Some("orders_one_live_per_user_slot"), Some(Refusal::Other)),
            ("23502", None, Some(Refusal::Other)),
            ("22003", None, Some(Refusal::Other)),
            ("40001", None, None),
            ("57014", Some("orders_pkey"), None),
            ("53100", None, None),
            ("", None, None),
        ] {
            assert_eq!(Refusal::read(sqlstate, constraint), expected, "{sqlstate} {constraint:?}");
        }
    }

    #[test]
    fn an_unanswered_write_is_no_outcome() {
        let written = Outcome::Written { new: 3 };
        assert_eq!(Outcome::of(Ok(written.clone())).ok(), Some(written));
        assert!(Outcome::of(Err(sqlx::Error::PoolTimedOut)).is_err());
    }
}
