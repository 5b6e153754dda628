//! What the handlers share.

use super::faults::Faults;
use super::store::Store;
use crate::provider::ChargeStatus;
use axum::extract::State;
use std::sync::Arc;
use tokio::sync::watch;

pub struct Provider {
    pub store: Arc<Store>,
    pub faults: watch::Sender<Faults>,
    pub api_key: String,
    /// Where shoppers reach the hosted pages.
    pub public_url: String,
}

pub type Shared = State<Arc<Provider>>;

impl Provider {
    /// What becomes of the next charge.
    pub fn draw_status(&self) -> ChargeStatus {
        match self.faults.borrow().decline.happens() {
            true => ChargeStatus::Declined,
            false => ChargeStatus::Succeeded,
        }
    }
}
