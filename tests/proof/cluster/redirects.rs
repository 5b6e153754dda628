//! Slots move between approved primaries: nothing is lost or rebuilt, and the sale goes on.

use super::*;
use flash_sale::redis::Redis;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_on_its_way_sells_where_its_keys_are() {
    let deployment = Deployment::start().await;
    let ([app, _], cluster) = (&deployment.apps, &deployment.redis);
    // With the first buyer, every key is there.
    let sale = deployment.sale_on(0, 20).await;
    let (slot, key, id) = (deployment.slot_of(&sale).await, key_of(&sale), &sale.id.to_string());
    let (winner, order) = crowd(app, id, 1).await.remove(0);
    app.assert_sound(id).await;
    cluster.begin_move(slot, 0, 1).await;
    // MIGRATING, and all keys are where they were.
    app.shopper().must_buy(id).await;
    // Some of them here, some there: TRYAGAIN, which is tried for a while, and then told.
    assert_eq!(cluster.move_keys(slot, 0, 1, 1).await, 1);
    let reply = app.shopper().buy(id).await;
    assert_shed(&reply);
    assert!(reply.text("detail").contains("moves to another server"));
    while cluster.move_keys(slot, 0, 1, 10).await > 0 {}
    for app in &deployment.apps {
        app.shopper().must_buy(id).await;
        assert_eq!(winner.at(app).refused(id, "already_ordered").await.text("order_id"), order);
        winner.until(&order, "pending_payment").await;
    }
    winner.cancel(&order).await.assert(200);
    app.admin_sale("POST", id, "/stock", Some(json!({"add": 5}))).await.assert(200);
    let audit = app.assert_sound(id).await;
    assert_eq!((audit.stock, audit.live, audit.cancelled), (25, 3, 1));
    assert_eq!(cluster.holder(&key).await.port, cluster.nodes[0].port, "it is still on its way");
    cluster.end_move(slot, 0, 1).await;
    assert_eq!(crowd(app, id, 60).await.len(), 22, "all of the rest sells");
    assert_eq!((app.assert_sound(id).await.live, epoch_of(app, &sale).await), (25, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_sale_is_moved_around_the_cluster_while_people_buy() {
    let deployment = Deployment::start().await;
    let (app, cluster) = (&deployment.apps[0], &deployment.redis);
    let sales = deployment.sales([(0, 150), (1, 50_000), (2, 50_000)]).await;
    let crowd = Crowd::start(&deployment.apps, &sales, 6);
    crowd.until_accepted(&[0, 1, 2], 20).await;
    for round in 1..=3 {
        for (home, sale) in sales[..2].iter().enumerate() {
            let (slot, to) = (deployment.slot_of(sale).await, (home + round) % 3);
            let from = cluster.owner(slot).await;
            cluster.begin_move(slot, from, to).await;
            while cluster.move_keys(slot, from, to, 10).await > 0 {}
            cluster.end_move(slot, from, to).await;
        }
        crowd.until_accepted(&[1, 2], 20).await;
    }
    let [moved, other]: [Duration; 2] = [1, 2].map(|sale| crowd.longest_pause(sale));
    let shed = crowd.shed(1);
    let judged = crowd.judge(app, cluster, false).await;
    println!("six moves: no purchase for {moved:?} there, else {other:?}; {shed} told 503");
    judged.assert_kept("resharding");
    for sale in &sales {
        assert_eq!(epoch_of(app, sale).await, 1, "nothing was rebuilt");
    }
}

/// Answers what comes in one piece with its ASKING, which no other command can have used up.
async fn answer_what_was_asked_for(mut stream: TcpStream) {
    let (mut piece, port) = ([0; 4_096], stream.local_addr().expect("an address").port());
    while let Ok(length @ 1..) = stream.read(&mut piece).await {
        let (text, mut is_asked_for) = (String::from_utf8_lossy(&piece[..length]), false);
        for command in text.split('*').skip(1) {
            let word = command.lines().nth(2).unwrap_or_default();
            let answer = match word {
                "CLUSTER" => {
                    format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n")
                }
                "HGET" if is_asked_for => ":7\r\n".to_owned(),
                "HGET" => format!("-ASK 1 127.0.0.1:{port}\r\n"),
                _ => "+OK\r\n".to_owned(),
            };
            is_asked_for = word == "ASKING";
            stream.write_all(answer.as_bytes()).await.expect("it reads");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asking_and_its_command_travel_in_one_piece() {
    let address = serve_each(answer_what_was_asked_for).await;
    let redis = Redis::new(&format!("redis+cluster://{address}"), "").expect("an address");
    let mut connection = redis.pooled().await.expect("a connection");
    assert_eq!(redis::cmd("HGET").arg(&["key", "field"]).query_async(&mut connection).await, Ok(7));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_sold_while_any_node_evicts() {
    let deployment = Deployment::start().await;
    let ([app, _], evicting) = (&deployment.apps, &deployment.redis.nodes[1]);
    let sales = deployment.sales([(0, 10_000), (1, 10_000)]).await;
    let sales = Vec::from_iter(sales.iter().map(|sale| sale.id.to_string()));
    evicting.configure("maxmemory", "1000000000").await;
    evicting.configure("maxmemory-policy", "allkeys-random").await;
    for sale in &sales {
        wait_for!(app.shopper().buy(sale).await.status == 503);
    }
    assert_eq!(app.get("/readyz").await.must_be(503).text("admission"), "down");
    // Nor while another node is silent, so that not all are heard.
    let silent = [deployment.redis.nodes[2].pid().expect("it runs")];
    signal(&silent, Signal::SIGSTOP);
    app.services.rebuild.step(&mut HashSet::new()).await.expect_err("not all answer");
    app.get("/readyz").await.must_be(503);
    assert_eq!(app.shopper().buy(&sales[0]).await.status, 503);
    signal(&silent, Signal::SIGCONT);
    evicting.configure("maxmemory-policy", "noeviction").await;
    for sale in &sales {
        wait_for!(app.shopper().buy(sale).await.is_accepted());
        app.assert_sound(sale).await;
    }
}
