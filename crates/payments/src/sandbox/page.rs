//! The hosted page, on which a shopper pays, declines or walks away. It needs no scripts.

use super::state::{Provider, Shared};
use super::store::{Page, Refusal};
use crate::provider::{Charge, ChargeRequest, ChargeStatus};
use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::header::{
    ACCEPT_LANGUAGE, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use std::fmt::Write;
use std::sync::Arc;

pub fn routes() -> Router<Arc<Provider>> {
    Router::new()
        .route("/pay/{checkout}", get(show))
        .route("/pay/{checkout}/{decision}", post(decide))
        .route("/pay.css", get(async || ([(CONTENT_TYPE, "text/css")], include_str!("page.css"))))
}

/// The words of a language.
struct Words {
    lang: &'static str,
    other: (&'static str, &'static str),
    title: &'static str,
    sandbox: &'static str,
    confirm: &'static str,
    decline: &'static str,
    leave: &'static str,
    back: &'static str,
    paid: &'static str,
    declined: &'static str,
    expired: &'static str,
    unknown: &'static str,
    broken: &'static str,
}

static ENGLISH: Words = Words {
    lang: "en",
    other: ("zh", "中文"),
    title: "Payment",
    sandbox: "SANDBOX: a payment provider for tests. No money is moved.",
    confirm: "Pay",
    decline: "Decline, as a bank would",
    leave: "Leave without paying",
    back: "Back to the shop",
    paid: "This is paid.",
    declined: "This payment was declined; nothing was charged.",
    expired: "The time to pay is over; nothing was charged.",
    unknown: "There is no such payment.",
    broken: "This cannot be done just now; nothing is known to be charged.",
};

static CHINESE: Words = Words {
    lang: "zh",
    other: ("en", "English"),
    title: "支付",
    sandbox: "沙箱（SANDBOX）：仅供测试的支付平台，不会发生任何真实扣款。",
    confirm: "支付",
    decline: "模拟银行拒付",
    leave: "暂不支付，返回商店",
    back: "返回商店",
    paid: "该笔款项已支付。",
    declined: "支付被拒，未扣款。",
    expired: "支付时间已过，未扣款。",
    unknown: "没有这笔支付。",
    broken: "暂时无法处理，尚不能确认是否扣款。",
};

#[derive(Deserialize)]
struct Wanted {
    lang: Option<String>,
}

/// `?lang=`, or the first of both languages that the browser names.
fn words(wanted: &Wanted, headers: &HeaderMap) -> &'static Words {
    let accepted = headers.get(ACCEPT_LANGUAGE).and_then(|value| value.to_str().ok());
    let accepted = accepted.unwrap_or_default().split(',').map(str::trim);
    let named = wanted.lang.as_deref().into_iter().chain(accepted);
    let known = named.filter_map(|name| match name.get(..2)?.to_ascii_lowercase().as_str() {
        "zh" => Some(&CHINESE),
        "en" => Some(&ENGLISH),
        _ => None,
    });
    known.into_iter().next().unwrap_or(&ENGLISH)
}

async fn show(
    State(provider): Shared,
    Path(id): Path<String>,
    Query(wanted): Query<Wanted>,
    headers: HeaderMap,
) -> Response {
    let words = words(&wanted, &headers);
    match provider.store.page(&id).await {
        Ok(page) => page_of(words, &id, &page),
        Err(refusal) => refused(words, &refusal),
    }
}

/// The shopper confirms, declines or leaves, and goes back to the shop.
async fn decide(
    State(provider): Shared,
    Path((id, decision)): Path<(String, String)>,
    Query(wanted): Query<Wanted>,
    headers: HeaderMap,
) -> Response {
    let decided = match &*decision {
        "confirm" => provider.store.decide(&id, provider.draw_status()).await,
        "decline" => provider.store.decide(&id, ChargeStatus::Declined).await,
        "leave" => provider.store.page(&id).await,
        _ => Err(Refusal::CheckoutUnknown),
    };
    match decided {
        Ok(page) => Redirect::to(&page.checkout.return_url).into_response(),
        Err(refusal) => refused(words(&wanted, &headers), &refusal),
    }
}

