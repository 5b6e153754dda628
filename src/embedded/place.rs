//! Where the servers' files live and who owns them.
//!
//! ```text
//! DATA_DIR/
//!   pg/  pg.log  pg.pid  pg.lock              the cluster (or a symlink to it), its log, the child, the lock
//!   redis/  redis.log  redis.pid  redis.lock  the append-only file, and the same
//!   pg-socket/  redis-socket/                 private folders (0700) for the unix sockets
//! ```
//!
//! Two things do not always fit in there. A unix socket's path is limited to 104 bytes (macOS; Linux has 108), so
//! under a long DATA_DIR the sockets go to a private folder under the system's temporary one. And a program started
//! by root runs Postgres as another user, who may not be able to enter DATA_DIR: see `postgres.rs`.
//!
//! After a crash the `*.lock` files remain and mean nothing: what counts is the `flock`, which the kernel drops with
//! the process. A temporary socket folder remains too; its name is a hash of DATA_DIR, so the next start reuses it.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::{User, geteuid};

use super::error::{Doing, EmbeddedError};

/// The room in `sockaddr_un` on macOS, less the closing NUL.
const LONGEST_SOCKET_PATH: usize = 103;

/// The user that a child runs as when this program runs as root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunAs {
    pub uid: u32,
    pub gid: u32,
}

impl RunAs {
    /// `None` when this program does not run as root: children then run as its own user.
    pub fn unprivileged() -> Result<Option<RunAs>, EmbeddedError> {
        if !geteuid().is_root() {
            return Ok(None);
        }
        for name in ["postgres", "nobody"] {
            let user = User::from_name(name).doing(|| format!("look up the user {name}"))?;
            if let Some(user) = user.filter(|user| !user.uid.is_root()) {
                return Ok(Some(RunAs {
                    uid: user.uid.as_raw(),
                    gid: user.gid.as_raw(),
                }));
            }
        }
        Err(EmbeddedError::NoUnprivilegedUser)
    }

    /// The ordinary user who owns what is already there: data made by a user stay that user's when root runs this
    /// program on them once.
    pub fn owner_of(path: &Path) -> Option<RunAs> {
        let metadata = fs::metadata(path).ok().filter(|_| geteuid().is_root())?;
        (metadata.uid() != 0).then(|| RunAs {
            uid: metadata.uid(),
            gid: metadata.gid(),
        })
    }
}

/// DATA_DIR, created if need be, as a path without symlinks: the same folder always hashes and locks the same.
pub(super) fn data_dir(path: &Path) -> Result<PathBuf, EmbeddedError> {
    // As root another user has to be able to pass through; listing what is in there stays root's.
    let mode = if geteuid().is_root() { 0o711 } else { 0o700 };
    create_dir(path, mode)?;
    path.canonicalize()
        .doing(|| format!("resolve {}", path.display()))
}

pub(super) fn create_dir(path: &Path, mode: u32) -> Result<(), EmbeddedError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .doing(|| format!("create {}", path.display()))
}

/// A folder that only its owner can enter. One that is already there must be a real folder of that owner: under a
/// shared /tmp anybody could have put one in our way.
pub(super) fn private_dir(path: &Path, owner: Option<RunAs>) -> Result<(), EmbeddedError> {
    create_dir(path, 0o700)?;
    let action = || format!("make {} private", path.display());
    let metadata = fs::symlink_metadata(path).doing(action)?;
    let ours = geteuid().as_raw();
    let wanted = owner.map_or(ours, |owner| owner.uid);
    if !metadata.is_dir() || (metadata.uid() != wanted && metadata.uid() != ours) {
        let refusal = io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it belongs to another user",
        );
        return Err(refusal).doing(action);
    }
    if let Some(owner) = owner {
        std::os::unix::fs::lchown(path, Some(owner.uid), Some(owner.gid)).doing(action)?;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).doing(action)
}

/// Held as long as a server lives: two programs never work on the same data.
#[derive(Debug)]
pub(super) struct DataLock {
    _file: Flock<File>,
}

