//! The operator's side of a sale: creating it, changing it, pausing, closing, restocking.
//!
//! Postgres is written first with a new `version`, then the change is applied to Redis, which
//! takes only newer versions. So it does not matter who applies it, how often, or in which order.
//! Pausing and closing take effect on every instance with that, since only Redis sells.
//!
//! On a crash between the two, Redis is a version behind; every instance's refresh notices and
//! applies it again. Taking units away is the one change that Redis decides first: see
//! [`Shop::take_stock`].

use crate::{
    domain::{RoomSettings, Sale, SaleId, SaleView},
    redis::functions::{self, Fenced, Installed, VersionApplied},
    sale::{Shop, ShopError},
};
use serde::{Deserialize, Deserializer};
use std::time::{Duration, Instant};
use time::OffsetDateTime;
use utoipa::ToSchema;

pub const MAX_STOCK: i64 = 100_000_000;
const MAX_PRICE_CENTS: i64 = 1_000_000_000_000;
const MAX_PER_USER: i64 = 100;
const MAX_PAYMENT_TIMEOUT_SECS: i64 = 604_800;
/// Some five minutes of a phone's work.
const MOST_CHALLENGE_BITS: i64 = 24;
const DEFAULT_PAYMENT_TIMEOUT_SECS: i64 = 900;
const DEFAULT_DURATION: time::Duration = time::Duration::DAY;

/// The columns of [`Sale`].
macro_rules! sale_columns {
    () => {
        "id, title, description, image_url, currency, price_cents, original_price_cents, stock,
         per_user_limit, opens_at, closes_at, payment_timeout_secs, paused, closed, epoch, version,
         room_opens_before_secs, room_per_second, room_turn_secs, room_overbooking, purchase_pass, challenge_bits"
    };
}
pub(crate) use sale_columns;

/// What is sold to whom and when; the shop checks that it makes sense.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateSale)]
pub struct NewSale {
    #[schema(min_length = 1, max_length = 200)]
    pub title: String,
    #[schema(max_length = 4_000)]
    pub description: Option<String>,
    /// A path on this site, or an http(s) URL.
    #[schema(max_length = 500)]
    pub image_url: Option<String>,
    /// Three capital letters.
    #[schema(example = "USD", pattern = "^[A-Z]{3}$")]
    pub currency: Option<String>,
    /// In the currency's minor unit.
    #[schema(minimum = 0, maximum = 1_000_000_000_000_i64)]
    pub price_cents: i64,
    /// At least `price_cents`.
    #[schema(minimum = 0, maximum = 1_000_000_000_000_i64)]
    pub original_price_cents: Option<i64>,
    #[schema(minimum = 1, maximum = 100_000_000)]
    pub stock: i64,
    /// 1 if absent.
    #[schema(minimum = 1, maximum = 100)]
    pub per_user_limit: Option<i64>,
    /// Now if absent.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub opens_at: Option<OffsetDateTime>,
    /// A day after the opening if absent.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub closes_at: Option<OffsetDateTime>,
    /// 900 if absent.
    #[schema(minimum = 1, maximum = 604_800)]
    pub payment_timeout_secs: Option<i64>,
    /// None if absent.
    pub waiting_room: Option<RoomSettings>,
    /// Whether a purchase needs a pass; false if absent.
    pub purchase_pass: Option<bool>,
    /// The proof of work that a purchase needs; 0 (none) if absent.
    #[schema(minimum = 0, maximum = 24)]
    pub challenge_bits: Option<i64>,
    /// Creating a second sale of the same name returns the first (the demo catalogue).
    #[serde(skip)]
    pub seed_key: Option<&'static str>,
}

/// Only what is there changes.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ChangeSale)]
pub struct SaleChange {
    #[schema(min_length = 1, max_length = 200)]
    pub title: Option<String>,
    #[schema(max_length = 4_000)]
    pub description: Option<String>,
    #[schema(max_length = 500)]
    pub image_url: Option<String>,
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub closes_at: Option<OffsetDateTime>,
    #[schema(minimum = 1, maximum = 604_800)]
    pub payment_timeout_secs: Option<i64>,
    /// Null takes the waiting room away.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<RoomSettings>)]
    pub waiting_room: Option<Option<RoomSettings>>,
    pub purchase_pass: Option<bool>,
    #[schema(minimum = 0, maximum = 24)]
    pub challenge_bits: Option<i64>,
}

/// Tells a member that is null from one that is not there.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

