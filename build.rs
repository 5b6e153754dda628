//! Notices a migration that is not listed, and fetches the live wall's charting library: see
//! scripts/charts.sh.

use std::{env, fs, path::PathBuf, process::Command};

fn main() {
    println!("cargo:rerun-if-changed=migrations");
    println!("cargo:rerun-if-changed=scripts/charts.sh");
    migrations();
    charts();
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

/// The three files of uPlot in OUT_DIR; empty ones where the package cannot be had, so that a build
/// without network stays a build.
fn charts() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let script = Command::new("bash").arg("scripts/charts.sh").arg(&out).status();
    if script.is_ok_and(|status| status.success()) {
        return;
    }
    println!(
        "cargo:warning=uPlot could not be fetched: the live wall will show tables without charts. \
         To try again: touch build.rs"
    );
    for file in ["uPlot.iife.min.js", "uPlot.min.css", "uPlot.LICENSE"] {
        fs::write(out.join(file), "").expect("OUT_DIR can be written");
    }
}
