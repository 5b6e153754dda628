//! `sqlx::migrate!` reads the migrations when it is compiled; without the first line, cargo would not
//! notice a new file. And the live wall's charting library is fetched here: see scripts/charts.sh.

use std::{env, fs, path::PathBuf, process::Command};

fn main() {
    println!("cargo:rerun-if-changed=migrations");
    println!("cargo:rerun-if-changed=scripts/charts.sh");
    charts();
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
