//! One connection to the server. Whether a request was sent is known for each: what was not sent
//! has not been done.

use crate::adapter::{Call, HEADER};
use crate::template::{Scope, scalar};
use crate::trickle::Trickle;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{HeaderMap, Request, Response, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout, timeout_at};

/// Larger answers are cut off.
const MOST_OF_AN_ANSWER: usize = 64 << 10;
/// A listing of half a million orders is smaller.
const MOST_OF_A_LISTING: usize = 64 << 20;

/// Where the server is. Resolved once, so that a name cannot lead elsewhere later.
#[derive(Clone, Debug)]
pub struct Target {
    authority: String,
    path: String,
    addresses: Arc<[SocketAddr]>,
}

impl Target {
    pub async fn find(url: &str, allow_remote: bool) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|_| format!("{url} is no URL"))?;
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http"));
        let authority = authority.ok_or_else(|| format!("{url} is no http:// URL"))?;
        if uri.query().is_some() || authority.as_str().contains('@') {
            return Err(format!("{url} must have neither a query nor a user"));
        }
        let host = authority.host().trim_matches(['[', ']']);
        let found = lookup_host((host, authority.port_u16().unwrap_or(80))).await;
        let addresses: Arc<[SocketAddr]> =
            found.map_err(|error| format!("{host}: {error}"))?.collect();
        if !allow_remote && !addresses.iter().all(|address| address.ip().is_loopback()) {
            return Err(format!(
                "{host} is not this machine: a storm is for servers of your own (--allow-remote)"
            ));
        }
        let path = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { authority: authority.to_string(), path, addresses })
    }

    pub async fn connect(&self) -> std::io::Result<TcpStream> {
        TcpStream::connect(&*self.addresses).await
    }

    /// The request of this call with its variables filled in.
    pub fn request(&self, call: &Call, scope: Scope<'_>) -> Result<Outgoing, String> {
        self.request_to(call, &call.path, scope)
    }

    pub fn request_to(&self, call: &Call, to: &str, scope: Scope<'_>) -> Result<Outgoing, String> {
        let path = format!("{}{}", self.path, scope.path(to));
        let mut headers = BTreeMap::from([("host".to_owned(), self.authority.clone())]);
        let body = match call.body.as_ref().map(|body| scope.json(body)) {
            None => String::new(),
            Some(Value::String(text)) => text,
            Some(json) => {
                headers.insert("content-type".to_owned(), "application/json".to_owned());
                json.to_string()
            }
        };
        // The adapter's own headers stand in the place of these.
        let own = call.headers.iter();
        headers.extend(own.map(|(name, value)| (name.to_ascii_lowercase(), scope.text(value))));
        let mut request = Request::builder().method(call.method.as_str()).uri(&path);
        for (name, value) in &headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::from(body)));
        request.map_err(|error| format!("{} {path}: {error}", call.method))
    }
}

pub type Outgoing = Request<Full<Bytes>>;

pub struct Reply {
    pub status: u16,
    headers: HeaderMap,
    /// A body that is not JSON is one text.
    pub body: Value,
}

impl Reply {
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub fn retry_after(&self) -> Option<Duration> {
        self.header("retry-after")?.trim().parse().ok().map(Duration::from_secs)
    }

    /// The text, number or truth value at this JSON pointer, or in `header:` of this name.
    pub fn at(&self, place: &str) -> Option<Value> {
        match place.strip_prefix(HEADER) {
            Some(name) => self.header(name).map(Value::String),
            None => self.body.pointer(place).filter(|value| scalar(value).is_some()).cloned(),
        }
    }

