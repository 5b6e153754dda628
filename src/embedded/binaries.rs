//! Where the machine keeps its Postgres and Redis programs, and how to install them where it does not.
//!
//! Nothing is downloaded and nothing is remembered: every start looks again, so an upgraded or removed
//! package is noticed at once. Distributions keep `initdb` and `postgres` out of `PATH` because several
//! major versions may be installed side by side; an existing cluster is opened only by its own major version.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::error::EmbeddedError;
use super::zookeeper::ZooKeeperBinaries;

#[derive(Debug, Clone)]
pub(super) struct PostgresBinaries {
    pub initdb: PathBuf,
    pub postgres: PathBuf,
}

/// Says in one error everything that is missing, so that one command installs it all.
pub(super) fn check_all() -> Result<(), EmbeddedError> {
    let mut missing = Vec::new();
    if postgres_candidates().is_empty() {
        missing.extend(["initdb", "postgres"]);
    }
    if find_redis().is_err() {
        missing.push("redis-server");
    }
    if missing.is_empty() {
        Ok(())
    } else {
        Err(missing_binaries(&missing))
    }
}

/// The programs for a new cluster (`None`: the first found), or for one written by a known major version.
pub(super) fn find_postgres(
    cluster: Option<(&Path, u32)>,
) -> Result<PostgresBinaries, EmbeddedError> {
    let candidates = postgres_candidates();
    let Some((cluster, wanted)) = cluster else {
        return candidates
            .into_iter()
            .next()
            .ok_or_else(|| missing_binaries(&["initdb", "postgres"]));
    };
    let mut found = Vec::new();
    for candidate in candidates {
        match major_version(&candidate.postgres) {
            Some(major) if major == wanted => return Ok(candidate),
            Some(major) => found.push(major.to_string()),
            None => {}
        }
    }
    if found.is_empty() {
        return Err(missing_binaries(&["initdb", "postgres"]));
    }
    found.dedup();
    Err(EmbeddedError::ClusterVersion {
        cluster: cluster.to_path_buf(),
        wanted,
        found: found.join(", "),
    })
}

/// Redis, or Valkey where a distribution has replaced Redis by it (they share protocol, flags and file formats).
pub(super) fn find_redis() -> Result<PathBuf, EmbeddedError> {
    let mut directories = path_directories();
    directories.extend(["/opt/homebrew/bin", "/usr/local/bin"].map(PathBuf::from));
    for formula in ["redis", "valkey"] {
        directories.extend(
            ["/opt/homebrew/opt", "/usr/local/opt"]
                .map(|opt| Path::new(opt).join(formula).join("bin")),
        );
    }
    ["redis-server", "valkey-server"]
        .iter()
        .flat_map(|name| {
            directories
                .iter()
                .map(move |directory| directory.join(name))
        })
        .find(|path| is_executable(path))
        .ok_or_else(|| missing_binaries(&["redis-server"]))
}

/// Java and ZooKeeper: Debian's jar, which names what it needs; else a folder of jars (Homebrew, Apache's own archive).
pub(super) fn find_zookeeper() -> Result<ZooKeeperBinaries, EmbeddedError> {
    let java = std::env::var_os("JAVA_HOME")
        .map(|home| Path::new(&home).join("bin"))
        .into_iter()
        .chain(path_directories())
        .chain(
            ["/opt/homebrew/opt", "/usr/local/opt"].map(|opt| Path::new(opt).join("openjdk/bin")),
        )
        .map(|directory| directory.join("java"))
        .find(|path| is_executable(path));
    let classpath = zookeeper_classpath();
    match (java, classpath) {
        (Some(java), Some(classpath)) => Ok(ZooKeeperBinaries { java, classpath }),
        (java, classpath) => {
            let missing: Vec<&str> = [
                java.is_none().then_some("java"),
                classpath.is_none().then_some("zookeeper"),
            ]
            .into_iter()
            .flatten()
            .collect();
            Err(missing_binaries(&missing))
        }
    }
}

