//! The program as a stranger runs it: its commands, its exit codes, its children, and what is left of
//! a sale after `kill -9`.

use crate::support::{
    Database, Servers,
    app::{ADMIN_TOKEN, PATIENCE, all_at_once, eventually},
};
use flash_sale::{auth::TokenSigner, domain::UserId};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use reqwest::StatusCode;
use serde_json::{Value, json};
use std::{
    collections::HashSet,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use time::OffsetDateTime;
use tokio::{sync::mpsc, task::JoinHandle};

const BINARY: &str = env!("CARGO_BIN_EXE_flash-sale");
pub const SECRET: &str = "a secret of at least thirty-two bytes";

/// A folder in which programs run, with a data folder inside; removed at the end, together with
/// whatever still runs in it.
pub struct Home(pub PathBuf);

impl Home {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "fs-cli-{}-{}",
            std::process::id(),
            NUMBER.fetch_add(1, Relaxed)
        );
        let home = std::env::temp_dir().join(name);
        fs::create_dir(&home).expect("a folder");
        Self(home)
    }

    fn data(&self) -> PathBuf {
        self.0.join("data")
    }

    /// The program with these arguments and nothing of this process' settings.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command
            .args(arguments)
            .current_dir(&self.0)
            .env_clear()
            .stdin(Stdio::null());
        for inherited in ["PATH", "HOME", "TMPDIR"] {
            if let Some(value) = std::env::var_os(inherited) {
                command.env(inherited, value);
            }
        }
        command
            .env("DATA_DIR", self.data())
            .env("LISTEN_ADDR", "127.0.0.1:0")
            .env("RATE_LIMIT", "off");
        command
    }

    /// Runs a command to its end.
    async fn run(&self, arguments: &[&str]) -> Ended {
        self.finish(self.command(arguments)).await
    }

    pub async fn finish(&self, command: Command) -> Ended {
        let mut program = Program::spawn(self, command);
        let mut stdout = String::new();
        while let Ok(Some(line)) = tokio::time::timeout(PATIENCE, program.lines.recv()).await {
            stdout += &line;
            stdout.push('\n');
        }
        Ended {
            code: program.end().await,
            stdout,
            stderr: program.stderr(),
        }
    }

    /// The verdicts of `audit --json`, and its exit code.
    async fn audit(&self, more: &[&str]) -> (i32, Vec<Value>) {
        let ended = self.run(&[&["audit", "--json"], more].concat()).await;
        let audits = serde_json::from_str(&ended.stdout).unwrap_or_else(|error| {
            panic!("not JSON ({error}): {} {}", ended.stdout, ended.stderr)
        });
        (ended.code.expect("an exit code"), audits)
    }

    /// The server that the program runs as a child.
    pub fn child(&self, server: &str) -> Option<Pid> {
        let pid = fs::read_to_string(self.data().join(format!("{server}.pid"))).ok()?;
        pid.trim().parse().ok().map(Pid::from_raw)
    }

    /// Everything that runs in this folder: the program, its children, and theirs.
    fn processes(&self) -> Vec<Pid> {
        let mut folders = vec![self.0.clone()];
        // Run by root, the cluster may live where its user can enter; see `embedded/postgres.rs`.
        folders.extend(fs::read_link(self.data().join("pg")));
        let Ok(entries) = fs::read_dir("/proc") else {
            // Not Linux: the children at least.
            return ["pg", "redis"]
                .iter()
                .filter_map(|name| self.child(name))
                .filter(|pid| is_running(*pid))
                .collect();
        };
        entries
            .flatten()
            .filter_map(|entry| {
                let pid = entry.file_name().to_str()?.parse().ok()?;
                let works_in = fs::read_link(entry.path().join("cwd")).ok()?;
                folders
                    .iter()
                    .any(|folder| works_in.starts_with(folder))
                    .then_some(Pid::from_raw(pid))
            })
            .collect()
    }

    async fn until_nothing_runs(&self) {
        wait_for!(self.processes().is_empty());
    }
}

fn is_running(pid: Pid) -> bool {
    kill(pid, None).is_ok()
}

