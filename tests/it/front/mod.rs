//! Several processes of the program behind a proxy that people really use: nginx and Caddy, with the files of
//! `deploy/`, in which only the addresses are replaced.

mod addresses;
mod deafness;
mod rolling;
mod streams;

use crate::{
    cli::{Home, Program, settings_of},
    support::{
        Database, Servers,
        app::{ADMIN_TOKEN, PATIENCE, Reply, eventually},
        proxy::free_port,
    },
};
use flash_sale::{auth::TokenSigner, domain::UserId};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use time::OffsetDateTime;

/// Which proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Nginx,
    Caddy,
}

impl Kind {
    fn program(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Caddy => "caddy",
        }
    }

    /// The program with its file of `deploy/`, as it is but for the addresses.
    fn command(self, folder: &Path, port: u16, instances: &[SocketAddr]) -> Command {
        let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy");
        let read = |name: &str| {
            fs::read_to_string(deploy.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
        };
        let mut command = Command::new(self.program());
        match self {
            Self::Nginx => {
                let conf = nginx_conf(&read("nginx.conf"), port, instances);
                fs::write(folder.join("nginx.conf"), conf).expect("a file");
                command.args(["-e", "stderr", "-g", "daemon off;", "-c", "nginx.conf"]);
                command.arg("-p").arg(folder);
            }
            Self::Caddy => {
                fs::write(folder.join("Caddyfile"), read("Caddyfile")).expect("a file");
                let list: Vec<String> = instances.iter().map(SocketAddr::to_string).collect();
                command
                    .args(["run", "--adapter", "caddyfile", "--config"])
                    .arg(folder.join("Caddyfile"))
                    .env("PROXY_PORT", port.to_string())
                    .env("INSTANCES", list.join(" "))
                    .env("HOME", folder)
                    .env("XDG_DATA_HOME", folder)
                    .env("XDG_CONFIG_HOME", folder);
            }
        }
        command
    }
}

/// The file with these addresses instead of its own; a panic if it does not have what is replaced.
fn nginx_conf(text: &str, port: u16, instances: &[SocketAddr]) -> String {
    let (mut replaced, mut listens) = (0, 0);
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let word = line.split_whitespace().next();
        match word {
            Some("server") if line.contains("app-") => {
                if replaced == 0 {
                    let rest = line.split_once(":8080").expect("a port").1;
                    lines.extend(
                        instances
                            .iter()
                            .map(|address| format!("server {address}{rest}")),
                    );
                }
                replaced += 1;
            }
            Some("listen") => {
                listens += 1;
                lines.push(format!("listen 127.0.0.1:{port};"));
            }
            _ => lines.push(line.to_owned()),
        }
    }
    assert!(
        replaced > 1 && listens == 1,
        "deploy/nginx.conf has changed"
    );
    lines.join("\n")
}

/// A running proxy.
struct Proxy {
    child: Child,
    base: String,
    log: PathBuf,
}

