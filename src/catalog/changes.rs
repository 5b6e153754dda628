//! Operators' changes of a sale: creating, changing, pausing, closing, restocking.
//!
//! Postgres is written first, with a new `version`; then the change is applied to Redis, which
//! takes only newer versions. So any process may apply it, repeatedly and in any order. Since only
//! Redis sells, pausing and closing take effect on every instance with that.
//!
//! After a crash between the two, the refresh of any instance finds Redis a version behind, and
//! applies it. Only taking units away is decided by Redis first: see [`Catalog::take_stock`].

use crate::catalog::Catalog;
use crate::domain::{RoomSettings, Sale, SaleId, SaleView, from_unix_ms, read_room};
use crate::error::{ServiceError, ServiceResult};
use crate::redis::functions::{self, Activated, Fenced, VersionApplied};
use serde::{Deserialize, Deserializer};
use std::time::Instant;
use time::OffsetDateTime;
use utoipa::ToSchema;

pub const MAX_STOCK: i64 = 100_000_000;
const MAX_PRICE_CENTS: i64 = 1_000_000_000_000;
const MAX_PER_USER: i64 = 100;
const MAX_PAYMENT_TIMEOUT_SECS: i64 = 604_800;
/// About five minutes of a phone's work.
const MOST_CHALLENGE_BITS: i64 = 24;
const DEFAULT_PAYMENT_TIMEOUT_SECS: i64 = 900;
const DEFAULT_DURATION: time::Duration = time::Duration::DAY;

/// A query for rows of [`Sale`]; their columns go between the two texts.
macro_rules! sale_query {
    ($before:literal $(, $after:literal)?) => {
        sqlx::query_as::<_, crate::domain::Sale>(concat!(
            $before,
            "id, title, description, image_url, currency, price_cents, original_price_cents,
             stock, per_user_limit, opens_at, closes_at, payment_timeout_secs, paused, closed,
             epoch, version, room_opens_before_secs, room_per_second, room_turn_secs,
             room_overbooking, purchase_pass, challenge_bits"
            $(, $after)?
        ))
    };
}
pub(crate) use sale_query;

/// A sale to be created; the shop checks that it makes sense.
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
    #[serde(default, deserialize_with = "read_room")]
    pub waiting_room: Option<RoomSettings>,
    /// Whether a purchase needs a pass; false if absent.
    pub purchase_pass: Option<bool>,
    /// The proof of work that a purchase needs; 0 (none) if absent.
    #[schema(minimum = 0, maximum = 24)]
    pub challenge_bits: Option<i64>,
    /// A second sale with this key is not created; the first is returned (demo catalogue).
    #[serde(skip)]
    pub seed_key: Option<String>,
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
    #[serde(default, deserialize_with = "room_if_there")]
    #[schema(value_type = Option<RoomSettings>)]
    pub waiting_room: Option<Option<RoomSettings>>,
    pub purchase_pass: Option<bool>,
    #[schema(minimum = 0, maximum = 24)]
    pub challenge_bits: Option<i64>,
}

/// Distinguishes a null member from a missing one.
fn room_if_there<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<RoomSettings>>, D::Error> {
    read_room(deserializer).map(Some)
}

type Checked<T> = ServiceResult<T>;

fn invalid(field: &'static str, why: impl Into<String>) -> ServiceError {
    ServiceError::Invalid { field, why: why.into() }
}

fn check_text(field: &'static str, text: &str, least: usize, most: usize) -> Checked<()> {
    let length = text.chars().count();
    if length < least || length > most {
        let why = format!("must be {least} to {most} characters long");
        return Err(invalid(field, why));
    }
    if text.chars().any(|c| c.is_control() && c != '\n') {
        return Err(invalid(field, "must not contain control characters"));
    }
    Ok(())
}

/// A path on this site or an http(s) URL, but no `javascript:` or `data:`.
fn check_image_url(url: &str) -> Checked<()> {
    check_text("image_url", url, 0, 500)?;
    // Browsers read a backslash as a slash.
    let is_local = url.starts_with('/') && !url.starts_with("//") && !url.contains('\\');
    if url.is_empty() || is_local || url.starts_with("https://") || url.starts_with("http://") {
        return Ok(());
    }
    let why = "must be a path that starts with / or an http(s) URL";
    Err(invalid("image_url", why))
}

