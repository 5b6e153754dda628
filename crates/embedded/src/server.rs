//! Common to all servers: start, readiness, end.

use crate::{
    error::Result,
    process::{Program, blocking},
    supervisor::{Readiness, Supervisor},
};
use nix::unistd::Pid;
use std::{io, path::Path, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::timeout,
};

/// A kind of server. It owns the folders and locks, which outlive the process.
pub trait Kind: Sized + Send + Sync + 'static {
    type Settings: Send + 'static;

    /// Finds the program, locks its folder in `dir` and prepares the start.
    fn prepare(dir: &Path, settings: &Self::Settings) -> Result<(Program, Self)>;

    /// Asks the process `pid` whether it is ready.
    fn probe(&self, pid: Pid) -> impl Future<Output = Readiness> + Send;
}

/// A running server that is restarted when it dies. Dropping it ends it.
pub struct Server<K> {
    // Dropped in this order: the process, then its folders and locks.
    supervisor: Supervisor,
    pub(crate) kind: K,
}

impl<K: Kind> Server<K> {
    /// Starts the server with its files in `dir`, and returns once it answers.
    pub async fn start(dir: &Path, settings: K::Settings) -> Result<Self> {
        let dir = dir.to_path_buf();
        let server = blocking(move || {
            let (program, kind) = K::prepare(&dir, &settings)?;
            let supervisor = Supervisor::start(program)?;
            Ok(Server { supervisor, kind })
        })
        .await?;
        server.wait_ready().await?;
        Ok(server)
    }

    /// Returns once the server answers, also after a restart or a recovery.
    pub async fn wait_ready(&self) -> Result<()> {
        self.supervisor.wait_ready(|pid| self.kind.probe(pid)).await
    }

    /// `None` between a death and the restart.
    pub fn pid(&self) -> Option<u32> {
        self.supervisor.pid()
    }

    /// `kill -9`, for tests and demonstrations: it is restarted at the same address.
    pub fn kill(&self) {
        self.supervisor.kill();
    }

    /// Lets the server save its data, and ends it.
    pub async fn stop(self) {
        self.supervisor.stop().await;
    }
}

/// Sends `question` and reads at most 64 bytes; `None` without an answer within a second.
pub(crate) async fn ask<S: AsyncRead + AsyncWrite + Unpin>(
    connect: impl Future<Output = io::Result<S>>,
    question: &[u8],
) -> Option<Vec<u8>> {
    let exchange = async {
        let mut stream = connect.await?;
        stream.write_all(question).await?;
        let mut answer = vec![0; 64];
        let length = stream.read(&mut answer).await?;
        answer.truncate(length);
        Ok::<_, io::Error>(answer)
    };
    let answer = timeout(Duration::from_secs(1), exchange).await.ok()?.ok()?;
    (!answer.is_empty()).then_some(answer)
}
