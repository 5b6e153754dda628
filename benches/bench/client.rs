//! The operator's side of a session: creating sales, reading metrics, asking the audit. Never used
//! while a run is timed.

use crate::{Error, load::User};
use serde_json::{Value, json};
use std::{net::SocketAddr, time::Duration};

#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    admin_token: String,
}

/// What the audit says, as far as it matters here.
#[derive(Debug)]
pub struct Audit {
    pub ok: bool,
    pub quiescent: bool,
    pub live: u64,
    pub problems: String,
}

impl Client {
    pub fn new(address: SocketAddr, admin_token: &str) -> Result<Self, Error> {
        let http = reqwest::Client::builder()
            .no_proxy()
            .timeout(Duration::from_secs(60))
            .build()?;
        let admin_token = admin_token.to_owned();
        Ok(Self {
            http,
            base: format!("http://{address}"),
            admin_token,
        })
    }

    async fn answer(&self, request: reqwest::RequestBuilder, token: &str) -> Result<Value, Error> {
        let response = request.bearer_auth(token).send().await?;
        let (url, status) = (response.url().path().to_owned(), response.status());
        let text = response.text().await?;
        if !status.is_success() {
            return Err(format!("{url} answered {status}: {text}").into());
        }
        Ok(serde_json::from_str(&text)?)
    }

    /// A sale that is open; units are held long enough that none comes back during the session.
    pub async fn create_sale(&self, title: &str, stock: usize) -> Result<String, Error> {
        let sale = json!({
            "title": title,
            "price_cents": 100,
            "stock": stock,
            "payment_timeout_secs": 86_400,
        });
        let request = self
            .http
            .post(format!("{}/api/v1/admin/sales", self.base))
            .json(&sale);
        let created = self.answer(request, &self.admin_token).await?;
        let id = created["id"].as_str().ok_or("a created sale has no id")?;
        Ok(id.to_owned())
    }

    /// An arena of the lab in which this strategy sells, disturbed by nothing.
    pub async fn create_arena(&self, strategy: &str, stock: usize) -> Result<String, Error> {
        let arena = json!({
            "strategy": strategy,
            "stock": stock,
            "options": {"interleave": "off", "work_ms": 0},
        });
        let request = self
            .http
            .post(format!("{}/api/v1/lab/arenas", self.base))
            .json(&arena);
        let created = self.answer(request, "").await?;
        let id = created["arena_id"].as_str().ok_or("an arena has no id")?;
        Ok(id.to_owned())
    }

    /// How many orders an arena has, and whether its strategy kept its promise.
    pub async fn verdict(&self, arena: &str) -> Result<(u64, bool), Error> {
        let url = format!("{}/api/v1/lab/arenas/{arena}/verdict", self.base);
        let verdict = self.answer(self.http.get(url), "").await?;
        let sold = verdict["sold"].as_u64().ok_or("a verdict has no count")?;
        Ok((sold, verdict["kept_promise"] == true))
    }

    pub async fn delete_arena(&self, arena: &str) -> Result<(), Error> {
        let url = format!("{}/api/v1/lab/arenas/{arena}", self.base);
        self.http.delete(url).send().await?.error_for_status()?;
        Ok(())
    }

    pub async fn buy(&self, sale: &str, user: &User) -> Result<(), Error> {
        let request = self
            .http
            .post(format!("{}/api/v1/sales/{sale}/orders", self.base));
        self.answer(request, &user.token).await.map(|_| ())
    }

    pub async fn sale_state(&self, sale: &str) -> Result<String, Error> {
        let request = self.http.get(format!("{}/api/v1/sales/{sale}", self.base));
        let sale = self.answer(request, "").await?;
        Ok(sale["state"].as_str().unwrap_or_default().to_owned())
    }

    /// The newest order of a user.
    pub async fn order_of(&self, user: &User) -> Result<String, Error> {
        let request = self
            .http
            .get(format!("{}/api/v1/orders?limit=1", self.base));
        let found = self.answer(request, &user.token).await?;
        let id = found["orders"][0]["order_id"]
            .as_str()
            .ok_or("a buyer has no order")?;
        Ok(id.to_owned())
    }

    pub async fn audit(&self, sale: &str) -> Result<Audit, Error> {
        let url = format!("{}/api/v1/admin/sales/{sale}/audit", self.base);
        let audit = self.answer(self.http.get(url), &self.admin_token).await?;
        Ok(Audit {
            ok: audit["ok"] == true,
            quiescent: audit["quiescent"] == true,
            live: audit["live"]
                .as_u64()
                .ok_or("an audit has no count of live orders")?,
            problems: audit["problems"].to_string(),
        })
    }

    pub async fn metrics(&self) -> Result<Metrics, Error> {
        let response = self
            .http
            .get(format!("{}/metrics", self.base))
            .send()
            .await?;
        Ok(Metrics {
            text: response.error_for_status()?.text().await?,
        })
    }
}

/// A reading of `/metrics`, of one server or of several.
#[derive(Default)]
pub struct Metrics {
    text: String,
}

impl Metrics {
    /// The sum of a metric over its labels; 0 while it has not been touched.
    pub fn total(&self, name: &str) -> f64 {
        let samples = self.text.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            // Otherwise the name of another metric begins with this one's.
            if !rest.starts_with(['{', ' ']) {
                return None;
            }
            rest.rsplit_once(' ')?.1.parse::<f64>().ok()
        });
        samples.sum()
    }
}
