//! The servers' folders and their owners.
//!
//! ```text
//! DATA_DIR/
//!   pg/  pg.log  pg.pid  pg.lock              the cluster (or a symlink to it), its log, pid, lock
//!   redis/  redis.log  redis.pid  redis.lock  the append-only file, and the same
//!   pg-socket/  redis-socket/                 private folders (0700) for the unix sockets
//! ```
//!
//! Two things may live elsewhere. The path of a unix socket has at most 104 bytes (macOS; 108 on
//! Linux), so under a long DATA_DIR sockets go to a private temporary folder. And a program of root
//! runs Postgres as another user, who may not be able to enter DATA_DIR: see `postgres.rs`.
//!
//! After a crash `*.lock` files remain and mean nothing: the kernel has dropped the `flock`. A
//! temporary socket folder remains too; the next start reuses it, since its name is a hash of
//! DATA_DIR.

use crate::error::{Doing, EmbeddedError, Result};
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
    unistd::{User, geteuid},
};
use std::{
    env,
    fs::{self, DirBuilder, File},
    io::{self, Read, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, MetadataExt, PermissionsExt, lchown},
    },
    path::{Path, PathBuf},
};

/// The size of `sockaddr_un` on macOS, less the closing NUL.
const LONGEST_SOCKET_PATH: usize = 103;

/// The user of a child when this program runs as root.
#[derive(Clone, Copy)]
pub struct RunAs {
    pub uid: u32,
    pub gid: u32,
}

impl RunAs {
    /// `None` when this program does not run as root: children then run as its own user.
    pub fn unprivileged() -> Result<Option<RunAs>> {
        if !geteuid().is_root() {
            return Ok(None);
        }
        for name in ["postgres", "nobody"] {
            let user = User::from_name(name).doing("look up the user", name)?;
            if let Some(user) = user.filter(|user| !user.uid.is_root()) {
                return Ok(Some(RunAs { uid: user.uid.as_raw(), gid: user.gid.as_raw() }));
            }
        }
        Err(EmbeddedError::NoUnprivilegedUser)
    }

    /// The owner of existing data: root runs a user's data as that user.
    pub fn owner_of(path: &Path) -> Option<RunAs> {
        let metadata = fs::metadata(path).ok().filter(|_| geteuid().is_root())?;
        (metadata.uid() != 0).then(|| RunAs { uid: metadata.uid(), gid: metadata.gid() })
    }
}

/// DATA_DIR, created if missing, without symlinks: a folder always has the same hash and lock.
pub fn data_dir(path: &Path) -> Result<PathBuf> {
    // Root's Postgres user has to traverse the folder, but not to list it.
    let mode = if geteuid().is_root() { 0o711 } else { 0o700 };
    create_dir(path, mode)?;
    path.canonicalize().doing("resolve", path)
}

pub fn create_dir(path: &Path, mode: u32) -> Result<()> {
    let created = DirBuilder::new().recursive(true).mode(mode).create(path);
    created.doing("create", path)
}

/// A folder that only its owner can enter. An existing one must be a real folder of that owner: in
/// a shared /tmp anybody could have made it.
pub fn private_dir(path: &Path, owner: Option<RunAs>) -> Result<()> {
    create_dir(path, 0o700)?;
    let metadata = fs::symlink_metadata(path).doing("make private", path)?;
    let ours = geteuid().as_raw();
    let wanted = owner.map_or(ours, |owner| owner.uid);
    if !metadata.is_dir() || (metadata.uid() != wanted && metadata.uid() != ours) {
        let denied = io::ErrorKind::PermissionDenied;
        return Err(io::Error::new(denied, "it belongs to another user"))
            .doing("make private", path);
    }
    if let Some(owner) = owner {
        lchown(path, Some(owner.uid), Some(owner.gid)).doing("make private", path)?;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).doing("make private", path)
}

/// Held while a server runs: two programs never work on the same data.
pub type DataLock = Flock<File>;

