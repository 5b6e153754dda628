//! The server's own commands, which kill it and start it in the middle of the storm.

use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// For a kill, and for a start until the server answers.
pub const LIMIT: Duration = Duration::from_secs(60);

fn shell(command: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null());
    shell
}

/// Runs it to its end.
pub async fn kill(command: &str) -> Result<(), String> {
    let output = shell(command).stdout(Stdio::null()).kill_on_drop(true).output();
    let failed = |why: String| format!("--kill {command:?}: {why}");
    let output = timeout(LIMIT, output).await.map_err(|_| failed("did not end".to_owned()))?;
    let output = output.map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(failed(format!("{}: {}", output.status, said.trim())))
        }
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
    let log = std::env::temp_dir().join(format!("flash-sale-judge-{}.log", std::process::id()));
    let spawn = || {
        let file = File::create(&log)?;
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

    pub fn because(&self, why: &str) -> String {
        format!("--start {:?}: {why}; what it said is in {}", self.command, self.log.display())
    }
}
