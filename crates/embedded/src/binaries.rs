//! Finds the installed Postgres, Redis and ZooKeeper programs, or says how to install them.
//!
//! Nothing is downloaded or cached: every start searches again, so upgrades and removals are
//! noticed. Distributions keep `initdb` and `postgres` out of `PATH` because several major versions
//! may be installed; an existing cluster needs its own major version.

use crate::error::{EmbeddedError, Result};
use std::{
    cmp::Reverse,
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

/// One error names all missing programs, so that one command installs them.
pub fn check_all() -> Result<()> {
    let mut missing = Vec::new();
    if postgres_candidates().is_empty() {
        missing.extend(["initdb", "postgres"]);
    }
    if find_redis().is_err() {
        missing.push("redis-server");
    }
    match &missing[..] {
        [] => Ok(()),
        missing => Err(missing_binaries(missing)),
    }
}

/// The directory of `initdb` and `postgres` for a new cluster (`None`: the first found), or for one
/// written by a known major version.
pub fn find_postgres(cluster: Option<(&Path, u32)>) -> Result<PathBuf> {
    let mut found = Vec::new();
    for candidate in postgres_candidates() {
        let Some((_, wanted)) = cluster else {
            return Ok(candidate);
        };
        match major_version(&candidate) {
            Some(major) if major == wanted => return Ok(candidate),
            Some(major) => found.push(major.to_string()),
            None => {}
        }
    }
    found.dedup();
    match cluster {
        Some((cluster, wanted)) if !found.is_empty() => Err(EmbeddedError::ClusterVersion {
            cluster: cluster.to_path_buf(),
            wanted,
            found: found.join(", "),
        }),
        _ => Err(missing_binaries(&["initdb", "postgres"])),
    }
}

/// Redis, or Valkey where a distribution has replaced it (same protocol, flags and files).
pub fn find_redis() -> Result<PathBuf> {
    let mut directories = path_directories();
    directories.extend(["/opt/homebrew/bin", "/usr/local/bin"].map(PathBuf::from));
    directories.extend(homebrew("redis/bin"));
    directories.extend(homebrew("valkey/bin"));
    executable_in(&directories, "redis-server")
        .or_else(|| executable_in(&directories, "valkey-server"))
        .ok_or_else(|| missing_binaries(&["redis-server"]))
}

/// Java, and ZooKeeper's class path.
pub fn find_zookeeper() -> Result<(PathBuf, String)> {
    let java_home = env::var_os("JAVA_HOME").map(|home| Path::new(&home).join("bin"));
    let mut directories = Vec::from_iter(java_home);
    directories.extend(path_directories());
    directories.extend(homebrew("openjdk/bin"));
    match (executable_in(&directories, "java"), zookeeper_classpath()) {
        (Some(java), Some(classpath)) => Ok((java, classpath)),
        (None, Some(_)) => Err(missing_binaries(&["java"])),
        (Some(_), None) => Err(missing_binaries(&["zookeeper"])),
        (None, None) => Err(missing_binaries(&["java", "zookeeper"])),
    }
}

/// Debian's jar, which names its dependencies; else a folder of jars (Homebrew, Apache's archive).
fn zookeeper_classpath() -> Option<String> {
    let debian = "/usr/share/java";
    if Path::new(debian).join("zookeeper.jar").exists() {
        // The second one logs to stderr; without it ZooKeeper logs nothing.
        return Some(format!("{debian}/zookeeper.jar:{debian}/slf4j-simple.jar"));
    }
    let mut homes = Vec::from_iter(env::var_os("ZOOKEEPER_HOME").map(PathBuf::from));
    homes.extend(homebrew("zookeeper/libexec"));
    homes.push(PathBuf::from("/opt/zookeeper"));
    let is_zookeeper =
        |entry: fs::DirEntry| entry.file_name().to_string_lossy().starts_with("zookeeper-");
    homes
        .into_iter()
        .map(|home| home.join("lib"))
        .find(|lib| fs::read_dir(lib).is_ok_and(|entries| entries.flatten().any(is_zookeeper)))
        .map(|lib| format!("{}/*", lib.display()))
}

fn postgres_candidates() -> Vec<PathBuf> {
    let mut directories = path_directories();
    directories.extend(pg_config_bindir());
    directories.extend(versioned("/usr/lib/postgresql", "", "bin"));
    directories.extend(versioned("/usr", "pgsql-", "bin"));
    for opt in homebrew("") {
        directories.extend(versioned(&opt, "postgresql@", "bin"));
        directories.push(opt.join("postgresql/bin"));
    }
    directories.retain(|directory| has_postgres(directory));
    directories
}

/// A folder of a Homebrew package, on both kinds of Mac.
fn homebrew(folder: &str) -> [PathBuf; 2] {
    ["/opt/homebrew/opt", "/usr/local/opt"].map(|opt| Path::new(opt).join(folder))
}

fn has_postgres(directory: &Path) -> bool {
    is_executable(&directory.join("initdb")) && is_executable(&directory.join("postgres"))
}

/// `parent/{prefix}{number}/{inside}` for every number there is, the highest first.
fn versioned(parent: impl AsRef<Path>, prefix: &str, inside: &str) -> Vec<PathBuf> {
    let version = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let number: u32 = name.to_str()?.strip_prefix(prefix)?.parse().ok()?;
        Some((number, entry.path().join(inside)))
    };
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let mut versions: Vec<_> = entries.filter_map(version).collect();
    versions.sort_by_key(|(number, _)| Reverse(*number));
    versions.into_iter().map(|(_, path)| path).collect()
}

