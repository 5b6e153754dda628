//! Servers of visitors' own before the judge: started, followed, reported, stopped.

use super::error::{HttpResult, JUDGEMENT_NOT_FOUND, Problem};
use super::extract::Visitor;
use super::progress::{PACE, Progress};
use super::{local::OnThisMachine, state::LabState};
use crate::judgement::{End, Judgement, Wanted};
use crate::report::POLICY;
use axum::extract::State;
use axum::http::{StatusCode, header::CONTENT_SECURITY_POLICY};
use axum::response::{Html, IntoResponse, sse::Event};
use futures_util::Stream;
use judge::report::Verdict;
use judge::verdict::{Code, Finding, Kind};
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;
use web::body::{self, Json};
use web::events::{event, told};
use web::{extract::Id, problem::internal, refusals};

refusals!(StartRefusals:
    CROSS_ORIGIN, LOCAL_ONLY, NOT_FOUND, REQUEST_TIMEOUT, JUDGEMENT_RUNNING, TOO_MANY_STORMS,
    TOO_LARGE, UNSUPPORTED_MEDIA_TYPE, INVALID, RATE_LIMITED, UNAVAILABLE
);
refusals!(LookRefusals: NOT_FOUND, JUDGEMENT_NOT_FOUND, RATE_LIMITED, UNAVAILABLE);
refusals!(StopRefusals: CROSS_ORIGIN, NOT_FOUND, JUDGEMENT_NOT_FOUND, RATE_LIMITED, UNAVAILABLE);

#[derive(Serialize, ToSchema)]
pub struct JudgementStarted<'a> {
    judgement_id: &'a str,
}

/// Have a server of your own judged: this program storms it, as `flash-sale judge` does.
///
/// Only for visitors on this machine, and only servers on it. Follow it by its events; one that
/// nobody follows for a minute is stopped.
#[utoipa::path(
    post, path = "/api/v1/lab/judgements", tag = "lab", operation_id = "judge_server",
    request_body = Wanted,
    responses((status = 202, description = "It has begun", body = JudgementStarted),
        StartRefusals),
)]
pub async fn start(
    State(state): State<LabState>,
    visitor: Visitor,
    OnThisMachine: OnThisMachine,
    Json(wanted): Json<Wanted>,
) -> HttpResult {
    let judgement = visitor.lab.judge(visitor.limited(), &wanted, &state.own_ports)?;
    body::json(StatusCode::ACCEPTED, &JudgementStarted { judgement_id: &judgement.id })
}

/// Stop a judgement, and forget it.
#[utoipa::path(
    delete, path = "/api/v1/lab/judgements/{id}", tag = "lab", operation_id = "stop_judgement",
    params(("id" = String, Path, description = "The judgement")),
    responses((status = 204, description = "No more requests are sent"), StopRefusals),
)]
pub async fn stop(Visitor { lab, .. }: Visitor, Id(id): Id<String>) -> HttpResult {
    lab.judgements.stop(&id).await.ok_or(Problem::new(&JUDGEMENT_NOT_FOUND))?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Follow a judgement: event `progress` five times a second, then `verdict`, and the stream ends.
#[utoipa::path(
    get, path = "/api/v1/lab/judgements/{id}/events", tag = "lab",
    operation_id = "follow_judgement",
    params(("id" = String, Path, description = "The judgement")),
    responses((status = 200, description = "Server-sent events", body = Progress, content_type =
        "text/event-stream"), LookRefusals),
)]
pub async fn events(visitor: Visitor, Id(id): Id<String>) -> HttpResult {
    let place = visitor.place("judgement")?;
    let found = visitor.lab.judgements.find(&id);
    let judgement = found.ok_or(Problem::new(&JUDGEMENT_NOT_FOUND))?;
    Ok(place.respond(follow(judgement)))
}

fn follow(judgement: Arc<Judgement>) -> impl Stream<Item = Event> + Send {
    told(move |tell| async move {
        let mut ended = judgement.end.subscribe();
        loop {
            // Looked at before the numbers are: the last progress has them all.
            let end = ended.borrow_and_update().clone();
            tell.send(event("progress", &Progress::of_judgement(&judgement))).await?;
            if let Some(end) = end {
                return tell.send(event("verdict", &Judged::of(&judgement, &end))).await;
            }
            tokio::select! {
                () = tokio::time::sleep(PACE) => {}
                _ = ended.changed() => {}
                () = judgement.gone.cancelled() => return Ok(()),
            }
        }
    })
}

/// The verdict, in the members of an arena's as far as a judge can tell them.
#[derive(Serialize)]
struct Judged<'a> {
    #[serde(flatten)]
    progress: Progress,
    verdict: Verdict,
    stock: u64,
    undersold: usize,
    lost: usize,
    /// How many of the findings are none of those that have a member of their own.
    broken: usize,
    findings: &'a [Finding],
    /// Why it is undecided, and what kind of reason each is.
    doubts: &'a [String],
    doubt_codes: &'a [Code],
}

impl<'a> Judged<'a> {
    fn of(judgement: &Judgement, end: &'a End) -> Self {
        let mut progress = Progress::of_judgement(judgement);
        let (verdict, findings, doubts) = match end {
            Ok(report) => (report.verdict, &*report.findings, &*report.doubts),
            Err(why) => (Verdict::Undecided, &[][..], std::slice::from_ref(why)),
        };
        let doubt_codes = end.as_ref().map_or(&[Code::Run][..], |report| &report.doubt_codes);
        let count = |kind: Kind| {
            let of_kind = findings.iter().filter(|finding| finding.kind == kind);
            of_kind.map(|finding| finding.count).sum::<usize>()
        };
        let has_no_member = |finding: &&Finding| match finding.kind {
            Kind::Oversold | Kind::SoldTwice | Kind::AcknowledgedAndLost => false,
            Kind::Undersold | Kind::FalseSoldOut => false,
            Kind::OrderIdTwice | Kind::StoredNotAcknowledged => true,
            Kind::KeyAnsweredDifferently | Kind::WrongRemaining => true,
        };
        let stored = end.as_ref().ok().and_then(|report| report.stored).unwrap_or(0);
        progress.sold = progress.sold.max(stored as u64);
        progress.oversold = count(Kind::Oversold) as u64;
        progress.duplicates = progress.duplicates.max(count(Kind::SoldTwice) as u64);
        Self {
            progress,
            verdict,
            stock: judgement.stock,
            undersold: count(Kind::Undersold),
            lost: count(Kind::AcknowledgedAndLost),
            broken: findings.iter().filter(has_no_member).count(),
            findings,
            doubts,
            doubt_codes,
        }
    }
}

/// The report of a judgement that has ended: a page that needs nothing else.
#[utoipa::path(
    get, path = "/api/v1/lab/judgements/{id}/report", tag = "lab",
    operation_id = "report_judgement",
    params(("id" = String, Path, description = "The judgement")),
    responses((status = 200, description = "The page", body = String, content_type = "text/html"),
        LookRefusals),
)]
pub async fn report(Visitor { lab, .. }: Visitor, Id(id): Id<String>) -> HttpResult {
    let judgement = lab.judgements.find(&id).ok_or(Problem::new(&JUDGEMENT_NOT_FOUND))?;
    let end = judgement.end.borrow().clone();
    let Some(Ok(report)) = end.as_deref() else {
        return Err(Problem::with_detail(&JUDGEMENT_NOT_FOUND, "There is no verdict (yet)."));
    };
    let page = report.html().map_err(|error| internal("the report", &error))?;
    Ok(([(CONTENT_SECURITY_POLICY, POLICY)], Html(page)).into_response())
}
