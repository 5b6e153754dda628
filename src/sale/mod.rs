//! The sale: what a shopper and an operator can do, and the path of a purchase.
//!
//! A purchase reads top to bottom: [`Shop::purchase`] looks at the [`board`] (what this process
//! knows of the sale), joins the sale's [`gate`] (one call for everybody who waits), and is
//! handed on as an [`log::AcceptedBatch`] to the writer, which uses [`orders`].

pub mod audit;
pub mod board;
pub mod capacity;
pub mod catalogue;
pub mod gate;
pub mod ids;
pub mod life;
pub mod liveness;
pub mod log;
pub mod looks;
pub mod metrics;
pub mod orders;
pub mod payment;
pub mod queued;
pub mod releases;
pub mod tallies;
pub mod unknown;
pub mod watch;

use self::metrics::Metrics;
use crate::{
    domain::{
        Admission, IdempotencyKey, Order, OrderId, OrderStatus, SaleId, SaleState, SaleView, UserId,
    },
    fail_point::{FailPoints, Injected},
    postgres::{self, Pool, unless_silent},
    redis::Redis,
};
use board::Board;
use capacity::Capacity;
use ids::IdGenerator;
use liveness::Liveness;
use log::AcceptedBatch;
use looks::Looks;
use payment::PaymentProvider;
use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use time::OffsetDateTime;
use tokio::sync::{Notify, mpsc};
use unknown::UnknownSales;
use watch::OrderWatch;

pub use audit::Audit;
pub use board::SalePulse;
pub use catalogue::{NewSale, SaleChange};

