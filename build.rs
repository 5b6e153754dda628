//! `sqlx::migrate!` reads the migrations when it is compiled; without this, cargo would not notice a
//! new file.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
