//! A deployment: Redis, Postgres, instances, and a proxy between each instance and each store.

use crate::instance::{Instance, Role, Settings};
use crate::report::say;
use crate::support::stores::{Error, Result, Stores, connect};
use crate::support::{launch::Folder, prelude::*};
use crate::support::{postgres_servers::options_of, redis_servers::RedisProcess};
use embedded::{PostgresServer, PostgresTuning};
use std::{env, sync::Once};

/// How the folders of deployments are called. Short, because the paths of unix sockets are.
pub const PREFIX: &str = "fs-chaos-";

pub struct Cluster {
    // Dropped in this order: instances before what they use, the folder last.
    pub instances: Vec<Instance>,
    pub redis_proxies: Vec<Proxy>,
    pub postgres_proxies: Vec<Proxy>,
    /// To the payment provider, and from it.
    pub payment_proxies: Vec<Proxy>,
    pub redis: RedisProcess,
    pub postgres: PostgresServer,
    pub primary: Arc<Mutex<PgConnectOptions>>,
    pub folder: Folder,
}

impl Cluster {
    pub async fn start(roles: &[Role], settings: Settings) -> Result<Self> {
        let folder = Folder::create(&env::temp_dir(), PREFIX)?;
        let tuning = PostgresTuning { max_connections: 200, ..PostgresTuning::default() };
        let (redis_folder, postgres_folder) = (folder.0.join("r0"), folder.0.join("p0"));
        let (redis, postgres) = tokio::join!(
            start_redis(&redis_folder, free_port(), &[]),
            PostgresServer::start(&postgres_folder, tuning),
        );
        let (redis, postgres) = (redis?, postgres?);
        let options = options_of(postgres.address());
        let mut cluster = Self {
            instances: Vec::new(),
            redis_proxies: Vec::new(),
            postgres_proxies: Vec::new(),
            payment_proxies: Vec::new(),
            redis,
            postgres,
            primary: Arc::new(Mutex::new(options.clone())),
            folder,
        };
        // The schema is there before the first instance: they do not wait for each other.
        let pool = flash_sale::postgres::pool(options, 1);
        flash_sale::postgres::migrate(&pool).await?;
        let version: String = sqlx::query_scalar("SELECT version()").fetch_one(&pool).await?;
        static SAID: Once = Once::new();
        SAID.call_once(|| say(&version));
        pool.close().await;
        for role in roles {
            cluster.add_instance(role, settings.clone()).await?;
        }
        for instance in &mut cluster.instances {
            instance.start(&[])?;
        }
        cluster.until_serving().await?;
        Ok(cluster)
    }

    async fn add_instance(&mut self, role: Role, more: Settings) -> Result {
        let number = u8::try_from(self.instances.len()).map_err(|_| "at most 255 instances")?;
        let redis = Proxy::start(self.redis.target()).await;
        let postgres = Proxy::start(Address::of_postgres(self.postgres.address())).await;
        let database =
            format!("postgres://flash_sale@{}/flash_sale?sslmode=disable", postgres.address);
        let own = [
            ("REDIS_URL", format!("redis://{}", redis.address)),
            ("DATABASE_URL", database),
            ("TOKEN_SECRET", SECRET.to_owned()),
            ("ADMIN_TOKEN", ADMIN_TOKEN.to_owned()),
            ("RATE_LIMIT", "off".to_owned()),
            ("RUST_LOG", "info".to_owned()),
        ];
        let settings = own.into_iter().chain(more).collect();
        self.instances.push(Instance::new(number, role, self.folder.0.clone(), settings));
        self.redis_proxies.push(redis);
        self.postgres_proxies.push(postgres);
        Ok(())
    }

    pub fn proxies(&self) -> impl Iterator<Item = &Proxy> {
        self.redis_proxies.iter().chain(&self.postgres_proxies).chain(&self.payment_proxies)
    }

    pub async fn refuse_postgres(&self, refuses: bool) {
        for proxy in &self.postgres_proxies {
            proxy.set(if refuses { Fault::Refuse } else { Fault::None }).await;
            if refuses {
                proxy.cut();
            }
        }
    }

    pub async fn until_postgres_is_back(&self) -> Result {
        // The death has to be noticed before readiness means the new process.
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(self.postgres.wait_ready().await?)
    }

    pub fn serving(&self) -> Vec<SocketAddr> {
        self.instances.iter().filter(|one| one.serves()).map(|one| one.address).collect()
    }

    /// Lets instances and network work again. Servers of stores are the fault's own to bring back.
    pub async fn heal(&mut self) -> Result {
        for proxy in self.proxies() {
            proxy.set(Fault::None).await;
        }
        for instance in &mut self.instances {
            instance.signal(Signal::SIGCONT);
            instance.start(&[])?;
        }
        Ok(())
    }

    async fn until_serving(&mut self) -> Result {
        let limit = Duration::from_secs(120);
        let (client, deadline) = (client(), Instant::now() + limit);
        for instance in self.instances.iter_mut().filter(|one| one.serves()) {
            let ready = poll(deadline - Instant::now(), 10, async || {
                let asked = ask(&client, "GET", format!("http://{}/readyz", instance.address));
                let answer = asked.within(Duration::from_secs(2)).send().await;
                instance.start(&[])?;
                Ok::<_, Error>(answer.is_ok_and(|answer| answer.status == 200).then_some(()))
            });
            ready.await?.ok_or_else(|| {
                let (number, end) = (instance.number, tail(&instance.log(), 20));
                format!("instance {number} is not ready after {limit:?}; its log ends:\n{end}")
            })?;
        }
        Ok(())
    }
}

impl Stores for Cluster {
    async fn postgres(&self) -> Result<PgConnection> {
        connect(&self.primary).await
    }

    async fn redis(&self, _key: &str) -> Result<MultiplexedConnection> {
        Ok(self.redis.connection().await?)
    }

    async fn is_approved(&self) -> Result<bool> {
        let approved: Option<String> = sqlx::query_scalar("SELECT run_id FROM redis_incarnation")
            .fetch_optional(&mut self.postgres().await?)
            .await?;
        let run_id = self.redis.info("server", "run_id").await;
        // A replica that was promoted has more than the run id in its name.
        let approved = approved.as_deref().and_then(|one| one.split('+').next());
        Ok(run_id.is_some() && approved == run_id.as_deref())
    }
}

pub async fn start_redis(folder: &Path, port: u16, extra: &[&str]) -> Result<RedisProcess> {
    let ordinary = ["--appendfsync", "always", "--repl-diskless-sync-delay", "0"];
    let redis = RedisProcess::start(folder, port, &[&ordinary, extra].concat());
    redis.ready().await?;
    Ok(redis)
}