fn invalid(field: &'static str, why: impl Into<String>) -> ShopError {
    ShopError::Invalid {
        field,
        why: why.into(),
    }
}

fn check_text(field: &'static str, text: &str, least: usize, most: usize) -> Result<(), ShopError> {
    let length = text.chars().count();
    if length < least || length > most {
        return Err(invalid(
            field,
            format!("must be {least} to {most} characters long"),
        ));
    }
    if text.chars().any(|c| c.is_control() && c != '\n') {
        return Err(invalid(field, "must not contain control characters"));
    }
    Ok(())
}

/// An image is a path on this site or an http(s) address; anything else (`javascript:`, `data:`)
/// has no business on a page.
fn check_image_url(url: &str) -> Result<(), ShopError> {
    check_text("image_url", url, 0, 500)?;
    let local = url.starts_with('/') && !url.starts_with("//");
    if url.is_empty() || local || url.starts_with("https://") || url.starts_with("http://") {
        return Ok(());
    }
    Err(invalid(
        "image_url",
        "must be a path that starts with / or an http(s) URL",
    ))
}

fn check_range(field: &'static str, value: i64, least: i64, most: i64) -> Result<(), ShopError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(invalid(field, format!("must be from {least} to {most}")))
}

fn check_room(room: &RoomSettings) -> Result<(), ShopError> {
    let RoomSettings {
        opens_before_secs,
        per_second,
        turn_secs,
        overbooking_percent,
    } = *room;
    for (field, value, least, most) in [
        (
            "waiting_room.opens_before_secs",
            opens_before_secs,
            0,
            86_400,
        ),
        ("waiting_room.per_second", per_second, 1, 100_000),
        ("waiting_room.turn_secs", turn_secs, 1, 600),
        (
            "waiting_room.overbooking_percent",
            overbooking_percent,
            0,
            400,
        ),
    ] {
        check_range(field, i64::from(value), least, most)?;
    }
    Ok(())
}

fn check_year(field: &'static str, time: OffsetDateTime) -> Result<(), ShopError> {
    if (2000..=9000).contains(&time.year()) {
        return Ok(());
    }
    Err(invalid(field, "must lie between the years 2000 and 9000"))
}

/// Redis compares milliseconds; what is stored and shown must not differ from that.
fn whole_ms(time: OffsetDateTime) -> OffsetDateTime {
    let millisecond = time.millisecond();
    time.replace_millisecond(millisecond).unwrap_or(time)
}

fn narrow<T: TryFrom<i64>>(field: &'static str, value: i64) -> Result<T, ShopError> {
    T::try_from(value).map_err(|_| invalid(field, "is out of range"))
}

