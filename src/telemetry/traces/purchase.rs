//! The spans of a purchase behind its request: in the gate, in the script, and in the writer.

use super::{COMPUTED, HERE, Over, Traces, active, wall};
use crate::domain::{Admission, OrderId};
use opentelemetry::{
    KeyValue, SpanId, TraceFlags, TraceId,
    trace::{Link, Span as _, SpanContext, Status, TraceState},
};
use opentelemetry_sdk::trace::Span as SdkSpan;
use sha2::{Digest, Sha256};
use std::time::{Duration, Instant, SystemTime};

/// The most orders whose trace is remembered until they are written, and how long. A trace that is forgotten ends with
/// the admission.
const MOST_CARRIED: usize = 100_000;
const FORGOTTEN: Duration = Duration::from_secs(60);

/// The traced request that became an order.
pub(super) struct Carried {
    request: SpanContext,
    since: Instant,
}

/// A traced request in a queue. Boxed, because it is rare: one that is not traced carries a null pointer.
pub struct Joined(Box<SpanContext>);

impl Joined {
    /// The request that this task serves, if it is traced.
    #[inline]
    pub fn here() -> Option<Self> {
        active()?;
        HERE.try_with(|here| Self(Box::new(here.clone()))).ok()
    }
}

/// The ids of the span `order recovered` of this order, in the trace of its own. Anybody can compute them.
fn own_trace_of(order: OrderId) -> (TraceId, SpanId) {
    let hash = Sha256::digest(order.get().to_be_bytes());
    let (mut trace, mut span) = ([0; 16], [0; 8]);
    trace.copy_from_slice(&hash[..16]);
    span.copy_from_slice(&hash[16..24]);
    (TraceId::from_bytes(trace), SpanId::from_bytes(span))
}

/// The order that is new by this answer.
fn accepted<E>(answer: &Result<Admission, E>) -> Option<OrderId> {
    match answer {
        Ok(Admission::Accepted {
            order_id,
            replayed: false,
        }) => Some(*order_id),
        _ => None,
    }
}

fn link(to: SpanContext) -> Link {
    Link::new(to, Vec::new(), 0)
}

// ---- the gate ---------------------------------------------------------------------------------

/// The span of a batch of buyers in the gate; at least one of them is traced.
pub struct Batch {
    traces: &'static Traces,
    span: SdkSpan,
    began: SystemTime,
}

impl Batch {
    /// Opens the span of a batch that begins now. `None`: nobody in it is traced.
    #[inline]
    pub fn open<'a>(buyers: impl Iterator<Item = &'a Option<Joined>>) -> Option<Self> {
        let traces = active()?;
        let links: Vec<Link> = buyers
            .flatten()
            .map(|joined| link((*joined.0).clone()))
            .collect();
        if links.is_empty() {
            return None;
        }
        let began = SystemTime::now();
        let span = traces.open(Over {
            name: "admission batch",
            began,
            parent: None,
            attributes: vec![KeyValue::new("flash_sale.traced", links.len() as i64)],
            links,
        });
        Some(Self {
            traces,
            span,
            began,
        })
    }

    /// Does what judges the batch; the call of the script belongs to this span.
    pub async fn around<T>(batch: &Option<Self>, judging: impl Future<Output = T>) -> T {
        match batch {
            None => judging.await,
            Some(batch) => {
                let context = batch.span.span_context().clone();
                // Boxed: the scope would carry the room of the future twice.
                HERE.scope(context, Box::pin(judging)).await
            }
        }
    }

    /// What became of one buyer who had waited `since` then: their wait, and their admission.
    pub fn judged<E>(&self, joined: &Joined, since: Instant, answer: &Result<Admission, E>) {
        let verdict = match answer {
            Ok(Admission::Accepted { replayed, .. }) if *replayed => "replayed",
            Ok(Admission::Accepted { .. }) => "accepted",
            Ok(Admission::AlreadyOrdered { .. }) => "already_ordered",
            Ok(Admission::SoldOut) => "sold_out",
            Ok(Admission::NotOpen { .. }) => "not_open",
            Ok(Admission::Paused) => "paused",
            Ok(Admission::Ended) => "ended",
            Err(_) => "unavailable",
        };
        let request = &*joined.0;
        let mut wait = self.traces.open(Over {
            name: "wait for the gate",
            began: wall(since),
            parent: Some(request),
            links: Vec::new(),
            attributes: Vec::new(),
        });
        wait.end_with_timestamp(self.began);
        let mut links = vec![link(self.span.span_context().clone())];
        let mut attributes = vec![KeyValue::new("flash_sale.verdict", verdict)];
        if let Some(order) = accepted(answer) {
            let (trace, span) = own_trace_of(order);
            let own = SpanContext::new(trace, span, TraceFlags::SAMPLED, true, TraceState::NONE);
            links.push(link(own));
            attributes.push(KeyValue::new("flash_sale.order_id", order.to_string()));
        }
        let mut admission = self.traces.open(Over {
            name: "admission",
            began: self.began,
            parent: Some(request),
            links,
            attributes,
        });
        admission.end();
    }
}

/// When too many are remembered, every so-many-th order looks for those that nobody will ask for.
const SWEPT_EVERY: i64 = 1_024;