pub fn lock(path: &Path, data_dir: &Path) -> Result<DataLock> {
    let file =
        File::options().read(true).append(true).create(true).open(path).doing("lock", path)?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(mut file) => {
            // The pid is only for the error below.
            file.set_len(0).doing("lock", path)?;
            writeln!(file, "{}", std::process::id()).doing("lock", path)?;
            Ok(file)
        }
        Err((mut file, Errno::EWOULDBLOCK)) => {
            let mut holder = String::new();
            file.read_to_string(&mut holder).ok();
            Err(EmbeddedError::InUse {
                data_dir: data_dir.to_path_buf(),
                pid: holder.trim().parse().ok(),
            })
        }
        Err((_, errno)) => Err(errno).doing("lock", path),
    }
}

/// The data folder of a running server.
pub struct Home {
    /// The given folder; see [`data_dir`].
    pub dir: PathBuf,
    /// The prefix of its files in `dir`.
    pub name: &'static str,
    /// `DIR/NAME`, private; or elsewhere, if the child's user cannot enter it.
    pub data: PathBuf,
    pub run_as: Option<RunAs>,
    pub lock: DataLock,
}

impl Home {
    pub fn open(dir: &Path, name: &'static str) -> Result<Home> {
        let dir = data_dir(dir)?;
        let lock = lock(&dir.join(format!("{name}.lock")), &dir)?;
        let data = dir.join(name);
        let run_as = RunAs::owner_of(&data);
        private_dir(&data, run_as)?;
        Ok(Home { dir, name, data, run_as, lock })
    }

    /// `DIR/NAME.ENDING`
    pub fn file(&self, ending: &str) -> PathBuf {
        self.dir.join(format!("{}.{ending}", self.name))
    }

    /// `socket` is the socket's file name; `can_enter`: whether the child's user reaches a folder.
    pub fn socket_dir(&self, socket: &str, can_enter: impl Fn(&Path) -> bool) -> Result<SocketDir> {
        let (name, hash) = (self.name, path_hash(&self.dir) >> 16);
        let temporary = format!("flash-sale-{hash:012x}-{name}");
        let candidates = [
            (self.dir.join(format!("{name}-socket")), false),
            (env::temp_dir().join(&temporary), true),
            (Path::new("/tmp").join(&temporary), true),
        ];
        let mut tried = Vec::new();
        for (path, is_temporary) in candidates {
            if fits(&path.join(socket)) && path.parent().is_some_and(&can_enter) {
                if !is_temporary {
                    // It holds only sockets, perhaps of another user's run; this process has the
                    // lock.
                    fs::remove_dir_all(&path).ok();
                }
                match private_dir(&path, self.run_as) {
                    Ok(()) => return Ok(SocketDir { path, is_temporary }),
                    Err(error) if !is_temporary => return Err(error),
                    Err(_) => {}
                }
            }
            tried.push(path.to_string_lossy().into_owned());
        }
        Err(EmbeddedError::NoSocketFolder { tried: tried.join(", ") })
    }
}

/// The folder of a server's unix socket.
pub struct SocketDir {
    pub path: PathBuf,
    is_temporary: bool,
}

impl Drop for SocketDir {
    fn drop(&mut self) {
        if self.is_temporary {
            fs::remove_dir_all(&self.path).ok();
        }
    }
}

/// Short enough for a socket, and without characters that a Redis URL or Postgres's list of folders
/// would have to quote.
fn fits(socket: &Path) -> bool {
    let bytes = socket.as_os_str().as_bytes();
    bytes.len() <= LONGEST_SOCKET_PATH
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"/._-+@".contains(byte))
}

/// FNV-1a, which is stable: the hashes name folders that outlive the program.
pub fn path_hash(path: &Path) -> u64 {
    path.as_os_str().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
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
        assert_ne!(path_hash(Path::new("/srv/a")), path_hash(Path::new("/srv/b")));
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