impl Drop for Home {
    fn drop(&mut self) {
        // Normally nothing runs any more. After a panic the children are ending with their parent.
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.processes().is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        for pid in self.processes() {
            let _ = kill(pid, Signal::SIGKILL);
        }
        if let Some(home) = fs::read_link(self.data().join("pg"))
            .ok()
            .and_then(|pg| pg.parent().map(Path::to_path_buf))
        {
            let _ = fs::remove_dir_all(&home);
            // Only if it is empty now.
            home.parent().map(fs::remove_dir);
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A program that this test has started; killed when dropped.
pub struct Program {
    child: Child,
    lines: mpsc::UnboundedReceiver<String>,
    stderr: PathBuf,
    /// Where it said it listens; empty for a command.
    pub base: String,
}

impl Program {
    pub fn spawn(home: &Home, command: Command) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let stderr = home
            .0
            .join(format!("stderr-{}", NUMBER.fetch_add(1, Relaxed)));
        let file = fs::File::create(&stderr).expect("a file for stderr");
        Self::spawn_logging_to(file.into(), stderr, command)
    }

    fn spawn_logging_to(log: Stdio, stderr: PathBuf, mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the program starts");
        let stdout = BufReader::new(child.stdout.take().expect("stdout"));
        let (line, lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            stdout
                .lines()
                .map_while(Result::ok)
                .try_for_each(|text| line.send(text).ok())
        });
        Self {
            child,
            lines,
            stderr,
            base: String::new(),
        }
    }

    /// Starts a server and waits for its one line.
    pub async fn serve(home: &Home, arguments: &[&str], settings: &[(&str, &str)]) -> Self {
        let mut command = home.command(&[&["serve"], arguments].concat());
        command.envs(settings.iter().copied());
        Self::serve_by(home, command).await
    }

    /// The same for a command that starts the server in its own way.
    pub async fn serve_by(home: &Home, command: Command) -> Self {
        Self::spawn(home, command).ready().await
    }

    /// The same with its log somewhere else, which the test cannot read.
    pub async fn serve_logging_to(log: Stdio, command: Command) -> Self {
        let nowhere = PathBuf::from("/dev/null");
        Self::spawn_logging_to(log, nowhere, command).ready().await
    }

    async fn ready(mut self) -> Self {
        let line = self.line().await;
        let address = line.strip_prefix("flash-sale ready on ");
        self.base = address
            .unwrap_or_else(|| panic!("not the ready line: {line}"))
            .to_owned();
        self
    }

    /// The next line on stdout.
    async fn line(&mut self) -> String {
        let line = tokio::time::timeout(PATIENCE, self.lines.recv()).await;
        line.ok()
            .flatten()
            .unwrap_or_else(|| panic!("no line on stdout; stderr: {}", self.stderr()))
    }

    pub fn stderr(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a pid");
        kill(Pid::from_raw(pid), signal).expect("the program still runs");
    }

    /// Waits for its end; its exit code, or `None` if a signal ended it.
    pub async fn end(&mut self) -> Option<i32> {
        let status = eventually("the program ends", async || {
            self.child.try_wait().expect("wait")
        })
        .await;
        status.code()
    }

    /// Ends it as a service manager does, which it has 10 s for.
    pub async fn terminate(self) {
        self.terminate_within(Duration::from_secs(10)).await;
    }

    /// The same for one that was told to serve on for a while.
    pub async fn terminate_within(mut self, limit: Duration) {
        let began = Instant::now();
        self.signal(Signal::SIGTERM);
        let code = self.end().await;
        assert_eq!(code, Some(0), "after SIGTERM; stderr: {}", self.stderr());
        assert!(
            began.elapsed() < limit,
            "it took {:?} to stop",
            began.elapsed()
        );
        let more = self.lines.recv().await;
        assert_eq!(more, None, "there is one line on stdout");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let stderr = self.stderr();
            let lines: Vec<&str> = stderr.lines().collect();
            let last = lines[lines.len().saturating_sub(40)..].join("\n");
            eprintln!(
                "{:?}, which has said at last:\n{last}",
                self.child.try_wait()
            );
        }
        // Once it has been waited for, this does nothing and reports that.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a program needs to know to be an instance on these servers.
pub fn settings_of(
    servers: &Servers,
    database: &Database,
    prefix: &str,
) -> [(&'static str, String); 5] {
    let address = servers.postgres.address();
    let socket = address.socket_dir.to_str().expect("text");
    let database_url = format!(
        "postgres://{}@localhost/{}?host={socket}&port={}",
        address.user, database.name, address.port
    );
    [
        ("DATABASE_URL", database_url),
        ("REDIS_URL", servers.redis.url()),
        ("REDIS_PREFIX", prefix.to_owned()),
        ("TOKEN_SECRET", SECRET.to_owned()),
        ("ADMIN_TOKEN", ADMIN_TOKEN.to_owned()),
    ]
}

/// How a command ended.
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    #[track_caller]
    pub fn assert_done(&self) -> &Self {
        assert_eq!(
            self.code,
            Some(0),
            "stdout: {} stderr: {}",
            self.stdout,
            self.stderr
        );
        self
    }

    /// Could not be done, for a reason that these words name in one line that is not a log or a panic.
    #[track_caller]
    pub fn assert_refused(&self, words: &[&str]) {
        assert_eq!(
            self.code,
            Some(2),
            "stdout: {} stderr: {}",
            self.stdout,
            self.stderr
        );
        assert_eq!(self.stdout, "");
        let line = self
            .stderr
            .lines()
            .find(|line| line.starts_with("flash-sale: "));
        let line = line.unwrap_or_else(|| panic!("no clear line in: {}", self.stderr));
        for words in words {
            assert!(line.contains(words), "not {words:?} in: {line}");
        }
    }
}

/// An order that was answered 202, and the token of its owner.
pub type Bought = (String, String);

pub type Shared<T> = Arc<Mutex<Vec<T>>>;

/// How people buy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Everybody as fast as they can, and asks once.
    Once,
    /// Everybody asks until there is an answer, and the next one takes a breath, so that the rush
    /// lasts.
    Patient,
}

/// A crowd that buys one unit each, some at a time, and notes what it was promised.
pub struct Crowd {
    bought: Shared<Bought>,
    /// Buyers who asked once and got no answer or 503.
    unanswered: Shared<String>,
    enough: Arc<AtomicBool>,
    buyers: Vec<JoinHandle<()>>,
}

impl Crowd {
    pub fn start(base: &str, sale: &str, tokens: Vec<String>, manner: Manner) -> Self {
        const AT_ONCE: usize = 200;
        const BREATH: Duration = Duration::from_millis(100);
        const BEFORE_A_RETRY: Duration = Duration::from_millis(20);
        let url = format!("{base}/api/v1/sales/{sale}/orders");
        let client = reqwest::Client::new();
        let (tokens, next) = (Arc::new(tokens), Arc::new(AtomicUsize::new(0)));
        let mut crowd = Self {
            bought: Shared::default(),
            unanswered: Shared::default(),
            enough: Arc::default(),
            buyers: Vec::new(),
        };
        for _ in 0..AT_ONCE {
            let (url, client) = (url.clone(), client.clone());
            let (tokens, next) = (tokens.clone(), next.clone());
            let (bought, unanswered) = (crowd.bought.clone(), crowd.unanswered.clone());
            let enough = crowd.enough.clone();
            crowd.buyers.push(tokio::spawn(async move {
                while !enough.load(Relaxed)
                    && let Some(token) = tokens.get(next.fetch_add(1, Relaxed))
                {
                    loop {
                        if let Some(order) = buy(&client, &url, token).await {
                            bought.lock().expect("a list").push((order, token.clone()));
                            break;
                        }
                        if manner == Manner::Once {
                            unanswered.lock().expect("a list").push(token.clone());
                            break;
                        }
                        tokio::time::sleep(BEFORE_A_RETRY).await;
                    }
                    if manner == Manner::Patient {
                        tokio::time::sleep(BREATH).await;
                    }
                }
            }));
        }
        crowd
    }