fn zookeeper_classpath() -> Option<String> {
    let debian = Path::new("/usr/share/java");
    if debian.join("zookeeper.jar").exists() {
        // The second takes the log to stderr; without it ZooKeeper runs and says nothing.
        return Some(format!(
            "{0}/zookeeper.jar:{0}/slf4j-simple.jar",
            debian.display()
        ));
    }
    let homes = std::env::var_os("ZOOKEEPER_HOME")
        .map(PathBuf::from)
        .into_iter()
        .chain(
            ["/opt/homebrew/opt", "/usr/local/opt"]
                .map(|opt| Path::new(opt).join("zookeeper/libexec")),
        )
        .chain([PathBuf::from("/opt/zookeeper")]);
    homes
        .map(|home| home.join("lib"))
        .find(|lib| {
            fs::read_dir(lib).is_ok_and(|entries| {
                entries.flatten().any(|entry| {
                    entry
                        .file_name()
                        .to_string_lossy()
                        .starts_with("zookeeper-")
                })
            })
        })
        .map(|lib| format!("{}/*", lib.display()))
}

fn postgres_candidates() -> Vec<PostgresBinaries> {
    let mut directories = path_directories();
    directories.extend(pg_config_bindir());
    directories.extend(versioned("/usr/lib/postgresql", "", "bin"));
    directories.extend(versioned("/usr", "pgsql-", "bin"));
    for opt in ["/opt/homebrew/opt", "/usr/local/opt"] {
        directories.extend(versioned(opt, "postgresql@", "bin"));
        directories.push(Path::new(opt).join("postgresql/bin"));
    }
    postgres_in(&directories)
}

/// Those directories that hold both programs, in the order given.
fn postgres_in(directories: &[PathBuf]) -> Vec<PostgresBinaries> {
    directories
        .iter()
        .map(|directory| PostgresBinaries {
            initdb: directory.join("initdb"),
            postgres: directory.join("postgres"),
        })
        .filter(|binaries| is_executable(&binaries.initdb) && is_executable(&binaries.postgres))
        .collect()
}

/// `parent/{prefix}{number}/{inside}` for every number there is, the highest first.
fn versioned(parent: impl AsRef<Path>, prefix: &str, inside: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(parent) else {
        return Vec::new();
    };
    let mut versions: Vec<(u32, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| {
            let number = entry
                .file_name()
                .to_str()?
                .strip_prefix(prefix)?
                .parse()
                .ok()?;
            Some((number, entry.path().join(inside)))
        })
        .collect();
    versions.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    versions.into_iter().map(|(_, path)| path).collect()
}

fn path_directories() -> Vec<PathBuf> {
    // An empty or relative element would mean "wherever the program was started": not for servers.
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .filter(|directory| directory.is_absolute())
        .collect()
}

fn pg_config_bindir() -> Option<PathBuf> {
    let output = Command::new("pg_config")
        .arg("--bindir")
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let directory = String::from_utf8(output.stdout).ok()?;
    output
        .status
        .success()
        .then(|| PathBuf::from(directory.trim()))
}

/// `postgres --version` prints `postgres (PostgreSQL) 15.18 (Debian …)`; betas print `18beta1`.
fn major_version(postgres: &Path) -> Option<u32> {
    let output = Command::new(postgres)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .ok()?;
    parse_major(std::str::from_utf8(&output.stdout).ok()?)
}

fn parse_major(version: &str) -> Option<u32> {
    let number = version.split_once("(PostgreSQL)")?.1.trim_start();
    let digits = number
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(number.len());
    number[..digits].parse().ok()
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path)
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

fn missing_binaries(missing: &[&str]) -> EmbeddedError {
    let managers = ["apt-get", "dnf", "brew"];
    let directories = path_directories();
    let manager = managers.into_iter().find(|manager| {
        directories
            .iter()
            .any(|directory| is_executable(&directory.join(manager)))
    });
    EmbeddedError::MissingBinaries {
        missing: missing.join(", "),
        install: install_line(manager, missing, nix::unistd::geteuid().is_root()),
    }
}