impl DataLock {
    pub fn acquire(path: &Path, data_dir: &Path) -> Result<DataLock, EmbeddedError> {
        let action = || format!("lock {}", path.display());
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .doing(action)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut file) => {
                // Only for the message below; the lock does not depend on it.
                file.set_len(0).doing(action)?;
                file.rewind().doing(action)?;
                writeln!(file, "{}", std::process::id()).doing(action)?;
                Ok(DataLock { _file: file })
            }
            Err((mut file, Errno::EWOULDBLOCK)) => {
                let mut holder = String::new();
                file.read_to_string(&mut holder).ok();
                Err(EmbeddedError::InUse {
                    data_dir: data_dir.to_path_buf(),
                    pid: holder.trim().parse().ok(),
                })
            }
            Err((_, errno)) => Err(errno).doing(action),
        }
    }
}

/// The folder of a server's unix socket.
#[derive(Debug)]
pub(super) struct SocketDir {
    pub path: PathBuf,
    temporary: bool,
}

impl SocketDir {
    /// `socket` is the file name of the socket; `can_enter` says whether the child's user can reach a folder.
    pub fn create(
        data_dir: &Path,
        name: &str,
        socket: &str,
        owner: Option<RunAs>,
        can_enter: impl Fn(&Path) -> bool,
    ) -> Result<SocketDir, EmbeddedError> {
        let inside = data_dir.join(format!("{name}-socket"));
        if fits(&inside.join(socket)) && can_enter(data_dir) {
            // It holds sockets only, and may belong to the user of an earlier run. We hold the lock.
            fs::remove_dir_all(&inside).ok();
            private_dir(&inside, owner)?;
            return Ok(SocketDir {
                path: inside,
                temporary: false,
            });
        }
        let short_name = format!("flash-sale-{:012x}-{name}", path_hash(data_dir) >> 16);
        let mut tried = OsString::from(inside);
        for parent in [std::env::temp_dir(), PathBuf::from("/tmp")] {
            let path = parent.join(&short_name);
            if fits(&path.join(socket)) && can_enter(&parent) && private_dir(&path, owner).is_ok() {
                return Ok(SocketDir {
                    path,
                    temporary: true,
                });
            }
            tried.push(", ");
            tried.push(path);
        }
        Err(EmbeddedError::NoSocketFolder {
            tried: tried.to_string_lossy().into_owned(),
        })
    }
}

impl Drop for SocketDir {
    fn drop(&mut self) {
        if self.temporary {
            fs::remove_dir_all(&self.path).ok();
        }
    }
}

/// Short enough for a socket, and free of letters that a Redis URL or Postgres's list of folders would need quoted.
fn fits(socket: &Path) -> bool {
    let bytes = socket.as_os_str().as_bytes();
    bytes.len() <= LONGEST_SOCKET_PATH
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"/._-+@".contains(byte))
}

/// FNV-1a: unlike the standard library's hasher it stays the same across compiler versions, and these hashes name
/// folders that outlive the program.
pub(super) fn path_hash(path: &Path) -> u64 {
    path.as_os_str()
        .as_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!(path_hash(Path::new("")), 0xcbf2_9ce4_8422_2325);
        assert_eq!(path_hash(Path::new("foobar")), 0x8594_4171_f739_67e8);
        assert_ne!(
            path_hash(Path::new("/srv/a")),
            path_hash(Path::new("/srv/b"))
        );
    }

    #[test]
    fn a_socket_path_is_short_and_plain() {
        assert!(fits(Path::new("/srv/flash-sale/redis-socket/redis.sock")));
        assert!(fits(Path::new(&format!("/{}", "a".repeat(102)))));
        assert!(!fits(Path::new(&format!("/{}", "a".repeat(103)))));
        assert!(!fits(Path::new("/srv/my data/redis.sock")));
        assert!(!fits(Path::new("/srv/a,b/redis.sock")));
        assert!(!fits(Path::new("/srv/数据/redis.sock")));
    }
}
