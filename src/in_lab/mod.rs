//! The real shop as the lab uses it: purchases and order numbers.

mod ids;
mod server;

use futures_util::future::BoxFuture;
use lab::order_numbers::IdsBody;
use lab::real_shop::{Premises, RealServer, RealShop};
use lab::selling::PurchaseError;
use lab::strategy::Language;
use sqlx::PgPool;

/// This program's shop.
pub struct ThisShop;

impl RealShop for ThisShop {
    fn open(
        &self,
        premises: Premises,
    ) -> BoxFuture<'static, Result<Box<dyn RealServer>, PurchaseError>> {
        Box::pin(async {
            let server = server::Server::open(premises).await?;
            Ok(Box::new(server) as Box<dyn RealServer>)
        })
    }

    fn order_numbers(
        &self,
        postgres: PgPool,
        redis_url: String,
        key_prefix: String,
        language: Language,
    ) -> BoxFuture<'static, Result<IdsBody, PurchaseError>> {
        Box::pin(async move { ids::lesson(&postgres, &redis_url, &key_prefix, language).await })
    }
}
