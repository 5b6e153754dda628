//! Health, methods, and the answers while a dependency is away.

use super::*;
use crate::security::sites::documented;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_method_that_a_route_does_not_have_is_405_with_allow() {
    let (app, sale) = TestApp::selling(5, json!({})).await;
    let (shopper, order) = app.buyer(&sale).await;
    let before = app.snapshot().await;
    let mut routes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let undocumented = ["/openapi.json", "/", "/orders", "/static/css/app.css"];
    let undocumented = undocumented.map(|path| (Method::GET, path.to_owned()));
    for (method, path) in documented(&sale, &order).into_iter().chain(undocumented) {
        routes.entry(path).or_default().insert(method.to_string());
    }
    for (path, allowed) in routes {
        let others = ["GET", "POST", "PUT", "PATCH", "DELETE"].into_iter();
        for method in others.filter(|method| !allowed.contains(*method)) {
            let (token, what) = (shopper.token_at(&path), format!("{method} {path}"));
            let reply = app.ask(method, &path).bearer(token).await;
            reply.assert_problem_at(&what, 405, "method_not_allowed");
            let listed = reply.header("allow").split(',').map(|method| method.trim().to_owned());
            let listed: BTreeSet<String> = listed.filter(|method| method != "HEAD").collect();
            assert_eq!(listed, allowed, "Allow of {what}");
        }
    }
    assert_eq!(app.snapshot().await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_redis_is_away_buyers_are_told_to_come_back() {
    let (servers, app) = TestApp::on_own_servers().await;
    let sale = app.sale(10, json!({})).await;
    let (settled, order) = app.buyer(&sale).await;
    wait_for!("it is ready", {
        let now = app.get("/readyz").await.body;
        let works = now["postgres"] == "ok" && now["redis"] == "ok" && now["redis_durable"] == true;
        works.then_some(())
    });
    let redis = [servers.redis.pid().expect("it runs")];
    signal(&redis, Signal::SIGSTOP);
    let buyers = app.shoppers(5);
    let refused = within_timeout(TestApp::all_buy(buyers.clone(), &sale)).await;
    refused.iter().for_each(assert_shed);
    app.get("/healthz").await.assert(200);
    wait_for!("only Redis is away", {
        let readiness = app.get("/readyz").await.must_be(503);
        assert_ne!(readiness.text("redis"), "ok");
        (readiness.text("postgres") == "ok").then_some(())
    });
    settled.pay(&order).await.assert(200);
    assert_eq!(settled.order(&order).await.text("status"), "paid");
    assert_eq!(app.sale_now(&sale).await["stock"], 10);
    assert_eq!(app.get("/api/v1/sales").await.body["sales"][0]["id"], sale);
    signal(&redis, Signal::SIGCONT);
    all_order(buyers, &sale).await;
    assert_eq!(app.assert_sound(&sale).await.live, 6);
    wait_for!(app.get("/readyz").await.status == 200);
}