fn path_directories() -> Vec<PathBuf> {
    // Empty and relative elements depend on the working directory.
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).filter(|directory| directory.is_absolute()).collect()
}

fn pg_config_bindir() -> Option<PathBuf> {
    Some(PathBuf::from(output_of("pg_config".as_ref(), "--bindir")?.trim()))
}

/// `postgres --version` prints `postgres (PostgreSQL) 15.18 (Debian …)`; betas print `18beta1`.
fn major_version(directory: &Path) -> Option<u32> {
    parse_major(&output_of(&directory.join("postgres"), "--version")?)
}

fn parse_major(version: &str) -> Option<u32> {
    let number = version.split_once("(PostgreSQL)")?.1.trim_start();
    let digits = number.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(number.len());
    number[..digits].parse().ok()
}

/// The output of a program with one flag, if it succeeds.
fn output_of(program: &Path, flag: &str) -> Option<String> {
    let output = Command::new(program).arg(flag).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then_some(text)
}

/// The first program of this name, in the order of the directories.
fn executable_in(directories: &[PathBuf], name: &str) -> Option<PathBuf> {
    let mut paths = directories.iter().map(|directory| directory.join(name));
    paths.find(|path| is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path)
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// A package manager, its install command, and its packages of Postgres, Redis, and ZooKeeper with
/// Java. The last row is for unknown systems.
const MANAGERS: [(&str, &str, Packages); 4] = [
    ("apt-get", "sudo apt-get update && sudo apt-get install -y", APT),
    ("dnf", "sudo dnf install -y", DNF),
    // Homebrew refuses sudo.
    ("brew", "brew install", BREW),
    ("", "ask your package manager for", PLAIN),
];

type Packages = [&'static str; 3];
const APT: Packages = ["postgresql", "redis-server", "libzookeeper-java default-jre-headless"];
const DNF: Packages = [
    "postgresql-server",
    "valkey",
    "java-latest-openjdk-headless (and ZooKeeper from its site, in ZOOKEEPER_HOME)",
];
const BREW: Packages = ["postgresql@17", "redis", "zookeeper"];
const PLAIN: Packages =
    ["postgresql (the server, 14 or newer)", "redis (7 or newer)", "zookeeper and java"];

fn missing_binaries(missing: &[&str]) -> EmbeddedError {
    let directories = path_directories();
    let is_here = |manager: &str| executable_in(&directories, manager).is_some();
    EmbeddedError::MissingBinaries {
        missing: missing.join(", "),
        install: install_line(is_here, missing, nix::unistd::geteuid().is_root()),
    }
}

fn install_line(is_here: impl Fn(&str) -> bool, missing: &[&str], is_root: bool) -> String {
    let mut managers = MANAGERS.iter();
    let manager = managers.find(|(name, ..)| is_here(name) || name.is_empty());
    let (_, command, packages) = manager.expect("the last one has no name");
    let is_missing = [
        missing.contains(&"postgres"),
        missing.contains(&"redis-server"),
        missing.contains(&"zookeeper") || missing.contains(&"java"),
    ];
    let mut line = command.replace("sudo ", if is_root { "" } else { "sudo " });
    for (package, is_missing) in packages.iter().zip(is_missing) {
        if is_missing {
            line = format!("{line} {package}");
        }
    }
    line
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
        let expected: Vec<_> =
            ["17/bin", "15/bin", "9/bin"].iter().map(|path| scratch.0.join(path)).collect();
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
        let found = directories.map(|directory| has_postgres(&directory));
        assert_eq!(found, [false, false, false, true]);
    }

    #[test]
    fn the_major_version_is_read_from_every_way_of_printing_it() {
        assert_eq!(parse_major("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n"), Some(15));
        assert_eq!(parse_major("postgres (PostgreSQL) 18beta1\n"), Some(18));
        assert_eq!(parse_major("postgres (PostgreSQL) 17"), Some(17));
        assert_eq!(parse_major("something else"), None);
    }

    #[test]
    fn the_install_line_names_only_what_is_missing() {
        let all = ["initdb", "postgres", "redis-server"];
        assert_eq!(
            install_line(|name| name == "apt-get", &all, false),
            "sudo apt-get update && sudo apt-get install -y postgresql redis-server"
        );
        assert_eq!(
            install_line(|name| name == "dnf", &["redis-server"], true),
            "dnf install -y valkey"
        );
        assert_eq!(
            install_line(|name| name == "brew", &["initdb", "postgres"], false),
            "brew install postgresql@17"
        );
        assert_eq!(
            install_line(|name| name == "apt-get", &["zookeeper"], true),
            "apt-get update && apt-get install -y libzookeeper-java default-jre-headless"
        );
        assert!(install_line(|_| false, &all, true).contains("postgresql (the server"));
    }
}
