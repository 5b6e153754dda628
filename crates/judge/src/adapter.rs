//! How a server is spoken to: its routes, its bodies, and what its answers mean. Described in
//! docs/judge.md.

use crate::history::Meaning;
use crate::template::{Part, Variables, parts, scalar, short};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adapter {
    #[serde(default)]
    pub about: String,
    /// How many orders one buyer may have.
    #[serde(default = "one")]
    pub per_user: usize,
    /// Before the storm, once.
    #[serde(default)]
    pub setup: Vec<Call>,
    /// Before the storm, for each buyer.
    #[serde(default)]
    pub buyer: Vec<Call>,
    pub order: Order,
    pub orders: Option<Listing>,
    pub remaining: Option<Remaining>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    #[serde(default = "get")]
    pub method: String,
    pub path: String,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// A text is sent as it is, anything else as JSON.
    pub body: Option<Value>,
    /// New variables: where in the answer each stands.
    #[serde(default)]
    pub capture: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    pub request: Call,
    /// The first that fits counts.
    pub answers: Vec<Answer>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    pub status: OneOrMore<u16>,
    pub at: Option<String>,
    /// A null is a value to compare with, too.
    #[serde(default, deserialize_with = "given")]
    pub is: Option<OneOrMore<Value>>,
    #[serde(deserialize_with = "answer")]
    pub means: Meaning,
    /// Only a sale must have one.
    pub order_id: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listing {
    pub request: Call,
    /// The path of every page but the first; `{last}` is the last order id so far.
    pub next_page: Option<String>,
    pub rows: String,
    pub order_id: String,
    pub user: String,
    pub skip: Option<Skip>,
}

/// Rows that are no orders.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skip {
    pub at: String,
    pub is: OneOrMore<Value>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remaining {
    pub request: Call,
    pub at: String,
    /// A 404 is no fault.
    #[serde(default)]
    pub optional: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "neither a value of this type nor a list of such values")]
pub enum OneOrMore<T> {
    /// First, because a list is one JSON value, too.
    More(Vec<T>),
    One(T),
}

impl<T: PartialEq> OneOrMore<T> {
    pub fn as_slice(&self) -> &[T] {
        match self {
            Self::One(item) => std::slice::from_ref(item),
            Self::More(items) => items,
        }
    }

    pub fn has(&self, item: &T) -> bool {
        self.as_slice().contains(item)
    }
}

fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// The other meanings are those of no answer.
fn answer<'de, D: Deserializer<'de>>(from: D) -> Result<Meaning, D::Error> {
    let means = Meaning::deserialize(from).ok().filter(|means| means.is_an_answer());
    means.ok_or_else(|| D::Error::custom("must be sold, sold_out, already_ordered or come_again"))
}

fn one() -> usize {
    1
}

fn get() -> String {
    "GET".to_owned()
}

/// A mistake in an adapter, and its place.
#[derive(Debug, thiserror::Error)]
#[error("adapter: {member}: {why}")]
pub struct BadAdapter {
    pub member: String,
    pub why: String,
}

impl Adapter {
    /// The contract of the blackboard.
    pub fn contract() -> Result<Self, BadAdapter> {
        Self::parse(include_str!("../adapters/contract.json"))
    }

    pub fn parse(json: &str) -> Result<Self, BadAdapter> {
        let mut json = serde_json::Deserializer::from_str(json);
        let adapter: Self = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let why = error.inner().to_string();
            BadAdapter { member: error.path().to_string(), why }
        })?;
        let end = json.end();
        end.map_err(|error| bad("the end of the file", error.to_string()))?;
        Checked::default().adapter(&adapter)?;
        Ok(adapter)
    }

    /// The variables that the environment gives.
    pub fn environment(&self) -> Result<Variables, BadAdapter> {
        let mut checked = Checked::default();
        checked.adapter(self)?;
        let variable = |(name, member): (String, String)| {
            let value = std::env::var(name.trim_start_matches(ENVIRONMENT));
            let value =
                value.map_err(|_| bad(member, format!("the environment has no {{{name}}}")))?;
            Ok((name, Value::String(value)))
        };
        checked.environment.into_iter().map(variable).collect()
    }
}

impl Call {
    pub fn options(path: &str) -> Self {
        let (method, path) = ("OPTIONS".to_owned(), path.to_owned());
        Self { method, path, headers: BTreeMap::new(), body: None, capture: BTreeMap::new() }
    }

