//! Errors of the embedded servers, each with its remedy.

use std::{
    io,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

pub type Result<T> = std::result::Result<T, EmbeddedError>;

#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    /// `install` is a shell command, where the package manager is known.
    #[error("not found on this machine: {missing}; to install: {install}")]
    MissingBinaries { missing: String, install: String },

    #[error(
        "the data in {cluster} was written by PostgreSQL {wanted}, but only {found} is installed; \
         install PostgreSQL {wanted}, or move {cluster} away to start empty"
    )]
    ClusterVersion { cluster: PathBuf, wanted: u32, found: String },

    #[error(
        "another flash-sale{} already uses the data folder {data_dir}; stop it, or give this one \
         its own DATA_DIR",
        .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    InUse { data_dir: PathBuf, pid: Option<u32> },

    #[error(
        "postgres (pid {pid}), which was not started by flash-sale, already runs on {cluster}; \
         stop it, or give flash-sale its own DATA_DIR"
    )]
    ForeignServer { pid: i32, cluster: PathBuf },

    #[error(
        "{server} (pid {pid}), left over from an earlier run, does not end; kill it, then start \
         again"
    )]
    LeftoverRemains { server: &'static str, pid: i32 },

    #[error(
        "Postgres refuses to run as root, and this system has neither a user `postgres` nor \
         `nobody`; create one (useradd --system postgres), or start flash-sale as an ordinary user"
    )]
    NoUnprivilegedUser,

    #[error(
        "no place for the cluster: the user that runs Postgres (uid {uid}) can enter neither \
         {data_dir} nor {fallback}; set DATA_DIR to a folder it can enter"
    )]
    Unreachable { uid: u32, data_dir: PathBuf, fallback: PathBuf },

    #[error("{0} exists, but is not a Postgres cluster; move it away and start again")]
    NotACluster(PathBuf),

    #[error(
        "no folder for unix sockets: {tried} is too long (at most 103 bytes) or not ours; set \
         TMPDIR to a short private folder"
    )]
    NoSocketFolder { tried: String },

    #[error("{program} could not create the database cluster:\n{output}")]
    Initdb { program: &'static str, output: String },

    #[error(
        "{server} ends again and again while starting, the last time with {status}; the end of \
         {log}:\n{tail}"
    )]
    KeepsEnding { server: &'static str, status: ExitStatus, log: PathBuf, tail: String },

    #[error("{server} was not ready after {waited:.0?}; the end of {log}:\n{tail}")]
    NotReady { server: &'static str, waited: Duration, log: PathBuf, tail: String },

    #[error("cannot {action}")]
    Io { action: String, source: io::Error },

    #[error("flash-sale is shutting down")]
    ShuttingDown,
}

/// `fs::…(path).doing("create", path)`: adds the action and the path to an I/O error.
pub trait Doing<T> {
    fn doing(self, what: &str, to: &(impl AsRef<Path> + ?Sized)) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: &str, to: &(impl AsRef<Path> + ?Sized)) -> Result<T> {
        self.map_err(|error| EmbeddedError::Io {
            action: format!("{what} {}", to.as_ref().display()),
            source: error.into(),
        })
    }
}
