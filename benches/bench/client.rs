//! The operator's side of a session: creating sales, reading metrics, asking the audit. Never used
//! while a run is timed.

use crate::Result;
use reqwest::{Method, RequestBuilder};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{net::SocketAddr, time::Duration};

#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    admin_token: String,
}

/// What the audit says, as far as it matters here.
#[derive(Deserialize)]
pub struct Audit {
    pub ok: bool,
    pub quiescent: bool,
    pub live: usize,
    pub problems: Value,
}

impl Client {
    pub fn new(address: SocketAddr, admin_token: &str) -> Result<Self> {
        let http = reqwest::Client::builder().no_proxy();
        Ok(Self {
            http: http.timeout(Duration::from_secs(60)).build()?,
            base: format!("http://{address}"),
            admin_token: admin_token.to_owned(),
        })
    }

    fn ask(&self, method: Method, path: &str, token: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base)).bearer_auth(token)
    }

    async fn text(&self, request: RequestBuilder) -> Result<String> {
        let response = request.send().await?;
        let path = response.url().path().to_owned();
        let status = response.status();
        let text = response.text().await?;
        match status.is_success() {
            true => Ok(text),
            false => Err(format!("{path} answered {status}: {text}").into()),
        }
    }

    async fn get(&self, path: &str, token: &str) -> Result<Value> {
        let text = self.text(self.ask(Method::GET, path, token)).await?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Creates something; the text of its member `id`.
    async fn create(&self, path: &str, body: Value, id: &str) -> Result<String> {
        let text = self.text(self.ask(Method::POST, path, &self.admin_token).json(&body)).await?;
        let created: Value = serde_json::from_str(&text)?;
        Ok(created[id].as_str().ok_or_else(|| format!("{path} answered {text}"))?.to_owned())
    }

    /// A sale that is open; units are held long enough that none comes back during the session.
    pub async fn create_sale(&self, title: &str, stock: usize) -> Result<String> {
        let sale = json!({
            "title": title,
            "price_cents": 100,
            "stock": stock,
            "payment_timeout_secs": 86_400,
        });
        self.create("/api/v1/admin/sales", sale, "id").await
    }

    /// An arena of the lab in which this strategy sells, disturbed by nothing.
    pub async fn create_arena(&self, strategy: &str, stock: usize) -> Result<String> {
        let options = json!({"interleave": "off", "work_ms": 0});
        let arena = json!({"strategy": strategy, "stock": stock, "options": options});
        self.create("/api/v1/lab/arenas", arena, "arena_id").await
    }

    /// How many orders an arena has, and whether its strategy kept its promise. Then it is deleted.
    pub async fn close_arena(&self, arena: &str) -> Result<(usize, bool)> {
        let path = format!("/api/v1/lab/arenas/{arena}");
        let verdict = self.get(&format!("{path}/verdict"), "").await?;
        let sold = verdict["sold"].as_u64().ok_or("a verdict has no count")?;
        self.text(self.ask(Method::DELETE, &path, "")).await?;
        Ok((usize::try_from(sold)?, verdict["kept_promise"] == true))
    }

    pub async fn buy(&self, sale: &str, token: &str) -> Result {
        let path = format!("/api/v1/sales/{sale}/orders");
        self.text(self.ask(Method::POST, &path, token)).await.map(drop)
    }

    pub async fn sale_state(&self, sale: &str) -> Result<String> {
        let sale = self.get(&format!("/api/v1/sales/{sale}"), "").await?;
        Ok(sale["state"].as_str().unwrap_or_default().to_owned())
    }

    /// The newest order of a user.
    pub async fn order_of(&self, token: &str) -> Result<String> {
        let found = self.get("/api/v1/orders?limit=1", token).await?;
        Ok(found["orders"][0]["order_id"].as_str().ok_or("a buyer has no order")?.to_owned())
    }

    pub async fn audit(&self, sale: &str) -> Result<Audit> {
        let path = format!("/api/v1/admin/sales/{sale}/audit");
        Ok(serde_json::from_value(self.get(&path, &self.admin_token).await?)?)
    }

    pub async fn metrics(&self) -> Result<Metrics> {
        Ok(Metrics(self.text(self.ask(Method::GET, "/metrics", "")).await?))
    }
}

/// A reading of `/metrics`.
pub struct Metrics(String);

impl Metrics {
    /// The sum of a metric over its labels; 0 while it has not been touched.
    pub fn total(&self, name: &str) -> f64 {
        let samples = self.0.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            // Otherwise the name of another metric begins with this one's.
            let value = rest.starts_with(['{', ' ']).then(|| rest.rsplit_once(' '))??.1;
            value.parse::<f64>().ok()
        });
        samples.sum()
    }
}
