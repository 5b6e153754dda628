//! The sale cache of this process. After a crash a new process starts with an empty one.

use super::cached_sale::CachedSale;
use super::clock::RedisClock;
use crate::domain::{Sale, SaleId};
use dashmap::DashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// All sales that this process knows, by id.
#[derive(Default)]
pub struct SaleCache {
    pub clock: RedisClock,
    cached_sales: DashMap<SaleId, Arc<CachedSale>>,
    /// Whether any sale ever had an [`AccessPolicy`](crate::domain::AccessPolicy).
    asks_for_access: AtomicBool,
}

impl SaleCache {
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a purchase may need credentials; without such a sale they are not parsed.
    pub fn asks_for_access(&self) -> bool {
        self.asks_for_access.load(Relaxed)
    }

    pub fn get(&self, id: SaleId) -> Option<Arc<CachedSale>> {
        self.cached_sales.get(&id).map(|cached| cached.clone())
    }

    pub fn cached_sales(&self) -> Vec<Arc<CachedSale>> {
        let sales = self.cached_sales.iter();
        sales.map(|entry| entry.value().clone()).collect()
    }

    /// Caches a row from Postgres.
    pub fn learn(&self, sale: Sale) -> Arc<CachedSale> {
        if sale.access_policy.is_restricted() {
            self.asks_for_access.store(true, Relaxed);
        }
        let known = self.cached_sales.entry(sale.id);
        let cached = known.or_insert_with(|| Arc::new(CachedSale::new(sale.clone())));
        let cached = cached.clone();
        cached.learn(sale);
        cached
    }
}