    /// Cookies as they are sent back.
    fn header(&self, name: &str) -> Option<String> {
        let is_cookie = name.eq_ignore_ascii_case("set-cookie");
        let values = self.headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        let values = values.map(|text| match text.split_once(';') {
            Some((cookie, _)) if is_cookie => cookie,
            _ => text,
        });
        let values: Vec<&str> = values.collect();
        (!values.is_empty()).then(|| values.join("; "))
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub enum NoAnswer {
    NotSent(String),
    Lost(String),
}

impl NoAnswer {
    pub fn why(self) -> String {
        match self {
            Self::NotSent(why) | Self::Lost(why) => why,
        }
    }
}

pub struct Client {
    target: Target,
    timeout: Duration,
    most_bytes: usize,
    open: Option<Connection>,
}

impl Client {
    pub fn new(target: &Target, timeout: Duration) -> Self {
        Self { target: target.clone(), timeout, most_bytes: MOST_OF_AN_ANSWER, open: None }
    }

    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Opens the connection ahead of the first request.
    pub async fn connect(&mut self) -> bool {
        let opened = timeout(self.timeout, connect(&self.target, false)).await;
        self.open = opened.ok().and_then(Result::ok);
        self.open.is_some()
    }

    /// Reads a listing, which may be long.
    pub async fn read_all(&mut self, request: Outgoing) -> Result<Reply, NoAnswer> {
        self.most_bytes = MOST_OF_A_LISTING;
        let reply = self.send(request, false).await;
        self.most_bytes = MOST_OF_AN_ANSWER;
        reply
    }

    /// Sends it and waits for the answer. A slow client has a connection of its own.
    pub async fn send(&mut self, request: Outgoing, is_slow: bool) -> Result<Reply, NoAnswer> {
        let deadline = Instant::now() + self.timeout;
        let mut request = request;
        if !is_slow && let Some(open) = self.open.take() {
            // A server may have closed it while it was idle: then nothing was sent, and what
            // comes back is sent on a new one.
            match self.exchange(open, request, deadline).await {
                Err(Failed::Unsent(back, _)) => request = *back,
                Err(Failed::Lost(why)) => return Err(NoAnswer::Lost(why)),
                Ok(reply) => return Ok(reply),
            }
        }
        let opened = timeout_at(deadline, connect(&self.target, is_slow)).await;
        let opened = opened.map_err(|_| NoAnswer::NotSent("no connection in time".to_owned()))?;
        let opened = opened.map_err(|error| NoAnswer::NotSent(error.to_string()))?;
        let reply = self.exchange(opened, request, deadline).await.map_err(|failed| match failed {
            Failed::Unsent(_, why) => NoAnswer::NotSent(why),
            Failed::Lost(why) => NoAnswer::Lost(why),
        });
        self.open = self.open.take().filter(|_| !is_slow);
        reply
    }

    /// Keeps the connection if the whole answer came over it.
    async fn exchange(
        &mut self,
        mut connection: Connection,
        request: Outgoing,
        deadline: Instant,
    ) -> Result<Reply, Failed> {
        let late = || Failed::Lost("no answer in time".to_owned());
        if !matches!(timeout_at(deadline, connection.ready()).await, Ok(Ok(()))) {
            return Err(Failed::Unsent(Box::new(request), "the connection was closed".to_owned()));
        }
        let sent = timeout_at(deadline, connection.try_send_request(request)).await;
        let response = sent.map_err(|_| late())?.map_err(|mut error| {
            let why = error.error().to_string();
            match error.take_message() {
                Some(request) => Failed::Unsent(Box::new(request), why),
                None => Failed::Lost(why),
            }
        })?;
        let reply = timeout_at(deadline, read(response, self.most_bytes)).await;
        let reply = reply.map_err(|_| late())?;
        self.open = Some(connection);
        reply.map_err(Failed::Lost)
    }
}

type Connection = SendRequest<Full<Bytes>>;

enum Failed {
    /// With the request, which may be sent again.
    Unsent(Box<Outgoing>, String),
    Lost(String),
}

async fn connect(target: &Target, is_slow: bool) -> std::io::Result<Connection> {
    let stream = target.connect().await?;
    stream.set_nodelay(true)?;
    let stream = Trickle::new(stream, is_slow);
    let (sender, connection) =
        handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
    // It ends with its sender.
    tokio::spawn(connection);
    Ok(sender)
}

async fn read(response: Response<Incoming>, most_bytes: usize) -> Result<Reply, String> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, most_bytes).collect().await;
    let bytes = body.map_err(|error| format!("the answer broke off: {error}"))?.to_bytes();
    let text = || Value::String(String::from_utf8_lossy(&bytes).into_owned());
    let body = serde_json::from_slice(&bytes).unwrap_or_else(|_| text());
    Ok(Reply { status: head.status.as_u16(), headers: head.headers, body })
}
