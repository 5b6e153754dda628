//! The program as a process, in a folder of its own, without this process' settings.

use super::{launch, processes::pid_of};
use crate::support::prelude::*;
use nix::sys::signal::{kill, killpg};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader};
use tokio::sync::mpsc;

const BINARY: &str = env!("CARGO_BIN_EXE_flash-sale");
pub const SECRET: &str = "a secret of at least thirty-two bytes";

/// With a data folder inside; removed at the end, together with whatever still runs in it.
pub struct Home {
    pub path: PathBuf,
    /// Of every command, unless its words say otherwise.
    pub settings: Vec<(&'static str, String)>,
}

impl Home {
    pub fn new() -> Self {
        let home = launch::name_in(&std::env::temp_dir(), "fs-cli-");
        fs::create_dir(&home).expect("a folder");
        Self { path: home, settings: Vec::new() }
    }

    /// Its commands find these servers, and start none.
    pub fn on(servers: &Servers, database: &Database, prefix: &str) -> Self {
        let mut home = Self::new();
        home.settings.extend(settings_of(servers, database, prefix));
        home
    }

    pub async fn on_shared_servers(prefix: &str) -> (Self, Database) {
        let servers = Servers::shared().await;
        let database = servers.database().await;
        (Self::on(servers, &database, prefix), database)
    }

    pub fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    /// A word `NAME=value` is a setting.
    pub fn command(&self, words: &str) -> Command {
        let mut command = launch::command(BINARY, &self.path);
        command.env("DATA_DIR", self.data());
        command.envs([("LISTEN_ADDR", "127.0.0.1:0"), ("RATE_LIMIT", "off")]);
        command.envs(self.settings.iter().cloned());
        let is_setting = |name: &str| name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        for word in words.split_whitespace() {
            match word.split_once('=').filter(|(name, _)| is_setting(name)) {
                Some((name, value)) => command.env(name, value),
                None => command.arg(word),
            };
        }
        command
    }

    pub async fn run(&self, words: &str) -> Ended {
        self.finish(self.command(words)).await
    }

    pub async fn finish(&self, command: Command) -> Ended {
        let mut program = Program::spawn(self, command);
        let mut stdout = String::new();
        let give_up = 4 * TEST_TIMEOUT;
        while let Ok(Some(line)) = tokio::time::timeout(give_up, program.lines.recv()).await {
            stdout += &(line + "\n");
        }
        let (code, stderr) = (program.end().await, program.stderr());
        Ended { code, stdout, stderr }
    }

    pub fn child(&self, server: &str) -> Option<Pid> {
        let pid = fs::read_to_string(self.data().join(format!("{server}.pid"))).ok()?;
        Some(Pid::from_raw(pid.trim().parse().ok()?))
    }

    fn processes(&self) -> Vec<Pid> {
        let mut folders = vec![self.path.clone()];
        // Run by root, the cluster may be elsewhere, where its user can enter.
        folders.extend(fs::read_link(self.data().join("pg")));
        let proc = Path::new("/proc");
        if !proc.exists() {
            // Not Linux: the children at least.
            let children = ["pg", "redis"].iter().filter_map(|name| self.child(name));
            return children.filter(|pid| kill(*pid, None).is_ok()).collect();
        }
        let is_here = |path: &Path| folders.iter().any(|folder| path.starts_with(folder));
        let process = |entry: PathBuf| {
            let pid = entry.file_name()?.to_str()?.parse().ok()?;
            is_here(&fs::read_link(entry.join("cwd")).ok()?).then_some(Pid::from_raw(pid))
        };
        entries(proc).filter_map(process).collect()
    }

    pub async fn until_nothing_runs(&self) {
        eventually("nothing runs", async || self.processes().is_empty().then_some(())).await;
    }
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
        launch::remove_data(&self.data());
        let _ = fs::remove_dir_all(&self.path);
    }
}

pub struct Program {
    child: Child,
    lines: mpsc::UnboundedReceiver<String>,
    stderr: PathBuf,
    pub base: String,
}

impl Program {
    pub fn spawn(home: &Home, command: Command) -> Self {
        let stderr = launch::name_in(&home.path, "stderr-");
        let file = fs::File::create(&stderr).expect("a file for stderr");
        Self::spawn_logging_to(file.into(), stderr, command)
    }

