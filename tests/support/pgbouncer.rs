//! The real PgBouncer in transaction mode, in front of a Postgres of a test.

use super::{hire_janitor, temporary_folder};
use crate::support::prelude::*;
use std::os::unix::fs::{MetadataExt, chown};
use tokio::process::{Child, Command};

/// Where it may be, beside the PATH: the same places as in `scripts/setup.sh`, which installs it.
const PLACES: &str = "/usr/sbin:/opt/homebrew/opt/pgbouncer/bin:/usr/local/opt/pgbouncer/bin";

pub const SESSIONS: u32 = 3;

pub struct PgBouncer {
    child: Child,
    pub address: SocketAddr,
}

impl PgBouncer {
    /// `ignored`: its `ignore_startup_parameters`, which it would refuse otherwise.
    pub async fn start(servers: &Servers, ignored: &str) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        // It runs as the owner of the cluster, who alone may enter the socket's folder.
        let postmaster = servers.postgres.pid().expect("postgres runs");
        let owner = fs::metadata(format!("/proc/{postmaster}/cwd")).expect("its cluster");
        let dir = temporary_folder();
        fs::create_dir(&dir).expect("a folder");
        let settings = dir.join("pgbouncer.ini");
        let postgres = servers.postgres.address();
        let mut text = format!(
            "[databases]\n* = host={} port={} user={}\n\
             [pgbouncer]\nlisten_addr = {}\nlisten_port = {}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = transaction\ndefault_pool_size = {SESSIONS}\nmax_client_conn = 500\n\
             ignore_startup_parameters = {ignored}\n",
            postgres.socket_dir.display(),
            postgres.port,
            postgres.user,
            address.ip(),
            address.port(),
        );
        if version().await >= [1, 21].to_vec() {
            text += "max_prepared_statements = 0\n"; // as docs/postgres.md asks for
        }
        fs::write(&settings, text).expect("its settings");
        for path in [&dir, &settings] {
            chown(path, Some(owner.uid()), Some(owner.gid())).expect("chown");
        }
        let log = fs::File::create(dir.join("log")).expect("its log");
        let mut command = command();
        command.arg(&settings).current_dir("/").uid(owner.uid()).gid(owner.gid());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.kill_on_drop(true).spawn().expect("pgbouncer starts");
        std::mem::forget(hire_janitor(&dir, &[child.id()]));
        let mut started = Self { child, address };
        wait_for!("pgbouncer listens", {
            let ended = started.child.try_wait().expect("a child");
            assert!(ended.is_none(), "pgbouncer has ended: {}", tail(&dir.join("log"), 20));
            TcpStream::connect(address).await.ok()
        });
        started
    }
}

impl Database {
    pub fn pooled_by(self, pooler: &PgBouncer) -> Self {
        Self { is_pooled: true, ..self.through(pooler.address) }
    }

    pub async fn pool(&self, connections: u32) -> flash_sale::postgres::Pool {
        let options = self.options();
        if !self.is_pooled {
            return flash_sale::postgres::pool(options, connections);
        }
        flash_sale::postgres::pooled(options, self.direct_options(), connections)
    }
}

fn command() -> Command {
    let mut command = Command::new("pgbouncer");
    command.env("PATH", format!("{}:{PLACES}", std::env::var("PATH").unwrap_or_default()));
    command
}

/// Of `PgBouncer 1.18.0`, the numbers.
async fn version() -> Vec<u32> {
    let said = command().arg("--version").output().await;
    let said = said.expect("pgbouncer runs (scripts/setup.sh proof installs it)").stdout;
    let said = String::from_utf8_lossy(&said);
    let word = said.split_whitespace().nth(1).expect("a version");
    word.split('.').map(|number| number.parse().unwrap_or(0)).collect()
}
