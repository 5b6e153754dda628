//! Behind a proxy everybody counts for themselves, and nobody decides what is traced.

use super::*;

/// More sessions than one address may open at once (60), and what it may open in the meantime.
const TOO_MANY: usize = 300;
const SESSIONS: &str = "/api/v1/session";

fn somebody(host: u8) -> Client {
    let client = Client::builder().local_address(std::net::IpAddr::from([127, 0, 0, host]));
    client.build().expect("a client")
}

/// Opens many sessions at once, each time in the name of another address; how many were refused.
async fn refused(client: &Client, url: &str) -> usize {
    let answers = all_at_once((0..TOO_MANY).map(|number| {
        let claimed = format!("198.51.100.{}", number % 250);
        // Without a body: a refusal before the body was read may close the connection.
        let request = client.post(url).header("x-forwarded-for", claimed);
        async move { request.send().await.expect("an answer").status().as_u16() }
    }))
    .await;
    let count = |status: u16| answers.iter().filter(|answer| **answer == status).count();
    assert_eq!(count(201) + count(429), TOO_MANY, "{answers:?}");
    count(429)
}

async fn nobody_can_claim_to_be_somebody_else(kind: Kind) {
    let settings = [("RATE_LIMIT", "on"), ("TRUST_PROXY", "127.0.0.1")];
    let deployment = Deployment::start(1, &settings).await;
    let proxy = kind.start(&deployment).await;
    let through = proxy.url(SESSIONS);
    assert!(refused(&somebody(5), &through).await > 0, "{kind:?}");
    let other = somebody(6).post(&through).send().await;
    assert_eq!(other.expect("an answer").status(), 201, "{kind:?}");
    // Past the proxy, claims of an address that is no proxy do not count either.
    assert!(refused(&somebody(7), &deployment.running().url(SESSIONS)).await > 0);
}

cases! { nobody_can_claim_to_be_somebody_else:
    nobody_can_claim_to_be_somebody_else_through_nginx => Kind::Nginx,
    nobody_can_claim_to_be_somebody_else_through_caddy => Kind::Caddy,
}

/// The same claims where everybody is believed: none is refused. So the tests above can fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_every_peer_is_believed_claims_count() {
    let deployment = Deployment::start(1, &[("RATE_LIMIT", "on"), ("TRUST_PROXY", "on")]).await;
    assert_eq!(refused(&somebody(8), &deployment.running().url(SESSIONS)).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_do_not_decide_what_is_traced() {
    let collector = format!("http://127.0.0.1:{}", free_port());
    let settings = [("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector), ("OTEL_TRACES_SAMPLER_ARG", "0")];
    let deployment = Deployment::start(1, &settings).await;
    let nginx = Kind::Nginx.start(&deployment).await;
    let caddy = Kind::Caddy.start(&deployment).await;
    let caller = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let sales = "/api/v1/sales";
    for (ask, is_traced) in [
        (deployment.running().ask("GET", sales), true),
        (nginx.ask("GET", sales), false),
        (caddy.ask("GET", sales), false),
    ] {
        let answer = ask.header("traceparent", caller).await.must_be(200);
        assert_eq!(answer.headers.contains_key("traceresponse"), is_traced);
    }
}
