//! The lab of one process: its arenas, storms and upkeep.

use crate::arena::{self, Arena};
use crate::definition::{Definition, Wanted};
use crate::error::{LabError, Result, within};
use crate::judgement::{self, Judgement, Judgements};
use crate::strategy::{Language, Need, Strategy, Words};
use crate::{
    lessons, limits::*, options::Options, real_shop, servers::Servers, storm::Storm, strategies,
    verdict,
};
use dashmap::DashMap;
use std::{sync::Arc, time::Duration};
use stores::sql::{rows, run};
use time::OffsetDateTime;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use web::{address::Address, address_limit::Limits};

/// How many buyers and orders of an arena may wait in memory to be written, outside of storms.
const MOST_UNSAVED: usize = 1_000;

/// How long the end of a process waits for an arena's tally to be written.
const LAST_TALLY: Duration = Duration::from_secs(2);
const UPKEEP_TIMEOUT: Duration = Duration::from_secs(10);

/// "flash lab": the lock under which arenas are counted before one more is made.
const COUNTING: i64 = 0x666c_6173_686c_6162;

/// The lab of one process.
pub struct Lab {
    pub servers: Arc<Servers>,
    pub theatre: lessons::Theatre,
    process: Uuid,
    /// The arenas that this process serves.
    open: DashMap<String, Arc<Arena>>,
    /// One opening at a time: two requests must not open the same arena twice.
    opening: tokio::sync::Mutex<()>,
    arenas: Limits,
    /// Of arenas, and on visitors' own servers.
    storms: Limits,
    pub judgements: Judgements,
    /// What the locks cost on these servers, once it has been measured.
    pub(crate) lock_costs: tokio::sync::Mutex<Option<Vec<crate::lock_costs::Cost>>>,
}

impl Wanted {
    /// The arena, or why there cannot be such a one.
    pub fn definition(&self) -> Result<Definition> {
        let unknown = || LabError::invalid("strategy", "there is no strategy of this name");
        let strategy = strategies::find(&self.strategy).ok_or_else(unknown)?;
        let limit = self.per_user_limit.unwrap_or(1);
        let work_ms = self.work_ms.map(|value| ("work_ms".to_owned(), value.into()));
        let options = self.options.clone().into_iter().chain(work_ms).collect();
        Ok(Definition {
            id: Uuid::new_v4().simple().to_string(),
            strategy,
            stock: within("stock", self.stock, MOST_STOCK)?,
            nodes: within("nodes", self.nodes.unwrap_or(1), MOST_NODES)?,
            per_user_limit: within("per_user_limit", limit, MOST_PER_USER)?,
            options: Options::read(strategy, &options)?,
            expires_at: OffsetDateTime::now_utc() + LONGEST_LIFE,
        })
    }
}

impl Lab {
    pub fn new(servers: Servers) -> Self {
        let servers = Arc::new(servers);
        Self {
            theatre: lessons::Theatre::new(servers.clone()),
            servers,
            process: Uuid::new_v4(),
            open: DashMap::new(),
            opening: tokio::sync::Mutex::default(),
            arenas: Limits::new(usize::MAX, Some(MOST_ARENAS_OF_ADDRESS)),
            storms: Limits::new(MOST_STORMS, Some(MOST_STORMS_OF_ADDRESS)),
            judgements: Judgements::default(),
            lock_costs: tokio::sync::Mutex::default(),
        }
    }

    /// Why this strategy cannot run here; `None` if it can.
    pub fn lacks(&self, strategy: &Strategy) -> Option<Words> {
        let mut needs = strategy.needs.iter();
        needs.find_map(|need| self.servers.lacks(*need))
    }

    /// Makes a fresh stock that only this strategy sells.
    pub async fn create(&self, wanted: Wanted) -> Result<Arc<Arena>> {
        self.create_for(None, wanted).await
    }

    /// The same for a visitor: `by` is their address, if addresses are limited.
    pub async fn create_for(&self, by: Option<Address>, wanted: Wanted) -> Result<Arc<Arena>> {
        let definition = wanted.definition()?;
        let loses_redis = definition.options.whole("redis_node_loss") > 0;
        let own_redis = || self.servers.lacks(Need::RedisNodes(1)).filter(|_| loses_redis);
        if let Some(why) = self.lacks(definition.strategy).or_else(own_redis) {
            return Err(LabError::StrategyUnavailable(why));
        }
        let share = self.arenas.take(by).map_err(|_| LabError::TooManyArenasOfAddress)?;
        self.store(&definition).await?;
        let servers = self.servers.clone();
        let arena = Arena::open(definition, servers, self.process, Some(share)).await?;
        self.open.insert(arena.definition().id.clone(), arena.clone());
        Ok(arena)
    }

