//! Several processes behind nginx and Caddy, with `deploy/`'s files in which only addresses change.

mod addresses;
mod deafness;
mod rolling;
mod streams;

use crate::support::{app::while_dropping, launch, prelude::*};
use reqwest::Client;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Nginx,
    Caddy,
}

impl Kind {
    fn command(self, folder: &Path, port: u16, instances: &[SocketAddr]) -> Command {
        let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy");
        let read = |name| fs::read_to_string(deploy.join(name)).expect("a file of deploy/");
        let mut command = Command::new(format!("{self:?}").to_lowercase());
        // Debian's nginx is in a folder that the PATH of a user may lack.
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin"));
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
                command.args(["run", "--adapter", "caddyfile", "--config"]);
                command.arg(folder.join("Caddyfile"));
                command.env("PROXY_PORT", port.to_string()).env("INSTANCES", list.join(" "));
                let folders = ["HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"];
                command.envs(folders.map(|name| (name, folder)));
            }
        }
        command
    }

    async fn start(self, deployment: &Deployment) -> Program {
        let folder = launch::name_in(&deployment.home.path, "proxy-");
        fs::create_dir(&folder).expect("a folder");
        let port = free_port();
        let mut command = self.command(&folder, port, &deployment.addresses);
        launch::end_with_this_process(&mut command, Signal::SIGKILL);
        command.current_dir(&folder).stdin(Stdio::null());
        let mut proxy = Program::spawn(&deployment.home, command);
        proxy.base = format!("http://127.0.0.1:{port}");
        wait_for!("the proxy has an instance to ask", {
            let asked = proxy.ask("GET", "/routable").send().await;
            asked.is_ok_and(|reply| reply.status == 200).then_some(())
        });
        proxy
    }
}

/// The file with these addresses instead of its own; a panic if it does not have what is replaced.
fn nginx_conf(text: &str, port: u16, instances: &[SocketAddr]) -> String {
    let mut left = instances.iter();
    let replace = |line: &str| match line.trim().split_once(":8080") {
        Some((server, rest)) if server.starts_with("server app-") => {
            left.next().map(|address| format!("server {address}{rest}"))
        }
        _ => Some(line.to_owned()),
    };
    let lines: Vec<String> = text.lines().filter_map(replace).collect();
    let listen = "listen 8080;";
    assert!(left.len() == 0 && text.matches(listen).count() == 1, "nginx.conf has changed");
    lines.join("\n").replace(listen, &format!("listen 127.0.0.1:{port};"))
}

pub struct Deployment {
    home: Home,
    database: Database,
    addresses: Vec<SocketAddr>,
    instances: Vec<Option<Program>>,
}

impl Deployment {
    pub async fn start(size: usize, more: &[(&'static str, &str)]) -> Self {
        let servers = Servers::shared().await;
        let database = servers.database().await;
        let mut home = Home::on(servers, &database, &format!("{}:", database.name));
        home.settings.extend(more.iter().map(|(name, value)| (*name, (*value).to_owned())));
        let mut deployment = Self {
            home,
            database,
            addresses: (0..size).map(|_| (Ipv4Addr::LOCALHOST, free_port()).into()).collect(),
            instances: (0..size).map(|_| None).collect(),
        };
        for number in 0..size {
            deployment.start_instance(number, "").await;
        }
        deployment
    }

    async fn start_instance(&mut self, number: usize, settings: &str) {
        let settings = format!("LISTEN_ADDR={} {settings}", self.addresses[number]);
        self.instances[number] = Some(Program::serve(&self.home, &settings).await);
    }

    pub fn running(&self) -> &Program {
        self.instances.iter().flatten().next().expect("an instance runs")
    }
}

/// At the end of a test, what still runs ends in order.
impl Drop for Deployment {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let going = std::mem::take(&mut self.instances).into_iter().flatten();
        let ending = async {
            join_all(going.map(Program::terminate)).await;
            self.database.clone().drop().await;
        };
        while_dropping(ending);
    }
}
