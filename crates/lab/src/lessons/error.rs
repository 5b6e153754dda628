//! Why a play did not come to its end.

use crate::selling::PurchaseError;

pub type Result<T = (), E = LessonError> = std::result::Result<T, E>;

/// Why a play did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum LessonError {
    #[error("the machine was too slow for this play: {0}")]
    TooSlow(&'static str),
    #[error("this machine stood still for so long that a lease may have ended")]
    StoodStill,
    #[error("a lesson does not go as it is written: {0}")]
    NotAsWritten(String),
    #[error("a server that the lesson needs does not start: {0}")]
    NoServer(String),
    #[error(transparent)]
    Failed(PurchaseError),
}

impl LessonError {
    /// Why a server did not start, which says what to do about it.
    pub fn no_server(error: PurchaseError) -> Self {
        Self::NoServer(error.to_string())
    }

    /// Whether a machine that stood still explains it.
    pub fn may_be_a_pause(&self) -> bool {
        match self {
            Self::TooSlow(_) | Self::StoodStill => true,
            Self::Failed(PurchaseError::Lock(error)) => error.is_unreachable(),
            Self::Failed(PurchaseError::Redis(error)) => error.is_timeout() || error.is_io_error(),
            _ => false,
        }
    }
}

impl<E: Into<PurchaseError>> From<E> for LessonError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}