fn install_line(manager: Option<&str>, missing: &[&str], is_root: bool) -> String {
    let postgres = missing.contains(&"postgres");
    let redis = missing.contains(&"redis-server");
    let zookeeper = missing.contains(&"zookeeper") || missing.contains(&"java");
    let packages = |postgres_package: &str, redis_package: &str, zookeeper_package: &str| {
        let wanted = [
            postgres.then_some(postgres_package),
            redis.then_some(redis_package),
            zookeeper.then_some(zookeeper_package),
        ];
        wanted.into_iter().flatten().collect::<Vec<_>>().join(" ")
    };
    let sudo = if is_root { "" } else { "sudo " };
    match manager {
        Some("apt-get") => format!(
            "{sudo}apt-get update && {sudo}apt-get install -y {}",
            packages(
                "postgresql",
                "redis-server",
                "libzookeeper-java default-jre-headless"
            )
        ),
        Some("dnf") => format!(
            "{sudo}dnf install -y {}",
            packages(
                "postgresql-server",
                "valkey",
                "java-latest-openjdk-headless (and ZooKeeper from its site, in ZOOKEEPER_HOME)"
            )
        ),
        // Homebrew refuses sudo.
        Some("brew") => format!(
            "brew install {}",
            packages("postgresql@17", "redis", "zookeeper")
        ),
        _ => format!(
            "ask your package manager for {}",
            packages(
                "postgresql (the server, 14 or newer)",
                "redis (7 or newer)",
                "zookeeper and java"
            )
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of its own for one test, gone afterwards.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir()
                .join(format!("flash-sale-binaries-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).expect("scratch folder");
            Scratch(path)
        }

        fn program(&self, path: &str, mode: u32) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("folder");
            fs::write(&path, "").expect("file");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("mode");
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    #[test]
    fn versions_compare_as_numbers_highest_first() {
        let scratch = Scratch::new("versions");
        for version in ["9", "15", "17", "doc"] {
            fs::create_dir_all(scratch.0.join(version)).expect("folder");
        }
        let found = versioned(&scratch.0, "", "bin");
        let expected: Vec<_> = ["17/bin", "15/bin", "9/bin"]
            .iter()
            .map(|path| scratch.0.join(path))
            .collect();
        assert_eq!(found, expected);
        assert!(versioned(scratch.0.join("absent"), "", "bin").is_empty());
    }

    #[test]
    fn a_directory_counts_only_with_both_programs_executable() {
        let scratch = Scratch::new("pairs");
        scratch.program("client-only/postgres", 0o755);
        scratch.program("not-executable/initdb", 0o644);
        scratch.program("not-executable/postgres", 0o755);
        scratch.program("complete/initdb", 0o755);
        scratch.program("complete/postgres", 0o755);
        let directories = ["client-only", "not-executable", "absent", "complete"]
            .map(|name| scratch.0.join(name));
        let found = postgres_in(&directories);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].postgres, scratch.0.join("complete/postgres"));
    }

    #[test]
    fn the_major_version_is_read_from_every_way_of_printing_it() {
        assert_eq!(
            parse_major("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n"),
            Some(15)
        );
        assert_eq!(parse_major("postgres (PostgreSQL) 18beta1\n"), Some(18));
        assert_eq!(parse_major("postgres (PostgreSQL) 17"), Some(17));
        assert_eq!(parse_major("something else"), None);
    }

    #[test]
    fn the_install_line_names_only_what_is_missing() {
        let all = ["initdb", "postgres", "redis-server"];
        assert_eq!(
            install_line(Some("apt-get"), &all, false),
            "sudo apt-get update && sudo apt-get install -y postgresql redis-server"
        );
        assert_eq!(
            install_line(Some("dnf"), &["redis-server"], true),
            "dnf install -y valkey"
        );
        assert_eq!(
            install_line(Some("brew"), &["initdb", "postgres"], false),
            "brew install postgresql@17"
        );
        assert_eq!(
            install_line(Some("apt-get"), &["zookeeper"], true),
            "apt-get update && apt-get install -y libzookeeper-java default-jre-headless"
        );
        assert!(install_line(None, &all, true).contains("postgresql (the server"));
    }
}