    async fn store(&self, definition: &Definition) -> Result {
        let mut transaction =
            stores::postgres::Transaction::begin(&self.servers.upkeep, "BEGIN").await?;
        run(&mut *transaction, "SELECT pg_advisory_xact_lock($1)", (COUNTING,)).await?;
        let arenas = "SELECT FROM lab.arenas WHERE expires_at > now()";
        if run(&mut *transaction, arenas, ()).await? >= MOST_ARENAS {
            transaction.rollback().await?;
            return Err(LabError::TooManyArenas);
        }
        let Definition { id, strategy, stock, per_user_limit, expires_at, .. } = definition;
        let nodes = i32::try_from(definition.nodes).unwrap_or(1);
        let options = serde_json::to_string(&definition.options).unwrap_or_default();
        let arena = "INSERT INTO lab.arenas
                         (id, strategy, stock, nodes, per_user_limit, options, expires_at)
                     VALUES ($1, $2, $3, $4, $5, $6::text::jsonb, $7)";
        let values = (id, strategy.id, stock, nodes, per_user_limit, options, expires_at);
        run(&mut *transaction, arena, values).await?;
        let items = "INSERT INTO lab.stock (arena, item, remaining)
                     SELECT $1, unnest(ARRAY['thing', 'gift']), $2";
        run(&mut *transaction, items, (id, stock)).await?;
        transaction.commit().await?;
        Ok(())
    }

    /// The arena of this id, whichever process made it.
    pub async fn arena(&self, id: &str) -> Result<Arc<Arena>> {
        if !is_arena_id(id) {
            return Err(LabError::ArenaNotFound);
        }
        if let Some(arena) = self.known(id) {
            return Ok(arena);
        }
        let _one_at_a_time = self.opening.lock().await;
        if let Some(arena) = self.known(id) {
            return Ok(arena);
        }
        let definition = arena::load(&self.servers.upkeep, id).await?;
        let definition = definition.ok_or(LabError::ArenaNotFound)?;
        if let Some(why) = self.lacks(definition.strategy) {
            return Err(LabError::StrategyUnavailable(why));
        }
        let arena = Arena::open(definition, self.servers.clone(), self.process, None).await?;
        self.open.insert(id.to_owned(), arena.clone());
        Ok(arena)
    }

    /// Storms an arena for a visitor: `by` is their address, if addresses are limited.
    pub fn storm(&self, by: Option<Address>, arena: &Arc<Arena>, storm: Storm) -> Result {
        let share = self.storms.take(by).map_err(|_| LabError::TooManyStorms)?;
        storm.start(arena, Some(share))
    }

    /// Has a visitor's server judged: `by` is their address, if addresses are limited; `own_ports`
    /// are where this program listens, and a pooler of its.
    pub fn judge(
        &self,
        by: Option<Address>,
        wanted: &judgement::Wanted,
        own_ports: &[u16],
    ) -> Result<Arc<Judgement>> {
        let closed = [&*self.servers.ports(), own_ports].concat();
        let (config, port) = wanted.config(&closed)?;
        let share = self.storms.take(by).map_err(|_| LabError::TooManyStorms)?;
        self.judgements.start(config, port, share)
    }

    fn known(&self, id: &str) -> Option<Arc<Arena>> {
        let arena = self.open.get(id)?.clone();
        (!arena.is_closed() && arena.definition().expires_at > OffsetDateTime::now_utc())
            .then_some(arena)
    }

    pub async fn verdict(&self, id: &str, language: Language) -> Result<verdict::Verdict> {
        verdict::judge(&self.arena(id).await?, language).await
    }

    /// Removes an arena and all that belongs to it.
    pub async fn delete(&self, id: &str) -> Result {
        if !is_arena_id(id) {
            return Err(LabError::ArenaNotFound);
        }
        let open = self.open.get(id).map(|arena| arena.clone());
        if let Some(arena) = open {
            arena.close().await;
        }
        // The row goes last: as long as it is there, what belongs to it is found.
        let upkeep = &self.servers.upkeep;
        real_shop::drop_schema(upkeep, id).await?;
        let named = "WITH locks AS (DELETE FROM lab.locks WHERE starts_with(name, $1))
                     DELETE FROM lab.fenced WHERE starts_with(name, $1)";
        run(upkeep, named, (self.servers.prefix_of(id),)).await?;
        self.servers.sweep(id).await?;
        let deleted = run(upkeep, "DELETE FROM lab.arenas WHERE id = $1", (id,)).await?;
        // Somebody may just have opened it again.
        self.open.remove_if(id, |_, arena| arena.is_closed());
        if deleted == 0 { Err(LabError::ArenaNotFound) } else { Ok(()) }
    }

    /// Removes the arenas that are open here.
    pub async fn delete_open(&self) {
        for arena in self.served() {
            let delete = self.delete(&arena.definition().id);
            attempt("removing an arena", UPKEEP_TIMEOUT, delete).await;
        }
    }