/// The scheme and authority of an address to come back to; `None`: none to be trusted in a page.
pub fn origin(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    let scheme = uri.scheme_str().filter(|scheme| matches!(*scheme, "http" | "https"))?;
    let authority = uri.authority()?.as_str();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
    authority.bytes().all(is_plain).then(|| format!("{scheme}://{authority}"))
}

fn page_of(words: &Words, id: &str, Page { checkout, charge, is_expired }: &Page) -> Response {
    let mut main = format!(
        "<p>{}</p>\n<p class=\"amount\">{}</p>\n",
        escaped(&checkout.description),
        money(&checkout.charge)
    );
    let outcome = match charge {
        Some(Charge { status: ChargeStatus::Succeeded, .. }) => Some(words.paid),
        Some(Charge { status: ChargeStatus::Declined, .. }) => Some(words.declined),
        None => is_expired.then_some(words.expired),
    };
    if let Some(outcome) = outcome {
        let url = escaped(&checkout.return_url);
        let _ = write!(
            main,
            "<p role=\"status\">{outcome}</p>\n<a href=\"{url}\">{}</a>\n",
            words.back
        );
    } else {
        let buttons =
            [("confirm", words.confirm), ("decline", words.decline), ("leave", words.leave)];
        for (action, label) in buttons {
            let _ = writeln!(
                main,
                "<form method=\"post\" action=\"/pay/{id}/{action}?lang={}\">\
                 <button class=\"{action}\">{label}</button></form>",
                words.lang
            );
        }
    }
    // Browsers hold a form to it after the redirect, too.
    let back = origin(&checkout.return_url).unwrap_or_default();
    let status = if outcome == Some(words.expired) { StatusCode::GONE } else { StatusCode::OK };
    document(words, status, &main, &back)
}

/// Minor units as people write them; some currencies have none.
fn money(ChargeRequest { amount_cents, currency, .. }: &ChargeRequest) -> String {
    match currency.as_str() {
        "CLP" | "ISK" | "JPY" | "KRW" | "VND" => format!("{amount_cents} {currency}"),
        _ => format!("{}.{:02} {currency}", amount_cents / 100, amount_cents % 100),
    }
}

fn refused(words: &Words, refusal: &Refusal) -> Response {
    let (status, text) = match refusal {
        Refusal::Expired => (StatusCode::GONE, words.expired),
        Refusal::CheckoutUnknown => (StatusCode::NOT_FOUND, words.unknown),
        _ => (StatusCode::SERVICE_UNAVAILABLE, words.broken),
    };
    document(words, status, &format!("<p role=\"status\">{text}</p>\n"), "")
}

fn document(words: &Words, status: StatusCode, main: &str, back: &str) -> Response {
    let Words { lang, other: (other, name), title, sandbox, .. } = words;
    let policy = format!(
        "default-src 'none'; style-src 'self'; img-src data:; form-action 'self' {back}; \
         base-uri 'none'; frame-ancestors 'none'"
    );
    let html = format!(
        "<!doctype html>\n<html lang=\"{lang}\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title} (SANDBOX)</title>\n\
         <link rel=\"icon\" href=\"data:,\">\n<link rel=\"stylesheet\" href=\"/pay.css\">\n\
         </head>\n<body>\n<header class=\"sandbox\">{sandbox}</header>\n<main>\n<h1>{title}</h1>\n\
         {main}</main>\n<footer><a href=\"?lang={other}\" lang=\"{other}\">{name}</a></footer>\n\
         </body>\n</html>\n"
    );
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, policy.as_str()),
        (CACHE_CONTROL, "no-store"),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (status, headers, html).into_response()
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            letter => safe.push(letter),
        }
    }
    safe
}
