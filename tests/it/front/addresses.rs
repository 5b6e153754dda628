//! What strangers say about themselves: behind a proxy everybody counts for themselves, nobody can claim to be somebody
//! else, and nobody decides what is traced.

use super::{Deployment, Kind, Proxy};
use crate::support::{app::all_at_once, proxy::free_port};
use reqwest::{Client, StatusCode};
use std::net::{IpAddr, Ipv4Addr};

/// More sessions than one address may open at once (60), and what it may open in the meantime.
const TOO_MANY: usize = 300;

/// Somebody on this machine with an address of their own.
fn somebody(host: u8) -> Client {
    Client::builder()
        .local_address(IpAddr::from(Ipv4Addr::new(127, 0, 0, host)))
        .build()
        .expect("a client")
}

/// Opens many sessions at once, each time in the name of another address; how many were refused.
async fn refused(client: &Client, url: &str) -> usize {
    let answers = all_at_once((0..TOO_MANY).map(|number| {
        let claimed = format!("198.51.100.{}", number % 250);
        // Without a body: who is refused before a body was read may find the connection closed.
        let request = client.post(url).header("x-forwarded-for", claimed);
        async move { request.send().await.expect("an answer").status() }
    }))
    .await;
    let is = |status: StatusCode| answers.iter().filter(|answer| **answer == status).count();
    let expected = is(StatusCode::CREATED) + is(StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(expected, TOO_MANY, "{answers:?}");
    is(StatusCode::TOO_MANY_REQUESTS)
}

async fn nobody_can_claim_to_be_somebody_else(kind: Kind) {
    let settings = [("RATE_LIMIT", "on"), ("TRUST_PROXY", "127.0.0.1")];
    let deployment = Deployment::start(1, &settings).await;
    let proxy = Proxy::start(kind, &deployment.home, &deployment.addresses()).await;
    let through = proxy.url("/api/v1/session");
    assert!(refused(&somebody(5), &through).await > 0, "{kind:?}");
    // Somebody else behind the same proxy is not held to account for it.
    let other = somebody(6).post(&through).send().await.expect("an answer");
    assert_eq!(other.status(), StatusCode::CREATED, "{kind:?}");
    // Past the proxy, from an address that is none: what it claims does not count either.
    let direct = format!("http://{}/api/v1/session", deployment.address(0));
    assert!(refused(&somebody(7), &direct).await > 0);
    drop(proxy);
    deployment.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_can_claim_to_be_somebody_else_through_nginx() {
    nobody_can_claim_to_be_somebody_else(Kind::Nginx).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_can_claim_to_be_somebody_else_through_caddy() {
    nobody_can_claim_to_be_somebody_else(Kind::Caddy).await;
}

/// The same claims where everybody is believed: none is refused. So the tests above can fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_every_peer_is_believed_claims_count() {
    let settings = [("RATE_LIMIT", "on"), ("TRUST_PROXY", "on")];
    let deployment = Deployment::start(1, &settings).await;
    let direct = format!("http://{}/api/v1/session", deployment.address(0));
    assert_eq!(refused(&somebody(8), &direct).await, 0);
    deployment.finish().await;
}

/// An instance that traces nobody, unless a caller has decided otherwise; whose collector is away, which harms nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_do_not_decide_what_is_traced() {
    let collector = format!("http://127.0.0.1:{}", free_port());
    let settings = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector),
        ("OTEL_TRACES_SAMPLER_ARG", "0"),
    ];
    let deployment = Deployment::start(1, &settings).await;
    let nginx = Proxy::start(Kind::Nginx, &deployment.home, &deployment.addresses()).await;
    let caddy = Proxy::start(Kind::Caddy, &deployment.home, &deployment.addresses()).await;
    let is_traced = async |base: &str| {
        let request = Client::new().get(format!("{base}/api/v1/sales")).header(
            "traceparent",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        );
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::OK);
        answer.headers().contains_key("traceresponse")
    };
    assert!(is_traced(&format!("http://{}", deployment.address(0))).await);
    assert!(!is_traced(&nginx.base).await);
    assert!(!is_traced(&caddy.base).await);
    drop((nginx, caddy));
    deployment.finish().await;
}