    /// Whether it sends the key of the request.
    pub fn is_keyed(&self) -> bool {
        let body = self.body.as_ref().map(Value::to_string);
        let mut texts = self.headers.values().chain([&self.path]).chain(&body);
        texts.any(|text| text.contains("{key}"))
    }
}

impl Order {
    /// The meaning of this answer, the id of the order, and the answer's misfit.
    pub fn meaning(&self, status: u16, body: &Value) -> (Meaning, Option<String>, Option<String>) {
        let mut nearest = None;
        let known = self.answers.iter().enumerate();
        for (index, answer) in known.filter(|(_, answer)| answer.status.has(&status)) {
            let member = |why: &str| format!("{MISFIT}[{index}].{why}");
            let why = match answer.misfit(body).map_or_else(|| answer.order_id(body), Err) {
                Ok(order_id) => return (answer.means, order_id, None),
                Err(why) if why.starts_with(NO_ID) => return unexpected(&member(&why), body),
                Err(why) => member(&why),
            };
            nearest.get_or_insert(why);
        }
        let nearest = nearest.unwrap_or_else(|| format!("{MISFIT}: none has the status {status}"));
        unexpected(&nearest, body)
    }
}

fn unexpected(why: &str, body: &Value) -> (Meaning, Option<String>, Option<String>) {
    (Meaning::Unexpected, None, Some(short(&format!("{why} in {body}"))))
}

impl Answer {
    /// Why it is another answer.
    fn misfit(&self, body: &Value) -> Option<String> {
        let at = self.at.as_ref()?;
        let Some(value) = body.pointer(at) else { return Some(format!("at: nothing at {at:?}")) };
        let is = self.is.as_ref()?;
        (!is.has(value)).then(|| format!("is: {value} at {at:?}"))
    }

    fn order_id(&self, body: &Value) -> Result<Option<String>, String> {
        let Some(at) = &self.order_id else { return Ok(None) };
        match body.pointer(at).and_then(scalar) {
            Some(id) if id.chars().count() <= LONGEST_ID => Ok(Some(id)),
            _ if self.means != Meaning::Sold => Ok(None),
            Some(_) => Err(format!("{NO_ID} no id at {at:?}")),
            None => Err(format!("{NO_ID} nothing at {at:?}")),
        }
    }
}

/// The adapter misreads this answer: an id is not where it should be, or something else than the
/// id, and most answers with this status mean nothing.
pub fn is_misread(error: &str, is_known: bool) -> bool {
    let member = error.strip_prefix(MISFIT).and_then(|rest| rest.split_once("]."));
    member
        .is_some_and(|(index, why)| index.starts_with('[') && (why.starts_with(NO_ID) || !is_known))
}

/// An error that begins so is the adapter's.
const MISFIT: &str = "order.answers";
const NO_ID: &str = "order_id:";

/// A longer text is no order id.
const LONGEST_ID: usize = 200;
const ENVIRONMENT: &str = "env:";
/// A place in the answer that is no JSON pointer.
pub const HEADER: &str = "header:";

fn bad(member: impl Into<String>, why: impl Into<String>) -> BadAdapter {
    BadAdapter { member: member.into(), why: why.into() }
}

/// The names found while an adapter is checked.
#[derive(Default)]
struct Checked {
    names: BTreeSet<String>,
    /// The variables of the environment, and who needs them.
    environment: BTreeMap<String, String>,
}

impl Checked {
    fn adapter(&mut self, adapter: &Adapter) -> Result<(), BadAdapter> {
        if adapter.per_user == 0 {
            return Err(bad("per_user", "must be at least 1"));
        }
        self.know(["stock"]);
        self.calls("setup", &adapter.setup)?;
        let of_setup = self.names.clone();
        self.know(["user", "number"]);
        self.calls("buyer", &adapter.buyer)?;
        self.know(["key"]);
        self.call("order.request", &adapter.order.request)?;
        self.answers(&adapter.order.answers)?;
        self.names = of_setup;
        if let Some(orders) = &adapter.orders {
            self.listing(orders)?;
        }
        if let Some(remaining) = &adapter.remaining {
            self.call("remaining.request", &remaining.request)?;
            pointer("remaining.at", &remaining.at)?;
        }
        Ok(())
    }

    fn know<const N: usize>(&mut self, names: [&str; N]) {
        self.names.extend(names.map(str::to_owned));
    }

    fn calls(&mut self, member: &str, calls: &[Call]) -> Result<(), BadAdapter> {
        for (index, call) in calls.iter().enumerate() {
            self.call(&format!("{member}[{index}]"), call)?;
            self.names.extend(call.capture.keys().cloned());
        }
        Ok(())
    }

