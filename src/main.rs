//! `flash-sale`: see `flash-sale --help` and [`flash_sale::commands`].

use clap::Parser;
use std::process::ExitCode;

/// Purchases allocate a lot of small things on many threads; mimalloc is markedly faster at that than
/// the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Before the arguments: `.env` may hold what they default to.
    match dotenvy::dotenv() {
        Ok(_) => {}
        Err(error) if error.not_found() => {}
        Err(error) => {
            eprintln!("flash-sale: .env: {error}");
            return ExitCode::from(2);
        }
    }
    let cli = flash_sale::commands::Cli::parse();
    match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime.block_on(flash_sale::commands::run(cli)),
        Err(error) => {
            eprintln!("flash-sale: cannot start the runtime: {error}");
            ExitCode::from(2)
        }
    }
}
