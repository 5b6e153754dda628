//! The server's own commands, which kill it and start it in the middle of the storm.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// For a kill, and for a start until the server answers.
pub const LIMIT: Duration = Duration::from_secs(60);
/// After a kill, until the server answers no more.
pub const GONE: Duration = Duration::from_secs(10);

fn shell(command: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null());
    shell
}

/// Runs it to its end, which what it has started may outlive. What it says against it is shown.
pub async fn kill(command: &str) -> Result<(), String> {
    let failed = |why: String| format!("--kill {command:?}: {why}");
    let status = shell(command).stdout(Stdio::null()).kill_on_drop(true).status();
    let status = timeout(LIMIT, status).await.map_err(|_| failed("did not end".to_owned()))?;
    match status.map_err(|error| failed(error.to_string()))? {
        status if status.success() => Ok(()),
        status => Err(failed(status.to_string())),
    }
}

/// A server that was started, and where what it says is kept.
pub struct Started {
    command: String,
    child: Child,
    log: PathBuf,
}

/// The command may be the server itself: it is not waited for, and outlives this process.
pub fn start(command: &str) -> Result<Started, String> {
    let suffix = RandomState::new().hash_one(command);
    let log = std::env::temp_dir().join(format!("flash-sale-judge-{suffix:016x}.log"));
    let spawn = || {
        let file = File::options().append(true).create_new(true).mode(0o600).open(&log)?;
        let mut shell = shell(command);
        shell.stdout(file.try_clone()?).stderr(file).process_group(0);
        shell.spawn()
    };
    let child = spawn().map_err(|error| format!("--start {command:?}: {error}"))?;
    Ok(Started { command: command.to_owned(), child, log })
}

impl Started {
    /// Why the server will not be ready any more, if the command has failed.
    pub fn failure(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        (!status.success()).then(|| self.because(&status.to_string()))
    }

    /// It is ready: what it says from now on is of no use here.
    pub fn forget(self) {
        let _ = std::fs::remove_file(self.log);
    }

    pub fn because(&self, why: &str) -> String {
        format!("--start {:?}: {why}; what it said is in {}", self.command, self.log.display())
    }
}
