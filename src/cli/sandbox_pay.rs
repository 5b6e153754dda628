//! `sandbox-pay`: the payment provider of crates/payments, until a signal.

use super::serve::{ready, shutdown_signal};
use crate::app::AppError;
use crate::config::LogSettings;
use crate::telemetry;
use clap::Args;
use payments::sandbox;

#[derive(Args)]
pub struct SandboxPay {
    #[command(flatten)]
    sandbox: sandbox::Settings,
    #[command(flatten)]
    logs: LogSettings,
}

pub async fn sandbox_pay(args: SandboxPay) -> Result<(), AppError> {
    telemetry::start(&args.logs, None)?;
    let shutdown = shutdown_signal()?;
    let sandbox = sandbox::start(args.sandbox).await?;
    ready(&format!("flash-sale sandbox-pay ready on {}", sandbox.url()));
    shutdown.await;
    sandbox.stop().await;
    Ok(())
}