/// Everything that can keep a use case from an ordinary answer. Knows nothing of HTTP.
#[derive(Debug, thiserror::Error)]
pub enum ShopError {
    #[error("no such sale")]
    SaleNotFound,
    #[error("no such order")]
    OrderNotFound,
    /// `field` is the request member at fault.
    #[error("{field}: {why}")]
    Invalid { field: &'static str, why: String },
    /// A dependency did not answer in time, the gate is shut, or a queue is full. Nothing was
    /// decided, or a retry will find what was.
    #[error("{what}")]
    Unavailable {
        what: &'static str,
        retry_after: Duration,
    },
    #[error("the order is {}", .status.as_str())]
    NotPayable { status: OrderStatus },
    #[error("the order is still queued")]
    StillQueued { retry_after: Duration },
    #[error("the payment was declined: {reason}")]
    PaymentDeclined { reason: String },
    #[error("the order is {}", .status.as_str())]
    NotCancellable { status: OrderStatus },
    #[error("only {remaining} units remain")]
    NotEnoughRemaining { remaining: i64 },
    #[error("postgres: {0}")]
    Postgres(#[from] sqlx::Error),
    #[error("redis: {0}")]
    Redis(#[from] redis::RedisError),
    #[error("ids: {0}")]
    Ids(#[source] ids::IdError),
    #[error(transparent)]
    Injected(#[from] Injected),
}

impl From<ids::IdError> for ShopError {
    fn from(error: ids::IdError) -> Self {
        match error {
            ids::IdError::Redis(error) => Self::Redis(error),
            ids::IdError::Postgres(error) => Self::Postgres(error),
            ids::IdError::Injected(error) => Self::Injected(error),
            other => Self::Ids(other),
        }
    }
}

/// A slice of a listing, newest first.
#[derive(Debug, Clone, Copy)]
pub struct Page {
    pub limit: u16,
    /// Only orders older than this one.
    pub after: Option<OrderId>,
}

/// Each dependency's state; `Err` says what is wrong.
#[derive(Debug, Clone)]
pub struct Readiness {
    pub postgres: Result<(), String>,
    pub redis: Result<(), String>,
    /// Whether purchases are admitted: Redis may sell the sales, or in a cluster any of them: while one
    /// node is away the sales of the others go on, here too.
    pub gate: Result<(), String>,
    /// Whether all background loops of this process run.
    pub loops: Result<(), String>,
}

/// What the shop needs to be told; see `config.rs` for the defaults.
#[derive(Debug, Clone, Copy)]
pub struct ShopSettings {
    /// The most accepted orders of a sale that may wait to be written; beyond it buyers get 503.
    pub high_water: i64,
    /// The most buyers that one script call judges.
    pub batch_limit: usize,
    /// Whether this process writes the orders it accepts.
    pub own_writer: bool,
}

/// How often the way of a purchase, from the gate to the acknowledgement in the log, has sent something
/// and waited for the answer.
#[derive(Debug, Default)]
pub struct RoundTrips {
    pub redis: AtomicU64,
    pub postgres: AtomicU64,
}

/// The use cases. One per process, shared by the handlers and the workers.
pub struct Shop {
    pub postgres: Pool,
    pub redis: Arc<Redis>,
    pub ids: IdGenerator,
    pub board: Board,
    pub watch: OrderWatch,
    looks: Looks,
    unknown: UnknownSales,
    pub settings: ShopSettings,
    /// Where a test makes this shop fail.
    pub fail_points: FailPoints,
    pub metrics: Metrics,
    pub liveness: Liveness,
    payments: Arc<dyn PaymentProvider>,
    /// Where the gates hand accepted orders to the writer. Bounded; when it is full (or there is no
    /// writer here) the log still holds them.
    handoff: mpsc::Sender<AcceptedBatch>,
    /// Whether the writer has a batch in hand.
    pub writer_is_busy: AtomicBool,
    /// When the oldest order that it has in hand was admitted, Unix ms; 0 while nothing waits for it.
    oldest_in_hand_ms: AtomicI64,
    /// What the purchases of this process cost in round trips, on any machine. The lab shows it.
    pub round_trips: RoundTrips,
    /// Whether Redis answered, as a process that Postgres has approved, when last asked.
    pub redis_is_approved: AtomicBool,
    /// Whether Postgres has approved another server than the one that answers, as last looked.
    pub redis_is_doubtful: AtomicBool,
    /// How fast the gates of this process judge.
    pub capacity: Capacity,
    /// Rung when a unit waits in the outbox.
    pub release_bell: Notify,
    /// Rung when Redis does not have what it should have.
    pub rebuild_bell: Notify,
}

impl Shop {
    pub fn new(
        postgres: Pool,
        redis: Arc<Redis>,
        payments: Arc<dyn PaymentProvider>,
        handoff: mpsc::Sender<AcceptedBatch>,
        settings: ShopSettings,
        metrics: Metrics,
        fail_points: FailPoints,
    ) -> Self {
        Self {
            ids: IdGenerator::new(redis.clone(), postgres.clone(), fail_points.clone()),
            board: Board::new(),
            watch: OrderWatch::new(),
            looks: Looks::default(),
            unknown: UnknownSales::new(),
            postgres,
            redis,
            settings,
            metrics,
            liveness: Liveness::default(),
            fail_points,
            payments,
            handoff,
            writer_is_busy: AtomicBool::new(false),
            oldest_in_hand_ms: AtomicI64::new(0),
            round_trips: RoundTrips::default(),
            redis_is_approved: AtomicBool::new(false),
            redis_is_doubtful: AtomicBool::new(false),
            capacity: Capacity::default(),
            release_bell: Notify::new(),
            rebuild_bell: Notify::new(),
        }
    }

    /// Notes that Redis holds something for this sale that the program never writes, and calls for a
    /// rebuild of it.
    pub fn suspect(&self, sale: SaleId) {
        if let Some(listing) = self.board.get(sale) {
            listing.suspect();
        }
        self.rebuild_bell.notify_one();
    }

    /// Whether everything that was accepted here and handed to the writer is in Postgres.
    pub fn everything_is_written(&self) -> bool {
        self.handoff.capacity() == self.handoff.max_capacity() && !self.writer_is_busy.load(Relaxed)
    }

    /// How long the oldest order that this instance's writer has in hand has waited for it; zero while it has none.
    pub fn writer_delay(&self) -> Duration {
        let since = match self.oldest_in_hand_ms.load(Relaxed) {
            0 => return Duration::ZERO,
            since => i128::from(since),
        };
        let waited = self.now().unix_timestamp_nanos() / 1_000_000 - since;
        Duration::from_millis(u64::try_from(waited).unwrap_or(0))
    }

    /// Notes when that was admitted, Unix ms; 0: it has none.
    pub fn set_oldest_in_hand(&self, created_ms: i64) {
        self.oldest_in_hand_ms.store(created_ms, Relaxed);
    }

    /// Redis time as this process estimates it, from the monotonic clock.
    pub fn now(&self) -> OffsetDateTime {
        self.board.clock.now()
    }

    /// One purchase of a sale that asks for nothing but a token. Bounded in time: an answer, or
    /// [`ShopError::Unavailable`].
    ///
    /// An unavailable purchase may have been accepted (the reply was lost): a retry names the order.
    pub async fn purchase(
        self: &Arc<Self>,
        sale: SaleId,
        user: UserId,
        key: Option<IdempotencyKey>,
    ) -> Result<Admission, ShopError> {
        let listing = match self.board.get(sale) {
            Some(listing) => listing,
            // Boxed, because it is rare and large: every purchase would carry its room around.
            None => Box::pin(self.look_up(sale)).await?,
        };
        if listing.has_door() {
            // Whoever calls this believed that the sale asks for nothing: it was looked up only now, or an
            // operator has just changed it.
            return Err(ShopError::Unavailable {
                what: "what this sale asks for was not known here a moment ago",
                retry_after: gate::RETRY_AFTER,
            });
        }
        self.buy(&listing, user, key).await
    }

    /// The purchase of somebody who has shown what the sale's [`Door`](crate::domain::Door) asks for.
    pub async fn buy(
        self: &Arc<Self>,
        listing: &Arc<board::Listing>,
        user: UserId,
        key: Option<IdempotencyKey>,
    ) -> Result<Admission, ShopError> {
        if let Some(refusal) = listing.refuse_locally(&self.board.clock, user, key) {
            self.metrics.verdicts(&refusal).increment(1);
            return Ok(refusal);
        }
        gate::ask(self, listing, user, key).await
    }

    /// A sale that is not on the board, within the time that a buyer waits; see [`unknown`].
    async fn look_up(&self, sale: SaleId) -> Result<Arc<board::Listing>, ShopError> {
        if self.unknown.is_missing(sale) {
            return Err(ShopError::SaleNotFound);
        }
        let asking = async {
            let _turn = self.unknown.turn().await;
            // While this waited for its turn, somebody else may have asked the same.
            if let Some(listing) = self.board.get(sale) {
                return Ok(listing);
            }
            if self.unknown.is_missing(sale) {
                return Err(ShopError::SaleNotFound);
            }
            let found = self.refresh(sale).await;
            if matches!(found, Err(ShopError::SaleNotFound)) {
                self.unknown.found_missing(sale);
            }
            found
        };
        tokio::time::timeout(gate::PATIENCE, asking)
            .await
            .unwrap_or(Err(ShopError::Unavailable {
                what: "the sale could not be looked up in time",
                retry_after: gate::RETRY_AFTER,
            }))
    }

    /// Every sale from memory, open ones first, then by opening time.
    pub fn sales(&self, state: Option<SaleState>) -> Vec<SaleView> {
        let now = self.now();
        let mut views: Vec<SaleView> = self
            .board
            .listings()
            .iter()
            .map(|listing| listing.view(now))
            .collect();
        views.retain(|view| state.is_none_or(|wanted| view.state == wanted));
        views.sort_by_key(|view| {
            (
                view.state != SaleState::Open,
                view.sale.opens_at,
                view.sale.id,
            )
        });
        views
    }

    /// One sale from memory; one that is not known here is looked up.
    pub async fn sale(&self, id: SaleId) -> Result<SaleView, ShopError> {
        let listing = self.listing(id).await?;
        listing.touch();
        Ok(listing.view(self.now()))
    }

    /// Yields at once and then on every change, at most 5 a second.
    pub async fn watch_sale(
        &self,
        id: SaleId,
    ) -> Result<tokio::sync::watch::Receiver<SalePulse>, ShopError> {
        let listing = self.listing(id).await?;
        listing.touch();
        Ok(listing.subscribe(self.now()))
    }

    /// The caller's order, queued ones included.
    pub async fn order(&self, user: UserId, id: OrderId) -> Result<Order, ShopError> {
        if let Some(order) = self.written_order(user, id).await? {
            return Ok(order);
        }
        let queued = self.find_queued(user, id).await;
        // It may have been written, and even closed, between the two looks: what Postgres says is newer.
        if let Some(order) = self.written_order(user, id).await? {
            return Ok(order);
        }
        queued?.ok_or(ShopError::OrderNotFound)
    }

    /// What Postgres has of the user's order at this moment.
    async fn written_order(&self, user: UserId, id: OrderId) -> Result<Option<Order>, sqlx::Error> {
        self.looks.order(&self.postgres, user, id).await
    }

    /// The caller's orders, newest first, queued ones included.
    pub async fn orders(&self, user: UserId, page: Page) -> Result<Vec<Order>, ShopError> {
        // Redis first: an order that is written in between is seen by the second look.
        let queued = self.queued_orders(user).await?;
        let mut found = orders::list_of_user(&self.postgres, user, page).await?;
        for order in queued {
            let inside = page.after.is_none_or(|after| order.id < after);
            if inside && !found.iter().any(|written| written.id == order.id) {
                // Older pages of written orders must not lose it to a gap: only ids that Postgres
                // does not have at all are queued.
                if orders::of_user(&self.postgres, user, order.id)
                    .await?
                    .is_none()
                {
                    found.push(order);
                }
            }
        }
        found.sort_by_key(|order| std::cmp::Reverse(order.id));
        found.truncate(usize::from(page.limit));
        Ok(found)
    }

    /// Yields at once and then on every change of the order.
    pub async fn watch_order(
        &self,
        user: UserId,
        id: OrderId,
    ) -> Result<tokio::sync::watch::Receiver<Order>, ShopError> {
        let order = self.order(user, id).await?;
        Ok(self.watch.subscribe(order))
    }

    /// Orders of a sale for an operator, newest first.
    pub async fn sale_orders(
        &self,
        sale: SaleId,
        wanted: orders::Wanted,
        page: Page,
    ) -> Result<Vec<Order>, ShopError> {
        self.listing(sale).await?;
        Ok(orders::list_of_sale(&self.postgres, sale, wanted, page).await?)
    }

    /// The Redis processes that were checked against this Postgres: an approval that another timeline has
    /// given is void, since a promotion or a restore may lack what Redis has seen.
    pub async fn approved_processes(&self) -> Result<HashSet<String>, ShopError> {
        let timeline = unless_silent(postgres::timeline(&self.postgres)).await?;
        let approved =
            sqlx::query_scalar("SELECT run_id FROM redis_incarnation WHERE timeline = $1")
                .bind(timeline);
        let approved: Vec<String> = unless_silent(approved.fetch_all(&self.postgres)).await?;
        Ok(approved.into_iter().collect())
    }

    /// Whether Redis may sell what it should, as far as is known without asking.
    pub fn gate_is_open(&self) -> bool {
        let now = self.now();
        let mut listings = self.board.listings();
        listings.retain(|listing| !listing.is_retired(now));
        // A sale that was never looked at is a new one, which shuts nothing.
        let is_shut = |listing: &Arc<board::Listing>| match listing.was_read() {
            true => !listing.is_sellable(),
            false => listing.snapshot().is_some(),
        };
        self.redis_is_approved.load(Relaxed) && !listings.iter().any(is_shut)
    }

    /// Asks Redis whether it may sell any of the sales that it should; an error if none of them.
    pub async fn sells_something(&self) -> Result<(), ShopError> {
        let not_yet = ShopError::Unavailable {
            what: "redis is not approved yet: it is being rebuilt",
            retry_after: gate::RETRY_AFTER,
        };
        // The gate goes by what the rebuild loop has seen.
        if !self.redis.is_cluster() && !self.redis_is_approved.load(Relaxed) {
            return Err(not_yet);
        }
        let now = self.now();
        let mut listings = self.board.listings();
        listings.retain(|listing| !listing.is_retired(now));
        if listings.is_empty() {
            let approved = self.approved_processes().await?;
            let live = self.redis.processes().await?;
            if live.iter().all(|process| approved.contains(process)) {
                return Ok(());
            }
        }
        for some in listings.chunks(64) {
            let read = self.read_snapshots(some).await;
            if some
                .iter()
                .any(|listing| listing.was_read() && listing.is_sellable())
            {
                return Ok(());
            }
            read?;
        }
        Err(not_yet)
    }

    /// Asks each dependency; bounded to a second.
    pub async fn readiness(&self) -> Readiness {
        async fn within<T, E: std::fmt::Display>(
            asked: impl Future<Output = Result<T, E>>,
        ) -> Result<(), String> {
            match tokio::time::timeout(Duration::from_secs(1), asked).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("no answer within a second".to_owned()),
            }
        }
        let (postgres, redis, gate) = tokio::join!(
            within(sqlx::query("SELECT 1").execute(&self.postgres)),
            within(self.redis.ping()),
            within(self.sells_something()),
        );
        Readiness {
            postgres,
            redis,
            gate,
            loops: self.liveness.check(),
        }
    }
}
