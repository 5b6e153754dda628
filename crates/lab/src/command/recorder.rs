//! Recordings for pages without a server: what the lab's own routes answer, as files.

use crate::http::{LabState, routes};
use crate::{Lab, Trial, Wanted, storm::Storm, strategies};
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode, header::CONTENT_TYPE};
use axum::{Router, response::Response};
use futures_util::{StreamExt, future::try_join_all};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tower::ServiceExt;

/// Path in the folder, and content.
pub type File = (String, Vec<u8>);

const LANGUAGES: [&str; 2] = ["en", "zh"];
const LONGEST_ANSWER: usize = 4 << 20;
/// A machine that is busy is asked again.
const TRIES: u32 = 3;
const RETRY: Duration = Duration::from_secs(3);

/// A race of static/js/lab/races.js. A lane of a demonstration leaves numbers at zero.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Race {
    strategies: Vec<String>,
    pub together: bool,
    stock: i64,
    nodes: i64,
    buyers: u32,
    concurrency: u32,
    duplicates: u32,
    options: Map<String, Value>,
}

impl Race {
    /// The trial of each lane.
    pub fn lanes(&self) -> Result<Vec<Trial>, String> {
        let lanes = self.strategies.iter();
        lanes.map(|key| self.lane(key).ok_or(format!("races.js: no such lane: {key}"))).collect()
    }

    /// `strategy` or `strategy:demonstration`
    fn lane(&self, key: &str) -> Option<Trial> {
        if let Some((id, show)) = key.split_once(':') {
            let strategy = strategies::find(id)?;
            let show = strategy.demonstrations.iter().find(|one| one.id == show)?;
            return Some(Trial::of(strategy, &show.scenario));
        }
        let wanted = Wanted {
            strategy: strategies::find(key)?.id.to_owned(),
            stock: self.stock,
            nodes: Some(self.nodes),
            options: self.options.clone(),
            ..Wanted::default()
        };
        let storm = Storm {
            buyers: self.buyers,
            concurrency: self.concurrency,
            duplicate_share: Some(f64::from(self.duplicates) / 100.0),
        };
        Some(Trial { wanted, storm })
    }
}

/// Asks the lab's routes.
pub struct Recorder(Router);

impl Recorder {
    pub fn new(lab: Arc<Lab>) -> Self {
        let state = LabState { lab: Some(lab), ..LabState::default() };
        Self(routes(state).split_for_parts().0)
    }

    /// The name of a lane's arena on this page, as replay.js has it.
    pub fn arena_of(page: &str, lane: &Wanted) -> String {
        let Wanted { strategy, stock, nodes, options, .. } = lane;
        // The pages do not send `work_ms` as an option.
        let options = options.keys().filter(|name| *name != "work_ms");
        let options: String = options.map(|name| format!("-{name}")).collect();
        format!("{page}-{strategy}-{stock}-{}{options}", nodes.unwrap_or(1))
    }

    /// The answer in each language.
    pub async fn answers(&self, method: &str, path: &str) -> Result<Vec<File>, String> {
        let mut files = Vec::new();
        for language in LANGUAGES {
            let asked = format!("{path}?lang={language}");
            let answer = self.ask(method, &asked, String::new()).await?;
            files.push((format!("data/{language}/{path}.json"), whole(answer).await?));
        }
        Ok(files)
    }

    /// The events of the lane for the page of this name, in each language.
    pub async fn lane(&self, page: &str, lane: &Trial) -> Result<Vec<File>, String> {
        let made = self.ask("POST", "arenas", json!(lane.wanted).to_string()).await?;
        let made: Value = serde_json::from_slice(&whole(made).await?).unwrap_or_default();
        let arena = format!("arenas/{}", made["arena_id"].as_str().unwrap_or_default());
        let told = self.storm(&arena, &lane.storm).await;
        self.ask("DELETE", &arena, String::new()).await?;
        let name = format!("arenas/{}/events", Self::arena_of(page, &lane.wanted));
        let file = |(language, told): (_, Value)| {
            (format!("data/{language}/{name}.json"), told.to_string().into_bytes())
        };
        Ok(LANGUAGES.into_iter().zip(told?).map(file).collect())
    }

    async fn storm(&self, arena: &str, storm: &Storm) -> Result<Vec<Value>, String> {
        let streams = try_join_all(LANGUAGES.map(async |language| {
            self.ask("GET", &format!("{arena}/events?lang={language}"), String::new()).await
        }));
        let (streams, began) = (streams.await?, Instant::now());
        self.ask("POST", &format!("{arena}/storm"), json!(storm).to_string()).await?;
        try_join_all(streams.into_iter().map(|stream| moments(stream, began))).await
    }

    /// `body` is JSON, or empty.
    async fn ask(&self, method: &str, path: &str, body: String) -> Result<Response, String> {
        let mut tries = 1;
        loop {
            let request = Request::builder().method(method).uri(format!("/api/v1/lab/{path}"));
            let request = request.header(CONTENT_TYPE, "application/json");
            let request = request.body(Body::from(body.clone()));
            let request = request.map_err(|error| format!("{path}: {error}"))?;
            let Ok(response) = self.0.clone().oneshot(request).await;
            let status = response.status();
            if status.is_success() {
                return Ok(response);
            }
            let is_busy =
                [StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS].contains(&status);
            if !is_busy || tries == TRIES {
                let said = whole(response).await?;
                let said = String::from_utf8_lossy(&said);
                return Err(format!("{method} {path}: {status} {said}"));
            }
            tries += 1;
            tokio::time::sleep(RETRY).await;
        }
    }
}

async fn whole(response: Response) -> Result<Vec<u8>, String> {
    let body = to_bytes(response.into_body(), LONGEST_ANSWER).await;
    body.map(Vec::from).map_err(|error| error.to_string())
}

/// The pieces of a stream of events up to the verdict, each with its milliseconds since then.
async fn moments(response: Response, began: Instant) -> Result<Value, String> {
    let mut pieces = response.into_body().into_data_stream();
    let mut moments = Vec::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| error.to_string())?;
        let after = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        moments.push((after, String::from_utf8_lossy(&piece).into_owned()));
    }
    match moments.last() {
        Some((_, last)) if last.starts_with("event: verdict") => Ok(json!(moments)),
        last => Err(format!("a race ended without a verdict: {last:?}")),
    }
}