impl Traces {
    /// Remembers the request of an accepted order until this process has written it. To be called before the writer
    /// can have the order.
    pub fn carry<E>(&self, joined: Option<&Joined>, answer: &Result<Admission, E>) {
        let (Some(joined), Some(order)) = (joined, accepted(answer)) else {
            return;
        };
        if self.carried.len() >= MOST_CARRIED {
            // The gate waits for this: so only now and then, however long Postgres is away.
            if order.get() % SWEPT_EVERY == 0 {
                self.carried
                    .retain(|_, carried| carried.since.elapsed() < FORGOTTEN);
            }
            return;
        }
        let request = (*joined.0).clone();
        let since = Instant::now();
        self.carried.insert(order, Carried { request, since });
    }

    /// Whether a trace that only an id decides about is sampled: in every process the same.
    fn samples(&self, id: SpanId) -> bool {
        let part = u64::from_be_bytes(id.to_bytes()) as f64 / u64::MAX as f64;
        part < self.share || self.share >= 1.0
    }
}

/// A call of Redis on behalf of what this task does, if that is traced.
pub struct Call {
    name: &'static str,
    began: SystemTime,
}

impl Call {
    #[inline]
    pub fn begin(name: &'static str) -> Option<Self> {
        active()?;
        HERE.try_with(|_| ()).ok()?;
        let began = SystemTime::now();
        Some(Self { name, began })
    }

    pub fn end(self, failed: bool) {
        let Some(traces) = active() else { return };
        let _ = HERE.try_with(|here| {
            let mut span = traces.open(Over {
                name: self.name,
                began: self.began,
                parent: Some(here),
                links: Vec::new(),
                attributes: vec![KeyValue::new("db.system.name", "redis")],
            });
            if failed {
                span.set_status(Status::error("no verdicts"));
            }
            span.end();
        });
    }
}

// ---- the writer -------------------------------------------------------------------------------

/// Orders on their way into Postgres, at least one of which is traced.
pub struct Writing {
    traces: &'static Traces,
    span: SdkSpan,
    began: SystemTime,
    /// Whose requests are known here.
    carried: Vec<(OrderId, SpanContext)>,
    /// Whom another process has admitted, or this one and it has forgotten.
    found: Vec<OrderId>,
    committed: SystemTime,
}

impl Writing {
    /// Opens the span of a write that begins now. `recovered`: the orders come from the log, not from the gate of this
    /// process. `None`: nobody is traced.
    #[inline]
    pub fn open(recovered: bool, orders: impl Iterator<Item = OrderId>) -> Option<Self> {
        let traces = active()?;
        let (mut carried, mut found) = (Vec::new(), Vec::new());
        for order in orders {
            match traces.carried.get(&order) {
                Some(known) => carried.push((order, known.request.clone())),
                None if recovered && traces.samples(own_trace_of(order).1) => found.push(order),
                None => {}
            }
        }
        if carried.is_empty() && found.is_empty() {
            return None;
        }
        let began = SystemTime::now();
        let to_requests = carried.iter().map(|(_, request)| link(request.clone()));
        let span = traces.open(Over {
            name: "write orders",
            began,
            parent: None,
            links: to_requests.collect(),
            attributes: Vec::new(),
        });
        Some(Self {
            traces,
            span,
            began,
            carried,
            found,
            committed: began,
        })
    }

    /// The orders are rows.
    pub fn committed(&mut self) {
        self.committed = SystemTime::now();
        let write = self.span.span_context().clone();
        let mut transaction = self.traces.open(Over {
            name: "postgres transaction",
            began: self.began,
            parent: Some(&write),
            links: Vec::new(),
            attributes: vec![KeyValue::new("db.system.name", "postgresql")],
        });
        transaction.end_with_timestamp(self.committed);
        for (order, request) in &self.carried {
            self.traces.carried.remove(order);
            self.order(*order, "order written", Some(request));
        }
        for order in &self.found {
            COMPUTED.set(Some(own_trace_of(*order)));
            self.order(*order, "order recovered", None);
        }
    }

    fn order(&self, order: OrderId, name: &'static str, parent: Option<&SpanContext>) {
        let mut span = self.traces.open(Over {
            name,
            began: self.began,
            parent,
            links: vec![link(self.span.span_context().clone())],
            attributes: vec![KeyValue::new("flash_sale.order_id", order.to_string())],
        });
        COMPUTED.set(None);
        span.end_with_timestamp(self.committed);
    }

    /// The log entries are gone, or stay for a recovery pass.
    pub fn acknowledged(mut self, failed: bool) {
        let write = self.span.span_context().clone();
        let mut acknowledgement = self.traces.open(Over {
            name: "redis ack.lua",
            began: self.committed,
            parent: Some(&write),
            links: Vec::new(),
            attributes: vec![KeyValue::new("db.system.name", "redis")],
        });
        if failed {
            acknowledgement.set_status(Status::error("the entries stay in the log"));
        }
        acknowledgement.end();
        self.span.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn an_order_has_one_trace_of_its_own_and_no_two_the_same() {
        let own: HashSet<_> = (1..1_000)
            .map(|id| own_trace_of(OrderId::from_i64(id)))
            .collect();
        assert_eq!(own.len(), 999);
        let id = OrderId::from_i64(5);
        assert_eq!(own_trace_of(id), own_trace_of(id));
        assert_ne!(own_trace_of(id).0, TraceId::INVALID);
    }
}