/// Converts a number to its column's type, if it is in range.
fn within<T: TryFrom<i64>>(field: &'static str, value: i64, least: i64, most: i64) -> Checked<T> {
    match T::try_from(value) {
        Ok(found) if (least..=most).contains(&value) => Ok(found),
        _ => Err(invalid(field, format!("must be from {least} to {most}"))),
    }
}

fn payment_timeout(secs: i64) -> Checked<i32> {
    within("payment_timeout_secs", secs, 1, MAX_PAYMENT_TIMEOUT_SECS)
}

fn challenge_bits(bits: i64) -> Checked<i32> {
    within("challenge_bits", bits, 0, MOST_CHALLENGE_BITS)
}

fn check_room(room: &RoomSettings) -> Checked<()> {
    let check = |field, value: i32, least, most| within::<i64>(field, value.into(), least, most);
    let before = room.opens_before_secs;
    check("waiting_room.opens_before_secs", before, 0, 86_400)?;
    check("waiting_room.per_second", room.per_second, 1, 100_000)?;
    check("waiting_room.turn_secs", room.turn_secs, 1, 600)?;
    let more = room.overbooking_percent;
    check("waiting_room.overbooking_percent", more, 0, 400)?;
    Ok(())
}

fn check_year(field: &'static str, time: OffsetDateTime) -> Checked<()> {
    if (2000..=9000).contains(&time.year()) {
        return Ok(());
    }
    Err(invalid(field, "must lie between the years 2000 and 9000"))
}

fn check_window(opens_at: OffsetDateTime, closes_at: OffsetDateTime) -> Checked<()> {
    if closes_at > opens_at {
        return Ok(());
    }
    Err(invalid("closes_at", "must be later than opens_at"))
}

/// Redis compares milliseconds; stored times must not differ from that.
fn whole_ms(time: OffsetDateTime) -> OffsetDateTime {
    let millisecond = time.millisecond();
    time.replace_millisecond(millisecond).unwrap_or(time)
}

impl Catalog {
    /// Creates a sale in Postgres and Redis: buyable when this answers, if it is open.
    pub async fn create_sale(&self, new: NewSale) -> ServiceResult<SaleView> {
        let Some(sale) = self.insert(&new).await? else {
            // Only the seed key can conflict.
            let id = sqlx::query_scalar("SELECT id FROM sales WHERE seed_key = $1");
            let id = id.bind(&new.seed_key).fetch_optional(&self.postgres).await?;
            return self.sale(id.ok_or(ServiceError::SaleNotFound)?).await;
        };
        let id = sale.id;
        self.cache.learn(sale.clone());
        self.fail_points.at("sale.stored").await?;
        match self.activate_new(&sale).await? {
            Activated::Open => {}
            // A rebuild was faster; or Redis has outlived a database that used this id, which a
            // rebuild sorts out.
            Activated::Newer | Activated::Unfenced | Activated::LogNotEmpty => self.suspect(id),
        }
        self.show_changed(id).await
    }

    /// The newest sale whose `seed_key` begins like this, and how many there are.
    pub async fn last_seeded(&self, prefix: &str) -> ServiceResult<(Option<SaleId>, i64)> {
        let sql = "SELECT max(id), count(*) FROM sales WHERE starts_with(seed_key, $1)";
        let found = sqlx::query_as(sql).bind(prefix).fetch_one(&self.postgres).await?;
        let (last, all): (Option<i64>, i64) = found;
        Ok((last.map(SaleId::from_i64), all))
    }

