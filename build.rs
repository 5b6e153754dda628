//! Notices a migration that is not listed, and fetches what the pages have from others: see
//! scripts/page_files.sh.

use std::{env, fs, path::PathBuf, process::Command};

fn main() {
    println!("cargo:rerun-if-changed=migrations");
    println!("cargo:rerun-if-changed=scripts/page_files.sh");
    migrations();
    page_files();
}

/// Every file of migrations/ stands in the list that the program runs.
fn migrations() {
    const LIST: &str = "src/postgres/mod.rs";
    println!("cargo:rerun-if-changed={LIST}");
    let list = fs::read_to_string(LIST).expect("the list of migrations");
    for file in fs::read_dir("migrations").expect("the migrations") {
        let name = file.expect("an entry").file_name().to_string_lossy().replace(".sql", "");
        assert!(list.contains(&format!("\"{name}\"")), "add \"{name}\" to MIGRATIONS in {LIST}");
    }
}

/// The files of uPlot and of the pages' font in OUT_DIR; empty ones where a package cannot be had,
/// so that a build without network stays a build.
fn page_files() {
    const FILES: [&str; 5] = [
        "uPlot.iife.min.js",
        "uPlot.min.css",
        "uPlot.LICENSE",
        "archivo-narrow-5.3.0.woff2",
        "archivo-narrow.LICENSE",
    ];
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let script = Command::new("bash").arg("scripts/page_files.sh").arg(&out).status();
    if script.is_ok_and(|status| status.success()) {
        return;
    }
    println!(
        "cargo:warning=uPlot or the font could not be fetched: the live wall may show tables \
         without charts, headings the system's face. To try again: touch build.rs"
    );
    for file in FILES.map(|name| out.join(name)).iter().filter(|file| !file.exists()) {
        fs::write(file, "").expect("OUT_DIR can be written");
    }
}