    pub fn count(&self) -> usize {
        self.bought.lock().expect("a list").len()
    }

    pub async fn until(&self, count: usize) {
        wait_for!(self.count() >= count);
    }

    /// Nobody new comes.
    pub fn no_more(&self) {
        self.enough.store(true, Relaxed);
    }

    /// Waits until all have asked. What was promised, and who got no answer.
    pub async fn leave(self) -> (Vec<Bought>, Vec<String>) {
        for buyer in self.buyers {
            buyer.await.expect("no panic");
        }
        let bought = std::mem::take(&mut *self.bought.lock().expect("a list"));
        let unanswered = std::mem::take(&mut *self.unanswered.lock().expect("a list"));
        (bought, unanswered)
    }
}

/// One purchase: the order that it made or had made, or `None` if nobody answered or with 503.
async fn buy(client: &reqwest::Client, url: &str, token: &str) -> Option<String> {
    let response = client.post(url).bearer_auth(token).send().await.ok()?;
    let status = response.status();
    let body: Value = response.json().await.ok()?;
    match (status, body["code"].as_str()) {
        (StatusCode::ACCEPTED, None) => {}
        // Accepted before; the answer was lost on its way.
        (StatusCode::CONFLICT, Some("already_ordered")) => {}
        (StatusCode::SERVICE_UNAVAILABLE, Some("unavailable")) => return None,
        _ => panic!("{status}: {body:#}"),
    }
    Some(body["order_id"].as_str().expect("an order id").to_owned())
}

/// Everybody who was promised an order has it, and it is a row.
pub async fn assert_kept(program: &Program, bought: &[Bought]) {
    let client = reqwest::Client::new();
    for some in bought.chunks(200) {
        all_at_once(some.iter().cloned().map(|(order, token)| {
            let (client, url) = (
                client.clone(),
                program.url(&format!("/api/v1/orders/{order}")),
            );
            async move {
                let deadline = Instant::now() + PATIENCE;
                loop {
                    let response = client
                        .get(&url)
                        .bearer_auth(&token)
                        .send()
                        .await
                        .expect("an answer");
                    assert_eq!(response.status(), StatusCode::OK, "order {order} is lost");
                    let body: Value = response.json().await.expect("JSON");
                    assert_eq!(body["order_id"], order.as_str());
                    match body["status"].as_str() {
                        Some("pending_payment") => return,
                        Some("queued") if Instant::now() < deadline => {
                            tokio::time::sleep(Duration::from_millis(20)).await;
                        }
                        _ => panic!("order {order} ended as {body:#}"),
                    }
                }
            }
        }))
        .await;
    }
    let orders: HashSet<&str> = bought.iter().map(|(order, _)| order.as_str()).collect();
    assert_eq!(
        orders.len(),
        bought.len(),
        "no two people have the same order"
    );
}

pub async fn get(program: &Program, path: &str) -> (StatusCode, Value) {
    let response = reqwest::get(program.url(path)).await.expect("an answer");
    let status = response.status();
    (status, response.json().await.expect("JSON"))
}

/// The JSON of an answer.
pub async fn json_of(request: reqwest::RequestBuilder) -> Value {
    let answer = request.send().await.expect("an answer");
    answer.json().await.expect("JSON")
}

async fn sales(program: &Program) -> Vec<Value> {
    let (status, body) = get(program, "/api/v1/sales").await;
    assert_eq!(status, StatusCode::OK);
    body["sales"].as_array().expect("sales").clone()
}

/// The demo sale that is there for loads.
pub async fn sale_for_loads(program: &Program) -> String {
    let sales = sales(program).await;
    let sale = sales
        .iter()
        .find(|sale| sale["stock"] == 100_000)
        .expect("the sale for loads");
    sale["id"].as_str().expect("an id").to_owned()
}

/// Tokens of so many users, minted by the program.
pub async fn tokens(home: &Home, users: usize) -> Vec<String> {
    let file = home.0.join("tokens.json");
    let users = users.to_string();
    let out = file.to_str().expect("text");
    home.run(&["tokens", "--users", &users, "--out", out])
        .await
        .assert_done();
    let entries: Vec<Value> =
        serde_json::from_slice(&fs::read(&file).expect("the tokens")).expect("valid JSON");
    entries
        .iter()
        .map(|entry| entry["token"].as_str().expect("a token").to_owned())
        .collect()
}

/// What `audit --json` says of this sale, which must be in order and at rest.
pub async fn assert_sound(home: &Home, sale: &str) -> Value {
    let (code, audits) = home.audit(&[]).await;
    assert_eq!(code, 0, "{audits:#?}");
    assert!(
        audits.iter().all(|audit| audit["ok"] == true),
        "{audits:#?}"
    );
    let audit = audits
        .into_iter()
        .find(|audit| audit["sale_id"] == sale)
        .expect("the sale");
    assert_eq!(
        (&audit["quiescent"], &audit["conserved"]),
        (&json!(true), &json!(true)),
        "{audit:#}"
    );
    audit
}

#[tokio::test]
async fn serve_sets_itself_up_and_keeps_its_data() {
    let home = Home::new();
    let began = Instant::now();
    let program = Program::serve(&home, &[], &[]).await;
    println!("ready after {:?} from cold", began.elapsed());
    let (status, ready) = get(&program, "/readyz").await;
    assert_eq!(status, StatusCode::OK, "{ready:#}");
    let (status, _) = get(&program, "/openapi.json").await;
    assert_eq!(status, StatusCode::OK);

    let found = sales(&program).await;
    let stocks: HashSet<i64> = found
        .iter()
        .filter_map(|sale| sale["stock"].as_i64())
        .collect();
    assert_eq!(
        (found.len(), stocks),
        (4, HashSet::from([10, 100, 500, 100_000]))
    );
    let states: Vec<&str> = found
        .iter()
        .filter_map(|sale| sale["state"].as_str())
        .collect();
    assert_eq!(
        states,
        ["open", "open", "open", "scheduled"],
        "open ones first"
    );

    // The secrets are nobody else's business.
    for secret in ["token_secret", "admin_token"] {
        use std::os::unix::fs::PermissionsExt;
        let file = fs::metadata(home.data().join(secret)).expect("the secret");
        assert_eq!(file.permissions().mode() & 0o077, 0, "{secret}");
    }
    let admin_token = fs::read_to_string(home.data().join("admin_token")).expect("the admin token");
    assert!(
        program.stderr().contains(&admin_token),
        "it is printed once"
    );

    // Bought a moment before the end: answered is kept.
    let sale = sale_for_loads(&program).await;
    let crowd = Crowd::start(&program.base, &sale, tokens(&home, 100).await, Manner::Once);
    let (bought, unanswered) = crowd.leave().await;
    assert_eq!((bought.len(), unanswered.len()), (100, 0));
    program.terminate().await;
    home.until_nothing_runs().await;

    let began = Instant::now();
    let program = Program::serve(&home, &[], &[]).await;
    println!("ready after {:?} the second time", began.elapsed());
    assert!(!program.stderr().contains(&admin_token), "and not again");
    assert_kept(&program, &bought).await;
    let ids = |sales: &[Value]| {
        sales
            .iter()
            .map(|sale| sale["id"].clone())
            .collect::<HashSet<_>>()
    };
    assert_eq!(
        ids(&sales(&program).await),
        ids(&found),
        "seeding again makes no new sales"
    );
    assert_eq!(assert_sound(&home, &sale).await["live"], 100);
    program.terminate().await;
    home.until_nothing_runs().await;
}

#[tokio::test]
async fn a_kill_in_the_middle_of_a_rush_loses_nothing_that_was_promised() {
    const BUYERS: usize = 4_000;
    let home = Home::new();
    let mut program = Program::serve(&home, &[], &[]).await;
    let sale = sale_for_loads(&program).await;
    let crowd = Crowd::start(
        &program.base,
        &sale,
        tokens(&home, BUYERS).await,
        Manner::Once,
    );
    crowd.until(1_000).await;
    program.signal(Signal::SIGKILL);
    assert_eq!(program.end().await, None, "killed");
    let (mut bought, unanswered) = crowd.leave().await;
    println!(
        "killed after {} were promised an order; {} got no answer",
        bought.len(),
        unanswered.len()
    );
    assert!(!unanswered.is_empty(), "the rush was over before the kill");
    home.until_nothing_runs().await;

    let program = Program::serve(&home, &[], &[]).await;
    assert_kept(&program, &bought).await;
    let audit = assert_sound(&home, &sale).await;
    let live = audit["live"].as_u64().expect("a count");
    println!(
        "{live} orders are live, {} of them unconfirmed",
        live - bought.len() as u64
    );
    assert!(live >= bought.len() as u64);

    // Whoever got no answer asks again: bought now, or told of the order that they have.
    let (more, still_unanswered) = Crowd::start(&program.base, &sale, unanswered, Manner::Once)
        .leave()
        .await;
    assert_eq!(still_unanswered, Vec::<String>::new());
    bought.extend(more);
    assert_kept(&program, &bought).await;
    let audit = assert_sound(&home, &sale).await;
    assert_eq!(
        (audit["live"].as_u64(), audit["rejected"].as_u64()),
        (Some(BUYERS as u64), Some(0))
    );
    program.terminate().await;
    home.until_nothing_runs().await;
}

#[tokio::test]
async fn commands_work_without_a_server_and_beside_one() {
    let home = Home::new();
    let migrated = home.run(&["migrate"]).await;
    assert_eq!(migrated.assert_done().stdout, "the schema is up to date\n");
    let (code, audits) = home.audit(&[]).await;
    assert_eq!((code, audits), (0, Vec::new()), "there is nothing to judge");
    for _ in 0..2 {
        let seeded = home.run(&["seed"]).await;
        assert_eq!(seeded.assert_done().stdout, "4 demo sales are there\n");
    }
    let (code, audits) = home.audit(&[]).await;
    assert_eq!((code, audits.len()), (0, 4));
    home.until_nothing_runs().await;

    // A server on the same folder finds them, and the same commands join it.
    let program = Program::serve(&home, &[], &[]).await;
    let sale = sale_for_loads(&program).await;
    let crowd = Crowd::start(
        &program.base,
        &sale,
        tokens(&home, 20).await,
        Manner::Patient,
    );
    assert_eq!(crowd.leave().await.0.len(), 20);
    home.run(&["migrate"]).await.assert_done();
    home.run(&["seed"]).await.assert_done();
    assert_eq!(sales(&program).await.len(), 4);
    assert_eq!(assert_sound(&home, &sale).await["live"], 20);
    let (code, audits) = home.audit(&["--sale", &sale]).await;
    assert_eq!((code, audits.len()), (0, 1));
    let plain = home.run(&["audit"]).await;
    assert!(
        plain.assert_done().stdout.contains("audit: ok (4 sales)"),
        "{}",
        plain.stdout
    );
    let unknown = home.run(&["audit", "--sale", "4711"]).await;
    unknown.assert_refused(&["no such sale"]);
    let (status, _) = get(&program, "/readyz").await;
    assert_eq!(status, StatusCode::OK, "the server has not noticed");

    // Two servers on one folder would not do.
    home.run(&["serve"]).await.assert_refused(&["data"]);
    program.terminate().await;
    home.until_nothing_runs().await;
}

#[tokio::test]
async fn tokens_are_a_json_array_that_the_server_honours() {
    let home = Home::new();
    let file = home.0.join("users.json");
    // Before the first start: the secret is made by whoever needs it first.
    let out = file.to_str().expect("text");
    let minted = home.run(&["tokens", "--users", "1000", "--out", out]).await;
    assert_eq!(minted.assert_done().stdout, "");
    let entries: Vec<Value> =
        serde_json::from_slice(&fs::read(&file).expect("the file")).expect("JSON");
    let users: HashSet<&str> = entries
        .iter()
        .filter_map(|entry| entry["user_id"].as_str())
        .collect();
    assert_eq!((entries.len(), users.len()), (1_000, 1_000));

    let program = Program::serve(&home, &[], &[]).await;
    for entry in [&entries[0], &entries[999]] {
        let token = entry["token"].as_str().expect("a token");
        let request = reqwest::Client::new()
            .get(program.url("/api/v1/session"))
            .bearer_auth(token);
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), StatusCode::OK);
        let session: Value = response.json().await.expect("JSON");
        assert_eq!(session["user_id"], entry["user_id"]);
    }
    // Without a file they go to stdout, and only they.
    let printed = home.run(&["tokens", "--users", "3"]).await;
    let printed: Vec<Value> = serde_json::from_str(&printed.assert_done().stdout).expect("JSON");
    assert_eq!(printed.len(), 3);
    program.terminate().await;
}