    /// `None`: there is a sale with this `seed_key`.
    async fn insert(&self, new: &NewSale) -> ServiceResult<Option<Sale>> {
        let title = new.title.trim();
        check_text("title", title, 1, 200)?;
        let description = new.description.as_deref().unwrap_or_default();
        check_text("description", description, 0, 4_000)?;
        let image_url = new.image_url.as_deref().unwrap_or_default();
        check_image_url(image_url)?;
        let currency = new.currency.as_deref().unwrap_or("USD");
        if currency.len() != 3 || !currency.bytes().all(|byte| byte.is_ascii_uppercase()) {
            let why = "must be three capital letters, like USD";
            return Err(invalid("currency", why));
        }
        let price: i64 = within("price_cents", new.price_cents, 0, MAX_PRICE_CENTS)?;
        let original = new.original_price_cents;
        if let Some(original) = original {
            within::<i64>("original_price_cents", original, price, MAX_PRICE_CENTS)?;
        }
        let stock: i32 = within("stock", new.stock, 1, MAX_STOCK)?;
        let limit = new.per_user_limit.unwrap_or(1);
        let limit: i16 = within("per_user_limit", limit, 1, MAX_PER_USER)?;
        let timeout = new.payment_timeout_secs;
        let timeout = payment_timeout(timeout.unwrap_or(DEFAULT_PAYMENT_TIMEOUT_SECS))?;
        new.waiting_room.as_ref().map_or(Ok(()), check_room)?;
        let room = new.waiting_room.unwrap_or_default();
        let bits = challenge_bits(new.challenge_bits.unwrap_or(0))?;

        // "Now" by Redis' clock, which decides the window.
        let now = self.redis_time().await?;
        let opens_at = whole_ms(new.opens_at.unwrap_or(now));
        check_year("opens_at", opens_at)?;
        let closes_at = new.closes_at;
        let closes_at = closes_at.unwrap_or_else(|| opens_at.max(now) + DEFAULT_DURATION);
        let closes_at = whole_ms(closes_at);
        check_year("closes_at", closes_at)?;
        check_window(opens_at, closes_at)?;

        let insert = sale_query!(
            "INSERT INTO sales (title, description, image_url, currency, price_cents,
                 original_price_cents, stock, per_user_limit, opens_at, closes_at,
                 payment_timeout_secs, seed_key, room_opens_before_secs, room_per_second,
                 room_turn_secs, room_overbooking, purchase_pass, challenge_bits)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17,
                 $18)
             ON CONFLICT ON CONSTRAINT sales_seed_key_unique DO NOTHING
             RETURNING "
        );
        let insert = insert.bind(title).bind(description).bind(image_url);
        let insert = insert.bind(currency).bind(price).bind(original);
        let insert = insert.bind(stock).bind(limit).bind(opens_at);
        let insert = insert.bind(closes_at).bind(timeout).bind(&new.seed_key);
        let insert = insert.bind(new.waiting_room.map(|room| room.opens_before_secs));
        let insert = insert.bind(room.per_second).bind(room.turn_secs);
        let insert = insert.bind(room.overbooking_percent);
        let insert = insert.bind(new.purchase_pass.unwrap_or(false)).bind(bits);
        Ok(insert.fetch_optional(&self.postgres).await?)
    }

    async fn activate_new(&self, sale: &Sale) -> Result<Activated, redis::RedisError> {
        let (mut connection, keys) = (self.redis.pooled().await?, &self.redis.keys);
        functions::fence(&mut connection, keys, sale.id, sale.epoch).await?;
        functions::activate(&mut connection, keys, sale, i64::from(sale.stock), 0, 0).await
    }

    pub async fn change_sale(&self, id: SaleId, change: SaleChange) -> ServiceResult<SaleView> {
        let title = change.title.as_deref().map(str::trim);
        title.map_or(Ok(()), |title| check_text("title", title, 1, 200))?;
        if let Some(description) = &change.description {
            check_text("description", description, 0, 4_000)?;
        }
        change.image_url.as_deref().map_or(Ok(()), check_image_url)?;
        let timeout = change.payment_timeout_secs.map(payment_timeout);
        let timeout = timeout.transpose()?;
        let room = change.waiting_room.flatten();
        room.as_ref().map_or(Ok(()), check_room)?;
        let bits = change.challenge_bits.map(challenge_bits).transpose()?;
        let closes_at = change.closes_at.map(whole_ms);
        if let Some(closes_at) = closes_at {
            check_year("closes_at", closes_at)?;
            let sale = self.refresh(id).await?.sale();
            check_window(sale.opens_at, closes_at)?;
            if sale.closed {
                return Err(closed_for_good());
            }
        }
        let update = sale_query!(
            "UPDATE sales SET
                 title = COALESCE($2, title), description = COALESCE($3, description),
                 image_url = COALESCE($4, image_url), closes_at = COALESCE($5, closes_at),
                 payment_timeout_secs = COALESCE($6, payment_timeout_secs),
                 room_opens_before_secs = CASE WHEN $7 THEN $8 ELSE room_opens_before_secs END,
                 room_per_second = COALESCE($9, room_per_second),
                 room_turn_secs = COALESCE($10, room_turn_secs),
                 room_overbooking = COALESCE($11, room_overbooking),
                 purchase_pass = COALESCE($12, purchase_pass),
                 challenge_bits = COALESCE($13, challenge_bits), version = version + 1
             WHERE id = $1 AND NOT (closed AND $5 IS NOT NULL) RETURNING "
        );
        let update = update.bind(id).bind(title).bind(change.description);
        let update = update.bind(change.image_url);
        let update = update.bind(closes_at).bind(timeout);
        let update = update.bind(change.waiting_room.is_some());
        let update = update.bind(room.map(|room| room.opens_before_secs));
        let update = update.bind(room.map(|room| room.per_second));
        let update = update.bind(room.map(|room| room.turn_secs));
        let update = update.bind(room.map(|room| room.overbooking_percent));
        let update = update.bind(change.purchase_pass).bind(bits);
        let sale = update.fetch_optional(&self.postgres).await?;
        if sale.is_none() {
            self.refresh_row(id).await?;
            return Err(closed_for_good()); // since it was read
        }
        self.publish(sale).await
    }

    /// Pauses a sale on every instance: no order is accepted after this answers.
    pub async fn pause_sale(&self, id: SaleId) -> ServiceResult<SaleView> {
        self.set_flags(id, Some(true), false).await
    }

    pub async fn resume_sale(&self, id: SaleId) -> ServiceResult<SaleView> {
        self.set_flags(id, Some(false), false).await
    }

    /// Ends a sale for good, on every instance: no order is accepted after this answers.
    pub async fn close_sale(&self, id: SaleId) -> ServiceResult<SaleView> {
        self.set_flags(id, None, true).await
    }

    async fn set_flags(
        &self,
        id: SaleId,
        paused: Option<bool>,
        close: bool,
    ) -> ServiceResult<SaleView> {
        let update = sale_query!(
            "UPDATE sales SET paused = COALESCE($2, paused), closed = closed OR $3,
                 version = version + 1
             WHERE id = $1 RETURNING "
        );
        let update = update.bind(id).bind(paused).bind(close);
        self.publish(update.fetch_optional(&self.postgres).await?).await
    }

    /// Adds units, or takes away at most what remains.
    pub async fn add_stock(&self, id: SaleId, add: i64) -> ServiceResult<SaleView> {
        if add == 0 {
            return Err(invalid("add", "must not be zero"));
        }
        let units: i32 = within("add", add, -MAX_STOCK, MAX_STOCK)?;
        if units < 0 {
            return self.take_stock(id, -units).await;
        }
        let update = sale_query!(
            "UPDATE sales SET stock = stock + $2, version = version + 1
             WHERE id = $1 AND stock + $2::bigint <= $3 RETURNING "
        );
        let update = update.bind(id).bind(units).bind(MAX_STOCK);
        let sale = update.fetch_optional(&self.postgres).await?;
        if sale.is_none() {
            self.refresh_row(id).await?;
            let why = format!("the stock would exceed {MAX_STOCK}");
            return Err(invalid("add", why));
        }
        self.publish(sale).await
    }

    /// Takes units away. Redis decides, because only it knows what remains: claim a version in
    /// Postgres, take the units in Redis under the next one, then lower the stock in Postgres
    /// unless another change came first. After a crash before the last step the refresh gives the
    /// units back.
    async fn take_stock(&self, id: SaleId, take: i32) -> ServiceResult<SaleView> {
        let claim = sale_query!(
            "UPDATE sales SET version = version + 1 WHERE id = $1 AND stock >= $2 RETURNING "
        );
        let claim = claim.bind(id).bind(take);
        let Some(claimed) = claim.fetch_optional(&self.postgres).await? else {
            let remaining = self.refresh(id).await?.view(self.now()).remaining;
            return Err(ServiceError::NotEnoughRemaining { remaining });
        };
        self.fail_points.at("stock.claimed").await?;
        let mut lowered = claimed.clone();
        lowered.stock -= take;
        match self.apply_version(&lowered).await? {
            VersionApplied::Applied => {}
            VersionApplied::Short { remaining } => {
                // Redis learns of the claimed version.
                self.apply_version(&claimed).await?;
                return Err(ServiceError::NotEnoughRemaining { remaining });
            }
            VersionApplied::Unchanged => return Err(conflict()),
            VersionApplied::Fenced(_) => {
                return Err(self.being_rebuilt("nothing was changed: redis is being rebuilt"));
            }
        }
        self.fail_points.at("stock.taken").await?;
        let lower = sale_query!(
            "UPDATE sales SET stock = $3, version = version + 1
             WHERE id = $1 AND version = $2 AND epoch = $4 RETURNING "
        );
        let lower = lower.bind(id).bind(claimed.version);
        let lower = lower.bind(lowered.stock).bind(claimed.epoch);
        match lower.fetch_optional(&self.postgres).await? {
            // Another change came first, and has restored the units.
            None => Err(conflict()),
            lowered => self.publish(lowered).await,
        }
    }

    /// Applies a committed change to Redis and announces it.
    pub(crate) async fn publish(&self, sale: Option<Sale>) -> ServiceResult<SaleView> {
        let sale = sale.ok_or(ServiceError::SaleNotFound)?;
        let cached = self.cache.learn(sale.clone());
        self.fail_points.at("sale.changed").await?;
        match self.apply_version(&sale).await? {
            VersionApplied::Applied | VersionApplied::Unchanged => {}
            // An evicted sale has nothing left to stop.
            VersionApplied::Fenced(Fenced::Absent) if cached.is_evictable(self.now()) => {}
            VersionApplied::Fenced(_) => {
                let what = "the change is stored and takes effect when redis has been rebuilt";
                return Err(self.being_rebuilt(what));
            }
            VersionApplied::Short { .. } => {
                // Only possible if the stock was changed by hand.
                tracing::error!(sale = %sale.id, "postgres has less stock than redis has sold");
                return Err(conflict());
            }
        }
        self.show_changed(sale.id).await
    }

    async fn show_changed(&self, id: SaleId) -> ServiceResult<SaleView> {
        let cached = self.refresh(id).await?;
        self.redis.announce(id).await;
        Ok(cached.view(self.now()))
    }

    async fn apply_version(&self, sale: &Sale) -> Result<VersionApplied, redis::RedisError> {
        let mut connection = self.redis.pooled().await?;
        functions::apply_version(&mut connection, &self.redis.keys, sale).await
    }

    fn being_rebuilt(&self, what: &'static str) -> ServiceError {
        self.approval.call_for_rebuild();
        ServiceError::unavailable(what)
    }

    async fn redis_time(&self) -> ServiceResult<OffsetDateTime> {
        let mut connection = self.redis.pooled().await?;
        let asked = Instant::now();
        let (seconds, micros): (i64, i64) = redis::cmd("TIME").query_async(&mut connection).await?;
        // In whole milliseconds, so that "opens now" is not ahead of Redis' clock.
        let now_ms = seconds * 1_000 + micros / 1_000;
        self.cache.clock.read(now_ms, asked);
        Ok(from_unix_ms(now_ms))
    }
}

fn closed_for_good() -> ServiceError {
    invalid("closes_at", "the sale was closed, which is final")
}

fn conflict() -> ServiceError {
    ServiceError::unavailable("the sale was changed by somebody else at the same moment")
}
