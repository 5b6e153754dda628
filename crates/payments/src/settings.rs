//! Which provider, from flags and the environment.

use crate::client::HttpProvider;
use crate::provider::PaymentProvider;
use crate::signature::WebhookSecret;
use crate::simulated::SimulatedPayments;
use clap::Args;
use std::sync::Arc;

/// Without Debug: they hold secrets.
#[derive(Clone, Default, Args)]
pub struct PaymentSettings {
    /// The payment provider's API, like http://127.0.0.1:9090. Unset: when embedded, on a loopback
    /// address and without TRUST_PROXY, a sandbox of one runs beside the servers; otherwise payment
    /// is simulated inside this process, and always succeeds
    #[arg(long, env = "PAYMENT_URL", value_name = "URL", requires_all = ["payment_key",
          "payment_webhook_secret"])]
    pub payment_url: Option<String>,

    /// Opens the provider's API
    #[arg(long, env = "PAYMENT_KEY", hide_env_values = true, value_name = "KEY")]
    pub payment_key: Option<String>,

    /// Signs the provider's webhooks, which go to /api/v1/webhooks/payments
    #[arg(long, env = "PAYMENT_WEBHOOK_SECRET", hide_env_values = true, value_name = "SECRET")]
    pub payment_webhook_secret: Option<String>,
}

/// A provider, and the secret of its webhooks; `None`: it sends none.
#[derive(Clone)]
pub struct PaymentLink {
    pub provider: Arc<dyn PaymentProvider>,
    pub webhooks: Option<WebhookSecret>,
}

impl PaymentSettings {
    /// The configured provider, or the simulated one. An error says what is wrong with the URL.
    pub fn link(&self) -> Result<PaymentLink, String> {
        let Some(url) = &self.payment_url else {
            return Ok(Arc::new(SimulatedPayments).into());
        };
        let is_empty = |secret: &Option<String>| secret.as_deref().is_none_or(str::is_empty);
        if is_empty(&self.payment_key) || is_empty(&self.payment_webhook_secret) {
            return Err("PAYMENT_KEY and PAYMENT_WEBHOOK_SECRET must not be empty".to_owned());
        }
        let provider = HttpProvider::new(url, self.payment_key.as_deref().unwrap_or_default())?;
        let webhooks = self.payment_webhook_secret.as_deref().map(WebhookSecret::new);
        Ok(PaymentLink { provider: Arc::new(provider), webhooks })
    }
}

impl<P: PaymentProvider> From<Arc<P>> for PaymentLink {
    fn from(provider: Arc<P>) -> Self {
        Self { provider, webhooks: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_without_secrets_is_refused() {
        let with = |key: Option<&str>, secret: Option<&str>| {
            let payment_url = Some("http://127.0.0.1:9090".to_owned());
            let (payment_key, payment_webhook_secret) =
                (key.map(str::to_owned), secret.map(str::to_owned));
            PaymentSettings { payment_url, payment_key, payment_webhook_secret }.link()
        };
        assert!(with(Some("key"), Some("secret")).is_ok());
        for (key, secret) in [(Some(""), Some("secret")), (Some("key"), Some("")), (None, None)] {
            assert!(with(key, secret).is_err(), "{key:?} {secret:?}");
        }
    }
}