    /// Answers other processes' verdicts, lets go of what is gone, removes what is too old; for
    /// ever.
    pub async fn upkeep(self: Arc<Self>, stop: CancellationToken) {
        for round in 1_u64.. {
            if timeout(Duration::from_millis(200), stop.cancelled()).await.is_ok() {
                return;
            }
            if !self.open.is_empty() {
                attempt("answering other processes", UPKEEP_TIMEOUT, self.answer_others()).await;
                attempt("saving tallies", UPKEEP_TIMEOUT, self.save_tallies()).await;
            }
            if round.is_multiple_of(25) {
                self.servers.stop_idle().await;
                attempt("removing old arenas", UPKEEP_TIMEOUT, self.clean_up()).await;
            }
        }
    }

    async fn answer_others(&self) -> Result {
        let questions =
            "SELECT a.id, a.asked FROM lab.arenas a JOIN lab.tallies t ON t.arena = a.id
                         WHERE t.process = $1 AND t.answered < a.asked";
        let questions: Vec<(String, i64)> =
            rows(&self.servers.upkeep, questions, (self.process,)).await?;
        let mut outcome = Ok(());
        for (id, asked) in questions {
            let Some(arena) = self.open.get(&id).map(|arena| arena.clone()) else {
                continue;
            };
            // An arena that is not quiet answers when it is; the caller waits a while.
            if timeout(Duration::from_millis(100), arena.settle()).await.is_ok() {
                outcome = arena.save(Some(asked)).await.and(outcome);
            }
        }
        Ok(outcome?)
    }

    /// The arenas that this process serves.
    fn served(&self) -> Vec<Arc<Arena>> {
        self.open.iter().map(|entry| entry.clone()).collect()
    }

    /// Writes what arenas have counted, so that it does not pile up in memory.
    async fn save_tallies(&self) -> Result {
        let mut outcome = Ok(());
        for arena in self.served() {
            // Not in the middle of a storm, which is being measured and has its own bound.
            if !arena.storm.is_running() && arena.tally.unsaved() > MOST_UNSAVED {
                // One that another process has deleted must not hold up the others.
                outcome = arena.save(None).await.and(outcome);
            }
        }
        Ok(outcome?)
    }

    /// Deletes arenas that are too old; what nodes here have written after another process had
    /// deleted theirs; the schema of one that was deleted while a node was just being opened.
    async fn clean_up(&self) -> Result {
        let gone = "
            SELECT id FROM lab.arenas WHERE expires_at <= now()
            UNION SELECT id FROM unnest($1::text[]) served (id)
             WHERE NOT EXISTS (SELECT FROM lab.arenas WHERE arenas.id = served.id)
            UNION SELECT substr(nspname::text, 5) FROM pg_namespace WHERE nspname ~ $2
             AND NOT EXISTS (SELECT FROM lab.arenas WHERE id = substr(nspname::text, 5))";
        let served: Vec<String> = self.open.iter().map(|arena| arena.key().clone()).collect();
        let gone: Vec<(String,)> =
            rows(&self.servers.upkeep, gone, (served, real_shop::SCHEMAS)).await?;
        let mut outcome = Ok(());
        for (id,) in gone {
            match self.delete(&id).await {
                Ok(()) | Err(LabError::ArenaNotFound) => {}
                failed => outcome = failed,
            }
        }
        outcome
    }

    /// Ends every node of this process. The arenas stay: another process may serve them.
    pub async fn close(&self) {
        self.judgements.close();
        let arenas = self.served();
        self.open.clear();
        let ended = arenas.into_iter().map(|arena| async move {
            arena.close().await;
            // This process will have nothing to add to any later verdict: none waits for it in
            // vain.
            let last = async {
                arena.settle().await;
                Ok(arena.save(Some(i64::MAX)).await?)
            };
            attempt("the last tally of an arena", LAST_TALLY, last).await;
        });
        futures_util::future::join_all(ended).await;
        self.servers.close().await;
    }
}

/// Does this within a time limit. What fails is done again later, or is not needed any more.
async fn attempt(what: &str, limit: Duration, work: impl Future<Output = Result>) {
    match timeout(limit, work).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "{what} failed"),
        Err(_) => tracing::debug!("{what} took too long"),
    }
}

/// Ids are generated: 32 hexadecimal digits. Nothing else gets near a key or a name of a schema.
pub fn is_arena_id(id: &str) -> bool {
    id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_of_hexadecimal_digits() {
        assert!(is_arena_id("0123456789abcdef0123456789abcdef"));
        for bad in ["", "1", "0123456789ABCDEF0123456789ABCDEF", "0123456789abcdef0123456789abcde;"]
        {
            assert!(!is_arena_id(bad), "{bad}");
        }
    }
}