impl Proxy {
    /// What it has written about errors.
    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    async fn start(kind: Kind, home: &Home, instances: &[SocketAddr]) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let folder = home
            .0
            .join(format!("proxy-{}", NUMBER.fetch_add(1, Relaxed)));
        fs::create_dir(&folder).expect("a folder");
        let port = free_port();
        let log = folder.join("stderr");
        let child = kind
            .command(&folder, port, instances)
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).expect("a file"))
            .spawn()
            .unwrap_or_else(|error| {
                panic!(
                    "{} ({error}): scripts/setup.sh test installs it",
                    kind.program()
                )
            });
        let base = format!("http://127.0.0.1:{port}");
        let proxy = Self { child, base, log };
        let client = reqwest::Client::new();
        eventually("the proxy has an instance to ask", async || {
            let asked = client.get(proxy.url("/routable")).send().await;
            asked.is_ok_and(|reply| reply.status() == 200).then_some(())
        })
        .await;
        proxy
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Not SIGKILL: nginx' master has to end its workers.
        let pid = i32::try_from(self.child.id()).expect("a pid");
        kill(Pid::from_raw(pid), Signal::SIGTERM).ok();
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A deployment of processes, each on a port of its own, which it keeps when it is replaced.
struct Deployment {
    home: Home,
    database: Database,
    settings: Vec<(&'static str, String)>,
    tokens: Arc<TokenSigner>,
    ports: Vec<u16>,
    instances: Vec<Option<Program>>,
}

impl Deployment {
    async fn start(size: usize, more: &[(&'static str, &str)]) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let servers = Servers::shared().await;
        let database = servers.database().await;
        let prefix = format!("front{}:", NUMBER.fetch_add(1, Relaxed));
        let own = settings_of(servers, &database, &prefix);
        let secret = &own.iter().find(|(name, _)| *name == "TOKEN_SECRET");
        let secret = secret.expect("the secret is set").1.clone();
        let mut settings = own.to_vec();
        settings.extend(
            more.iter()
                .map(|(name, value)| (*name, (*value).to_owned())),
        );
        let mut deployment = Self {
            home: Home::new(),
            database,
            settings,
            tokens: Arc::new(TokenSigner::new(secret.as_bytes()).expect("long enough")),
            ports: (0..size).map(|_| free_port()).collect(),
            instances: (0..size).map(|_| None).collect(),
        };
        for number in 0..size {
            deployment.start_instance(number).await;
        }
        deployment
    }

    async fn start_instance(&mut self, number: usize) {
        let mut command = self.home.command(&["serve"]);
        command
            .envs(self.settings.iter().map(|(name, value)| (name, value)))
            .env("LISTEN_ADDR", self.address(number).to_string());
        self.instances[number] = Some(Program::serve_by(&self.home, command).await);
    }

    fn address(&self, number: usize) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.ports[number]))
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        (0..self.ports.len()).map(|one| self.address(one)).collect()
    }

    /// `kill -9`.
    fn kill(&mut self, number: usize) {
        self.instances[number] = None;
    }

    /// Creates a sale at the first instance.
    async fn sale(&self, stock: i64) -> String {
        let body = json!({"title": "a thing", "price_cents": 100, "stock": stock});
        let reply = self.admin("/api/v1/admin/sales", Some(body)).await;
        assert_eq!(reply.status, 201, "{reply:?}");
        reply.text("id").to_owned()
    }

    /// An operator's POST at the first instance that runs; without a body, for what takes none.
    async fn admin(&self, path: &str, body: Option<Value>) -> Reply {
        let running = self.instances.iter().flatten().next();
        let url = running.expect("an instance runs").url(path);
        let mut request = reqwest::Client::new().post(url).bearer_auth(ADMIN_TOKEN);
        if let Some(body) = body {
            request = request.json(&body);
        }
        Reply::of(request.send().await.expect("an answer")).await
    }

    fn token(&self) -> String {
        let expires_at = OffsetDateTime::now_utc() + time::Duration::HOUR;
        self.tokens.mint(UserId::random(), "tester", expires_at)
    }

    /// The program's own verdict, once nothing is under way; it must be a good one.
    async fn assert_sound(&self, sale: &str) -> Value {
        let url = |program: &Program| program.url(&format!("/api/v1/admin/sales/{sale}/audit"));
        let running = self.instances.iter().flatten().next();
        let url = url(running.expect("an instance runs"));
        let client = reqwest::Client::new();
        let audit = eventually("the sale is quiescent", async || {
            let asked = client.get(&url).bearer_auth(ADMIN_TOKEN).send().await;
            let audit: Value = asked.ok()?.json().await.ok()?;
            (audit["quiescent"] == true).then_some(audit)
        })
        .await;
        assert!(
            audit["ok"] == true && audit["conserved"] == true,
            "{audit:#}"
        );
        audit
    }

    /// Ends what still runs, in order.
    async fn finish(self) {
        let going = self.instances.into_iter().flatten();
        // The longest notice of these tests, and 10 s.
        let limit = Duration::from_secs(14);
        futures_util::future::join_all(going.map(|one| one.terminate_within(limit))).await;
        self.database.drop().await;
    }
}

/// Waits for something that comes from a proxy.
async fn in_time<T>(what: &str, waited: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, waited)
        .await
        .unwrap_or_else(|_| panic!("{what} did not come in {PATIENCE:?}"))
}