#[tokio::test]
async fn openapi_needs_nothing_and_prints_json() {
    let home = Home::new();
    let printed = home.run(&["openapi"]).await;
    let document: Value = serde_json::from_str(&printed.assert_done().stdout).expect("JSON");
    assert!(
        document["openapi"]
            .as_str()
            .is_some_and(|version| version.starts_with("3."))
    );
    assert!(document["paths"]["/api/v1/sales/{id}/orders"]["post"].is_object());
    assert!(
        !home.data().exists(),
        "nothing is started or written for it"
    );
}

/// Commands that judge or repair do not bring a schema up to date: that is for whoever is about to serve from it.
#[tokio::test]
async fn an_audit_of_an_older_schema_changes_nothing_and_says_what_to_do() {
    let servers = Servers::shared().await;
    let database = servers.database().await;
    let home = Home::new();
    let run = async |words: &[&str]| {
        let mut command = home.command(words);
        command.envs(settings_of(servers, &database, "older:"));
        home.finish(command).await
    };
    run(&["audit"]).await.assert_done();
    let mut connection = database.connect().await;
    let newest =
        "DELETE FROM _sqlx_migrations WHERE version = (SELECT max(version) FROM _sqlx_migrations)";
    sqlx::query(newest)
        .execute(&mut connection)
        .await
        .expect("a migration is forgotten");
    for words in ["audit", "rebuild"] {
        run(&[words])
            .await
            .assert_refused(&["the schema is older", "flash-sale migrate"]);
    }
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused_in_one_line() {
    let home = Home::new();
    let refused = async |arguments: &[&str], settings: &[(&str, &str)]| {
        let mut command = home.command(arguments);
        command.envs(settings.iter().copied());
        home.finish(command).await
    };
    let database = ("DATABASE_URL", "postgres://nobody@localhost:1/nothing");
    let redis = ("REDIS_URL", "redis://localhost:1");
    for command in ["serve", "worker", "migrate", "seed", "audit", "rebuild"] {
        refused(&[command], &[database])
            .await
            .assert_refused(&["REDIS_URL", "only DATABASE_URL is set"]);
        refused(&[command], &[redis])
            .await
            .assert_refused(&["DATABASE_URL", "only REDIS_URL is set"]);
    }
    // Where no server ever ran there is nothing to judge, and nothing is put there.
    for command in ["audit", "rebuild"] {
        let empty = Home::new();
        let ended = empty.finish(empty.command(&[command])).await;
        ended.assert_refused(&["there is no sale in", "DATABASE_URL and REDIS_URL"]);
        assert!(!empty.data().join("pg").exists());
    }
    refused(&["serve"], &[database, redis])
        .await
        .assert_refused(&["TOKEN_SECRET must be set", "32 bytes"]);
    let short = ("TOKEN_SECRET", "thirty-one bytes are not enough");
    for settings in [&[short][..], &[database, redis, short]] {
        refused(&["serve"], settings).await.assert_refused(&[
            "TOKEN_SECRET",
            "31 bytes",
            "at least 32",
        ]);
        refused(&["tokens", "--users", "1"], settings)
            .await
            .assert_refused(&["TOKEN_SECRET", "at least 32"]);
    }
    refused(&["serve"], &[("ADMIN_TOKEN", "")])
        .await
        .assert_refused(&["ADMIN_TOKEN must not be empty"]);
    let secret = ("TOKEN_SECRET", SECRET);
    refused(
        &["serve"],
        &[("DATABASE_URL", "mysql://localhost/x"), redis, secret],
    )
    .await
    .assert_refused(&["DATABASE_URL is not a Postgres address"]);
    refused(
        &["serve"],
        &[database, ("REDIS_URL", "http://localhost"), secret],
    )
    .await
    .assert_refused(&["REDIS_URL is not a Redis address"]);

    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    refused(&["serve"], &[("LISTEN_ADDR", &address)])
        .await
        .assert_refused(&[&format!("cannot listen on {address}")]);
    assert!(!home.data().join("pg").exists(), "nothing was started");
    // What clap refuses is refused in its own words, with the same exit code.
    let unknown = refused(&["sell"], &[]).await;
    assert_eq!(unknown.code, Some(2), "{}", unknown.stderr);
}

#[tokio::test]
async fn a_missing_server_is_named_with_the_line_that_installs_it() {
    // Without PATH the program still looks where Homebrew puts things; there is no hiding those.
    let fixed = ["/opt/homebrew", "/usr/local"].iter().flat_map(|prefix| {
        ["bin", "opt/redis/bin", "opt/valkey/bin"].map(|bin| Path::new(prefix).join(bin))
    });
    let hidden = ["redis-server", "valkey-server"];
    if fixed
        .flat_map(|folder| hidden.map(|name| folder.join(name)))
        .any(|path| path.exists())
    {
        eprintln!("skipped: this machine has a Redis in a place that is always looked at");
        return;
    }
    let home = Home::new();
    let mut command = home.command(&["serve"]);
    command.env("PATH", "/nonexistent");
    let ended = home.finish(command).await;
    ended.assert_refused(&["redis-server", "ask your package manager for"]);
    assert!(
        ended.stderr.contains("redis (7 or newer)"),
        "{}",
        ended.stderr
    );
}

#[tokio::test]
async fn one_process_takes_orders_and_another_writes_them() {
    let servers = Servers::own().await;
    let database = servers.database().await;
    let settings = settings_of(&servers, &database, "");
    let home = Home::new();
    let command = |arguments: &[&str]| {
        let mut command = home.command(arguments);
        command.envs(settings.clone());
        command
    };
    home.finish(command(&["migrate"])).await.assert_done();
    let server = Program::serve_by(&home, command(&["serve", "--no-writer"])).await;
    assert!(
        !home.data().exists(),
        "the data folder is for embedded servers"
    );

    let client = reqwest::Client::new();
    let created = client
        .post(server.url("/api/v1/admin/sales"))
        .bearer_auth(ADMIN_TOKEN)
        .json(&json!({"title": "a thing", "price_cents": 100, "stock": 50}))
        .send()
        .await
        .expect("an answer");
    assert_eq!(created.status(), StatusCode::CREATED);
    let created: Value = created.json().await.expect("JSON");
    let sale = created["id"].as_str().expect("an id").to_owned();
    let signer = TokenSigner::new(SECRET.as_bytes()).expect("long enough");
    let tomorrow = OffsetDateTime::now_utc() + time::Duration::DAY;
    let tokens = (0..50)
        .map(|_| signer.mint(UserId::random(), "tester", tomorrow))
        .collect();
    let (bought, unanswered) = Crowd::start(&server.base, &sale, tokens, Manner::Once)
        .leave()
        .await;
    assert_eq!((bought.len(), unanswered.len()), (50, 0));

    // Nobody writes them yet: the audit calls that neither broken (1) nor compared (0).
    let waiting = home
        .finish(command(&["audit", "--json", "--wait", "0"]))
        .await;
    assert_eq!(waiting.code, Some(2), "{}", waiting.stdout);
    let waiting: Vec<Value> = serde_json::from_str(&waiting.stdout).expect("JSON");
    assert_eq!(
        (&waiting[0]["backlog"], &waiting[0]["conserved"]),
        (&json!(50), &Value::Null)
    );

    let mut worker = Program::spawn(&home, command(&["worker", "--metrics-addr", "127.0.0.1:0"]));
    let line = worker.line().await;
    let figures = line
        .strip_prefix("flash-sale worker ready, metrics on ")
        .unwrap_or_else(|| panic!("{line}"))
        .to_owned();
    assert_kept(&server, &bought).await;
    let written = home.finish(command(&["audit", "--json"])).await;
    let written: Vec<Value> = serde_json::from_str(&written.assert_done().stdout).expect("JSON");
    assert_eq!(
        (
            &written[0]["backlog"],
            &written[0]["live"],
            &written[0]["conserved"]
        ),
        (&json!(0), &json!(50), &json!(true))
    );
    // A worker says of itself how it is, and nothing else.
    let ask = async |path: &str| {
        let url = figures.replace("/metrics", path);
        let reply = client.get(url).send().await.expect("an answer");
        (reply.status(), reply.text().await.expect("text"))
    };
    let (status, text) = ask("/metrics").await;
    assert_eq!(status, StatusCode::OK);
    assert!(
        text.contains("\nflash_sale_writer_orders_total 50\n"),
        "{text}"
    );
    assert_eq!(ask("/healthz").await, (StatusCode::OK, "ok\n".to_owned()));
    let (status, text) = ask("/readyz").await;
    assert_eq!(status, StatusCode::OK, "{text}");
    assert!(text.contains("\"ready\":true"), "{text}");
    assert_eq!(ask("/api/v1/sales").await.0, StatusCode::NOT_FOUND);
    let port = figures
        .strip_prefix("http://")
        .and_then(|rest| rest.strip_suffix("/metrics"))
        .expect("an address");
    let mut second = command(&["worker"]);
    second.env("METRICS_ADDR", port);
    home.finish(second)
        .await
        .assert_refused(&["cannot listen on", port]);
    worker.terminate().await;
    server.terminate().await;
    database.drop().await; // the servers are not the program's: they still run
}