impl Shop {
    /// Creates a sale and opens it in Redis: buyable as soon as this answers, if its time has come.
    pub async fn create_sale(&self, new: NewSale) -> Result<SaleView, ShopError> {
        check_text("title", new.title.trim(), 1, 200)?;
        let description = new.description.unwrap_or_default();
        check_text("description", &description, 0, 4_000)?;
        let image_url = new.image_url.unwrap_or_default();
        check_image_url(&image_url)?;
        let currency = new.currency.unwrap_or_else(|| "USD".to_owned());
        if currency.len() != 3 || !currency.bytes().all(|byte| byte.is_ascii_uppercase()) {
            return Err(invalid(
                "currency",
                "must be three capital letters, like USD",
            ));
        }
        check_range("price_cents", new.price_cents, 0, MAX_PRICE_CENTS)?;
        if let Some(original) = new.original_price_cents {
            check_range(
                "original_price_cents",
                original,
                new.price_cents,
                MAX_PRICE_CENTS,
            )?;
        }
        check_range("stock", new.stock, 1, MAX_STOCK)?;
        let per_user_limit = new.per_user_limit.unwrap_or(1);
        check_range("per_user_limit", per_user_limit, 1, MAX_PER_USER)?;
        let timeout = new
            .payment_timeout_secs
            .unwrap_or(DEFAULT_PAYMENT_TIMEOUT_SECS);
        check_range("payment_timeout_secs", timeout, 1, MAX_PAYMENT_TIMEOUT_SECS)?;
        if let Some(room) = &new.waiting_room {
            check_room(room)?;
        }
        let room = new.waiting_room.unwrap_or_default();
        let challenge_bits = new.challenge_bits.unwrap_or(0);
        check_range("challenge_bits", challenge_bits, 0, MOST_CHALLENGE_BITS)?;

        // "Now" is Redis' now, the clock that will judge the window.
        let now = self.redis_time().await?;
        let opens_at = whole_ms(new.opens_at.unwrap_or(now));
        check_year("opens_at", opens_at)?;
        let closes_at = whole_ms(
            new.closes_at
                .unwrap_or_else(|| opens_at.max(now) + DEFAULT_DURATION),
        );
        check_year("closes_at", closes_at)?;
        if closes_at <= opens_at {
            return Err(invalid("closes_at", "must be later than opens_at"));
        }

        let sale: Option<Sale> = sqlx::query_as(concat!(
            "INSERT INTO sales (title, description, image_url, currency, price_cents, original_price_cents, stock,
                                per_user_limit, opens_at, closes_at, payment_timeout_secs, seed_key,
                                room_opens_before_secs, room_per_second, room_turn_secs, room_overbooking,
                                purchase_pass, challenge_bits)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)
             ON CONFLICT ON CONSTRAINT sales_seed_key_unique DO NOTHING
             RETURNING ",
            sale_columns!()
        ))
        .bind(new.title.trim())
        .bind(&description)
        .bind(&image_url)
        .bind(&currency)
        .bind(new.price_cents)
        .bind(new.original_price_cents)
        .bind(narrow::<i32>("stock", new.stock)?)
        .bind(narrow::<i16>("per_user_limit", per_user_limit)?)
        .bind(opens_at)
        .bind(closes_at)
        .bind(narrow::<i32>("payment_timeout_secs", timeout)?)
        .bind(new.seed_key)
        .bind(new.waiting_room.map(|room| room.opens_before_secs))
        .bind(room.per_second)
        .bind(room.turn_secs)
        .bind(room.overbooking_percent)
        .bind(new.purchase_pass.unwrap_or(false))
        .bind(narrow::<i32>("challenge_bits", challenge_bits)?)
        .fetch_optional(&self.postgres)
        .await?;
        let sale = match (sale, new.seed_key) {
            (Some(sale), _) => sale,
            (None, Some(key)) => {
                let id = sqlx::query_scalar("SELECT id FROM sales WHERE seed_key = $1")
                    .bind(key)
                    .fetch_one(&self.postgres)
                    .await?;
                return self.sale(id).await;
            }
            (None, None) => return Err(ShopError::SaleNotFound),
        };
        let id = sale.id;
        self.board.learn(sale.clone());
        self.fail_points.at("sale.stored").await?;
        match self.install_new(&sale).await? {
            Installed::Open => {}
            // Somebody was quicker to rebuild it; or the id was used before, in a database that this
            // Redis has outlived, and a rebuild has to sort that out.
            Installed::Newer | Installed::Unsealed | Installed::LogNotEmpty => self.suspect(id),
        }
        let listing = self.refresh(id).await?;
        self.redis.announce(id).await;
        Ok(listing.view(self.now()))
    }

    async fn install_new(&self, sale: &Sale) -> Result<Installed, redis::RedisError> {
        let (mut connection, keys) = (self.redis.pooled().await?, &self.redis.keys);
        functions::seal(&mut connection, keys, sale.id, sale.epoch).await?;
        functions::install(&mut connection, keys, sale, i64::from(sale.stock), 0, 0).await
    }

    pub async fn change_sale(&self, id: SaleId, change: SaleChange) -> Result<SaleView, ShopError> {
        let title = change.title.map(|title| title.trim().to_owned());
        if let Some(title) = &title {
            check_text("title", title, 1, 200)?;
        }
        if let Some(description) = &change.description {
            check_text("description", description, 0, 4_000)?;
        }
        if let Some(image_url) = &change.image_url {
            check_image_url(image_url)?;
        }
        if let Some(timeout) = change.payment_timeout_secs {
            check_range("payment_timeout_secs", timeout, 1, MAX_PAYMENT_TIMEOUT_SECS)?;
        }
        let room = change.waiting_room.flatten();
        if let Some(room) = &room {
            check_room(room)?;
        }
        if let Some(bits) = change.challenge_bits {
            check_range("challenge_bits", bits, 0, MOST_CHALLENGE_BITS)?;
        }
        if let Some(closes_at) = change.closes_at {
            check_year("closes_at", closes_at)?;
            let listing = self.refresh(id).await?;
            let sale = listing.sale();
            if closes_at <= sale.opens_at {
                return Err(invalid("closes_at", "must be later than opens_at"));
            }
            if sale.closed {
                return Err(closed_for_good());
            }
        }
        let sale: Option<Sale> = sqlx::query_as(concat!(
            "UPDATE sales SET
                 title = COALESCE($2, title), description = COALESCE($3, description),
                 image_url = COALESCE($4, image_url), closes_at = COALESCE($5, closes_at),
                 payment_timeout_secs = COALESCE($6, payment_timeout_secs),
                 room_opens_before_secs = CASE WHEN $7 THEN $8 ELSE room_opens_before_secs END,
                 room_per_second = COALESCE($9, room_per_second), room_turn_secs = COALESCE($10, room_turn_secs),
                 room_overbooking = COALESCE($11, room_overbooking),
                 purchase_pass = COALESCE($12, purchase_pass), challenge_bits = COALESCE($13, challenge_bits),
                 version = version + 1
             WHERE id = $1 AND NOT (closed AND $5 IS NOT NULL) RETURNING ",
            sale_columns!()
        ))
        .bind(id)
        .bind(title)
        .bind(change.description)
        .bind(change.image_url)
        .bind(change.closes_at.map(whole_ms))
        .bind(
            change
                .payment_timeout_secs
                .map(|secs| narrow::<i32>("payment_timeout_secs", secs))
                .transpose()?,
        )
        .bind(change.waiting_room.is_some())
        .bind(room.map(|room| room.opens_before_secs))
        .bind(room.map(|room| room.per_second))
        .bind(room.map(|room| room.turn_secs))
        .bind(room.map(|room| room.overbooking_percent))
        .bind(change.purchase_pass)
        .bind(
            change
                .challenge_bits
                .map(|bits| narrow::<i32>("challenge_bits", bits))
                .transpose()?,
        )
        .fetch_optional(&self.postgres)
        .await?;
        if sale.is_none() && self.refresh_row(id).await.is_ok() {
            return Err(closed_for_good()); // by an operator, since it was looked at
        }
        self.publish(sale).await
    }

    /// Pauses a sale on every instance: no order is accepted after this answers.
    pub async fn pause_sale(&self, id: SaleId) -> Result<SaleView, ShopError> {
        self.set_flags(id, Some(true), false).await
    }

    pub async fn resume_sale(&self, id: SaleId) -> Result<SaleView, ShopError> {
        self.set_flags(id, Some(false), false).await
    }

    /// Ends a sale for good, on every instance: no order is accepted after this answers.
    pub async fn close_sale(&self, id: SaleId) -> Result<SaleView, ShopError> {
        self.set_flags(id, None, true).await
    }

    async fn set_flags(
        &self,
        id: SaleId,
        paused: Option<bool>,
        close: bool,
    ) -> Result<SaleView, ShopError> {
        let sale: Option<Sale> = sqlx::query_as(concat!(
            "UPDATE sales SET paused = COALESCE($2, paused), closed = closed OR $3, version = version + 1
             WHERE id = $1 RETURNING ",
            sale_columns!()
        ))
        .bind(id)
        .bind(paused)
        .bind(close)
        .fetch_optional(&self.postgres)
        .await?;
        self.publish(sale).await
    }

    /// Adds units, or takes away at most what remains.
    pub async fn add_stock(&self, id: SaleId, add: i64) -> Result<SaleView, ShopError> {
        if add == 0 {
            return Err(invalid("add", "must not be zero"));
        }
        check_range("add", add, -MAX_STOCK, MAX_STOCK)?;
        if add < 0 {
            return self.take_stock(id, -add).await;
        }
        let sale: Option<Sale> = sqlx::query_as(concat!(
            "UPDATE sales SET stock = stock + $2, version = version + 1
             WHERE id = $1 AND stock + $2::bigint <= $3 RETURNING ",
            sale_columns!()
        ))
        .bind(id)
        .bind(narrow::<i32>("add", add)?)
        .bind(MAX_STOCK)
        .fetch_optional(&self.postgres)
        .await?;
        if sale.is_none() && self.refresh(id).await.is_ok() {
            return Err(invalid(
                "add",
                format!("the stock would exceed {MAX_STOCK}"),
            ));
        }
        self.publish(sale).await
    }

    /// Takes units away. Redis decides, because only it knows what remains, so the steps are:
    /// claim a version in Postgres, take the units in Redis under the next one, then lower the stock
    /// in Postgres if nobody else has changed the sale meanwhile. A crash after the second step
    /// leaves Redis with less than Postgres names; the refresh loop gives the units back.
    async fn take_stock(&self, id: SaleId, take: i64) -> Result<SaleView, ShopError> {
        let claimed: Option<Sale> = sqlx::query_as(concat!(
            "UPDATE sales SET version = version + 1 WHERE id = $1 RETURNING ",
            sale_columns!()
        ))
        .bind(id)
        .fetch_optional(&self.postgres)
        .await?;
        let mut sale = claimed.ok_or(ShopError::SaleNotFound)?;
        let unchanged = sale.clone();
        let fail_points = &self.fail_points;
        fail_points.at("stock.claimed").await?;
        let left = i64::from(sale.stock) - take;
        sale.stock = i32::try_from(left)
            .ok()
            .filter(|left| *left >= 0)
            .ok_or_else(|| {
                let remaining = self
                    .board
                    .get(id)
                    .map_or(0, |listing| listing.view(self.now()).remaining);
                ShopError::NotEnoughRemaining { remaining }
            })?;
        match self.apply_version(&sale).await? {
            VersionApplied::Applied => {}
            VersionApplied::Short { remaining } => {
                // Redis learns of the claimed version.
                self.apply_version(&unchanged).await?;
                return Err(ShopError::NotEnoughRemaining { remaining });
            }
            VersionApplied::Unchanged => return Err(conflict()),
            VersionApplied::Fenced(_) => {
                self.rebuild_bell.notify_one();
                return Err(ShopError::Unavailable {
                    what: "nothing was changed: redis is being rebuilt",
                    retry_after: Duration::from_secs(1),
                });
            }
        }
        fail_points.at("stock.taken").await?;
        let lowered: Option<Sale> = sqlx::query_as(concat!(
            "UPDATE sales SET stock = $3, version = version + 1
             WHERE id = $1 AND version = $2 AND epoch = $4 RETURNING ",
            sale_columns!()
        ))
        .bind(id)
        .bind(unchanged.version)
        .bind(sale.stock)
        .bind(sale.epoch)
        .fetch_optional(&self.postgres)
        .await?;
        if lowered.is_none() {
            // Somebody changed the sale in between; their change has already restored the units.
            return Err(conflict());
        }
        self.publish(lowered).await
    }

    /// Brings a committed change to Redis and tells everybody.
    pub(super) async fn publish(&self, sale: Option<Sale>) -> Result<SaleView, ShopError> {
        let sale = sale.ok_or(ShopError::SaleNotFound)?;
        let id = sale.id;
        let listing = self.board.learn(sale.clone());
        self.fail_points.at("sale.changed").await?;
        match self.apply_version(&sale).await? {
            VersionApplied::Applied | VersionApplied::Unchanged => {}
            // A sale that is over and gone from Redis has nothing left to stop.
            VersionApplied::Fenced(Fenced::Absent) if listing.is_retired(self.now()) => {}
            VersionApplied::Fenced(_) => return Err(self.state_missing()),
            VersionApplied::Short { .. } => {
                // Only possible if the stock was lowered behind Redis' back.
                tracing::error!(sale = %id, "postgres has less stock than redis has sold");
                return Err(conflict());
            }
        }
        let listing = self.refresh(id).await?;
        self.redis.announce(id).await;
        Ok(listing.view(self.now()))
    }

    async fn apply_version(&self, sale: &Sale) -> Result<VersionApplied, redis::RedisError> {
        let mut connection = self.redis.pooled().await?;
        functions::apply_version(&mut connection, &self.redis.keys, sale).await
    }

    fn state_missing(&self) -> ShopError {
        self.rebuild_bell.notify_one();
        ShopError::Unavailable {
            what: "the change is stored and takes effect when redis has been rebuilt",
            retry_after: Duration::from_secs(1),
        }
    }

    async fn redis_time(&self) -> Result<OffsetDateTime, ShopError> {
        let mut connection = self.redis.pooled().await?;
        let asked = Instant::now();
        let (seconds, micros): (i64, i64) = redis::cmd("TIME").query_async(&mut connection).await?;
        self.board
            .clock
            .read(seconds * 1_000 + micros / 1_000, asked);
        // Whole milliseconds, as Redis compares them: "opens now" must not lie ahead of it.
        Ok(crate::sale::board::from_ms(
            seconds * 1_000 + micros / 1_000,
        ))
    }
}

fn closed_for_good() -> ShopError {
    invalid("closes_at", "the sale was closed, which is final")
}

fn conflict() -> ShopError {
    ShopError::Unavailable {
        what: "the sale was changed by somebody else at the same moment",
        retry_after: Duration::from_secs(1),
    }
}