    pub fn spawn_logging_to(log: Stdio, stderr: PathBuf, mut command: Command) -> Self {
        let spawned = command.stdout(Stdio::piped()).stderr(log).spawn();
        let mut child = spawned.expect("it starts (scripts/setup.sh proof installs what it is)");
        let stdout = BufReader::new(child.stdout.take().expect("stdout"));
        let (line, lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            let mut texts = stdout.lines().map_while(Result::ok);
            texts.try_for_each(|text| line.send(text).ok())
        });
        Self { child, lines, stderr, base: String::new() }
    }

    pub async fn serve(home: &Home, settings: &str) -> Self {
        Self::spawn(home, home.command(&format!("serve {settings}"))).ready().await
    }

    pub async fn ready(mut self) -> Self {
        self.base = self.line_after("flash-sale ready on ").await;
        self
    }

    pub async fn line_after(&mut self, start: &str) -> String {
        // On a busy machine the first start, with a cluster to make, takes its time.
        let line = tokio::time::timeout(4 * TEST_TIMEOUT, self.lines.recv()).await;
        let line = line.ok().flatten();
        let line = line.unwrap_or_else(|| panic!("no line on stdout; stderr: {}", self.stderr()));
        line.strip_prefix(start).unwrap_or_else(|| panic!("not {start:?}: {line}")).to_owned()
    }

    pub fn stderr(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    pub fn ask(&self, method: impl AsRef<str>, path: &str) -> Ask {
        ask(&client(), method, self.url(path))
    }

    pub async fn sale(&self, stock: i64) -> String {
        let body = json!({"title": "a thing", "price_cents": 100, "stock": stock});
        let ask = self.ask("POST", "/api/v1/admin/sales").bearer(ADMIN_TOKEN).json(body);
        ask.await.must_be(201).text("id").to_owned()
    }

    pub async fn quiet_audit(&self, sale: &str) -> Value {
        let path = format!("/api/v1/admin/sales/{sale}/audit");
        wait_for!("the sale is quiescent", {
            let audit = self.ask("GET", &path).bearer(ADMIN_TOKEN).send().await.ok()?.body;
            (audit["quiescent"] == true).then_some(audit)
        })
    }

    pub fn entrance(&self, secret: &str) -> Entrance {
        Entrance::of(&self.base, secret)
    }

    pub fn signal(&self, signal: Signal) {
        kill(pid_of(self.child.id()), signal).expect("the program still runs");
    }

    pub async fn end(&mut self) -> Option<i32> {
        eventually("the program ends", async || self.child.try_wait().expect("wait")).await.code()
    }

    /// Ends it as a service manager does: it must end in order, and by itself.
    pub async fn terminate(mut self) {
        self.signal(Signal::SIGTERM);
        assert_eq!(self.end().await, Some(0), "after SIGTERM; stderr: {}", self.stderr());
        assert_eq!(self.lines.recv().await, None, "there is one line on stdout");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let last = launch::tail(&self.stderr, 40);
            eprintln!("{:?}, whose log ends:\n{last}", self.child.try_wait());
        }
        // nginx' workers are of its group; of most programs there is none.
        if let Ok(None) = self.child.try_wait() {
            killpg(pid_of(self.child.id()), Signal::SIGKILL).ok();
        }
        // Once it has been waited for, this does nothing and reports that.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn settings_of(servers: &Servers, db: &Database, prefix: &str) -> [(&'static str, String); 5] {
    let address = servers.postgres.address();
    let socket = address.socket_dir.to_str().expect("text");
    let (user, port, name) = (&address.user, address.port, &db.name);
    [
        ("DATABASE_URL", format!("postgres://{user}@localhost/{name}?host={socket}&port={port}")),
        ("REDIS_URL", servers.redis.url()),
        ("REDIS_PREFIX", prefix.to_owned()),
        ("TOKEN_SECRET", SECRET.to_owned()),
        ("ADMIN_TOKEN", ADMIN_TOKEN.to_owned()),
    ]
}

#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    #[track_caller]
    pub fn assert_done(&self) -> &Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// In one line that is not a log or a panic.
    #[track_caller]
    pub fn assert_refused(&self, words: &[&str]) {
        assert_eq!((self.code, &*self.stdout), (Some(2), ""), "{self:?}");
        let mut lines = self.stderr.lines();
        let line = lines.find(|line| line.starts_with("flash-sale: "));
        let line = line.unwrap_or_else(|| panic!("no clear line in: {}", self.stderr));
        for words in words {
            assert!(line.contains(words), "not {words:?} in: {line}");
        }
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}
