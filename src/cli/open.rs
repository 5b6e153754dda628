//! The stores of a command, beside a running server or without one.

use crate::app::{AppError, Role, Running, Stores};
use crate::config::{SaleSettings, StoreSettings};
use crate::http::pages;
use crate::telemetry::instruments::Metrics;
use crate::{postgres, telemetry};
use lab::command::OpenLab;

/// The stores, and services without tasks.
pub struct Opened {
    pub stores: Stores,
    pub running: Running,
}

impl Opened {
    fn on(stores: Stores) -> Result<Self, AppError> {
        let (sale, metrics) = (SaleSettings::default(), Metrics::unpublished());
        let (postgres, redis) = (&stores.postgres, &stores.redis);
        let running = Running::start(
            postgres,
            redis,
            stores.payments.clone(),
            &sale,
            Role::Command,
            metrics,
        )?;
        Ok(Self { stores, running })
    }

    pub async fn close(self) {
        self.running.stop().await;
        self.stores.close().await;
    }
}

pub fn start_logs(store: &StoreSettings) {
    // Without trace settings it cannot fail.
    let _ = telemetry::start(&store.logs, None);
}

/// For commands that create what they need.
pub async fn create(store: &StoreSettings) -> Result<Opened, AppError> {
    Opened::on(migrated(store).await?)
}

/// For commands that audit or repair existing data: refuses a folder without a server's data and an
/// outdated schema. (It cannot tell an empty Redis from one that lost everything.)
pub async fn existing(store: &StoreSettings) -> Result<Opened, AppError> {
    start_logs(store);
    let is_embedded = store.database_url.is_none() && store.redis_url.is_none();
    if is_embedded && !store.data_dir.join("pg").exists() {
        let folder = store.data_dir.display().to_string();
        return Err(AppError::NoSaleHere(folder));
    }
    let stores = Stores::join(store).await?;
    if let Err(error) = postgres::check_schema(&stores.postgres).await {
        stores.close().await;
        return Err(error.into());
    }
    Opened::on(stores)
}

/// The stores, with the schema up to date.
async fn migrated(store: &StoreSettings) -> Result<Stores, AppError> {
    start_logs(store);
    let stores = Stores::join(store).await?;
    postgres::migrate(&stores.postgres).await?;
    Ok(stores)
}

/// The lab of a command.
pub async fn lab(store: &StoreSettings) -> Result<OpenLab, AppError> {
    let stores = migrated(store).await?;
    if !stores.redis.is_one_server() {
        stores.close().await;
        return Err(AppError::LabNeedsOneServer);
    }
    // A server on the same folder runs its own servers for its lab.
    let folder = match stores.are_embedded() {
        true => "lab",
        false => "lab-run",
    };
    let is_private = store.database_url.is_none();
    let folder = is_private.then(|| store.data_dir.join(folder));
    let lab = stores.lab(folder).await?;
    Ok(OpenLab { lab, stores: Box::pin(stores.close()), pages: pages::files })
}
