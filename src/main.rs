//! `flash-sale`: see `flash-sale --help` and [`flash_sale::cli`].

use clap::Parser;
use std::process::ExitCode;

/// Purchases make many small allocations on many threads: mimalloc is measurably faster.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // `.env` may hold the defaults of the arguments.
    match dotenvy::dotenv() {
        Ok(_) => {}
        Err(error) if error.not_found() => {}
        Err(error) => {
            eprintln!("flash-sale: .env: {error}");
            return ExitCode::from(2);
        }
    }
    let cli = flash_sale::cli::Cli::parse();
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(flash_sale::cli::run(cli)),
        Err(error) => {
            eprintln!("flash-sale: cannot start the runtime: {error}");
            ExitCode::from(2)
        }
    }
}