    fn call(&mut self, member: &str, call: &Call) -> Result<(), BadAdapter> {
        let of = |name: &str| format!("{member}.{name}");
        if hyper::Method::from_bytes(call.method.as_bytes()).is_err() {
            return Err(bad(of("method"), format!("{:?} is no method", call.method)));
        }
        self.path(&of("path"), &call.path)?;
        for (name, value) in &call.headers {
            let at = of(&format!("headers.{name}"));
            is_header(&at, name)?;
            if ["content-length", "transfer-encoding"].contains(&&*name.to_ascii_lowercase()) {
                return Err(bad(at, "is set by the judge"));
            }
            self.template(&at, value)?;
        }
        self.body(&of("body"), call.body.as_ref().unwrap_or(&Value::Null))?;
        call.capture.iter().try_for_each(|(name, at)| {
            let member = of(&format!("capture.{name}"));
            match at.strip_prefix(HEADER) {
                Some(header) => is_header(&member, header),
                None => pointer(&member, at),
            }
        })
    }

    fn path(&mut self, member: &str, path: &str) -> Result<(), BadAdapter> {
        if !path.starts_with('/') || path.contains(char::is_whitespace) {
            return Err(bad(member, format!("{path:?} does not begin with / or has a blank")));
        }
        self.template(member, path)
    }

    fn body(&mut self, member: &str, body: &Value) -> Result<(), BadAdapter> {
        match body {
            Value::String(text) => self.template(member, text),
            Value::Array(items) => (items.iter().enumerate())
                .try_for_each(|(index, item)| self.body(&format!("{member}[{index}]"), item)),
            Value::Object(members) => (members.iter())
                .try_for_each(|(name, value)| self.body(&format!("{member}.{name}"), value)),
            _ => Ok(()),
        }
    }

    fn template(&mut self, member: &str, template: &str) -> Result<(), BadAdapter> {
        for part in parts(template) {
            let Part::Name(name) = part else { continue };
            if name.starts_with(ENVIRONMENT) {
                self.environment.insert(name.to_owned(), member.to_owned());
            } else if !self.names.contains(name) {
                let known = self.names.iter().cloned().collect::<Vec<_>>().join(", ");
                let why = format!("there is no variable {{{name}}} here, only {known}");
                return Err(bad(member, why));
            }
        }
        Ok(())
    }

    fn answers(&self, answers: &[Answer]) -> Result<(), BadAdapter> {
        for (index, answer) in answers.iter().enumerate() {
            let of = |name: &str| format!("order.answers[{index}].{name}");
            let is_status = |status: &u16| (100..600).contains(status);
            if !answer.status.as_slice().iter().all(is_status) {
                return Err(bad(of("status"), "must be from 100 to 599"));
            }
            if answer.is.is_some() && answer.at.is_none() {
                return Err(bad(of("is"), "needs `at`, the place of what is compared"));
            }
            answer.at.iter().try_for_each(|at| pointer(&of("at"), at))?;
            answer.order_id.iter().try_for_each(|at| pointer(&of("order_id"), at))?;
        }
        match answers.iter().any(|answer| answer.means == Meaning::Sold) {
            true => Ok(()),
            false => Err(bad("order.answers", "none means sold")),
        }
    }

    fn listing(&mut self, orders: &Listing) -> Result<(), BadAdapter> {
        self.call("orders.request", &orders.request)?;
        pointer("orders.rows", &orders.rows)?;
        pointer("orders.order_id", &orders.order_id)?;
        pointer("orders.user", &orders.user)?;
        orders.skip.iter().try_for_each(|skip| pointer("orders.skip.at", &skip.at))?;
        if let Some(path) = &orders.next_page {
            self.know(["last"]);
            self.path("orders.next_page", path)?;
            self.names.remove("last");
        }
        Ok(())
    }
}

fn is_header(member: &str, name: &str) -> Result<(), BadAdapter> {
    let parsed = hyper::header::HeaderName::from_bytes(name.as_bytes());
    parsed.map(|_| ()).map_err(|_| bad(member, "is no name of a header"))
}

fn pointer(member: &str, at: &str) -> Result<(), BadAdapter> {
    match at.is_empty() || at.starts_with('/') {
        true => Ok(()),
        false => Err(bad(member, format!("{at:?} is no JSON pointer: it begins with /"))),
    }
}
