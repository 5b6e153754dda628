//! Instances behind a proxy are replaced under load, and no client sees anything go wrong.

use super::*;

const LANES: usize = 12;
/// Longer than the proxies keep idle connections (2 s), and than Caddy needs to notice (1 s).
const NOTICE: &str = "4";

/// One deployment at a time: on a slow machine three of them would look like instances that fail.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

async fn send(told: &Mutex<Told>, what: &str, ask: Ask) -> Option<Reply> {
    let failure = match ask.send().await {
        Ok(reply) if reply.status.is_success() => {
            locked(told).answers += 1;
            return Some(reply);
        }
        Ok(reply) => format!("{what}: {} {}", reply.status, reply.body),
        Err(error) => format!("{what}: {error:?}"),
    };
    *locked(told).failures.entry(failure).or_default() += 1;
    None
}

/// Buys, looks at the order and at the sale. Nobody retries: what fails is seen.
async fn shop_on(entrance: Entrance, sale: String, told: Arc<Mutex<Told>>) {
    let looking = format!("/api/v1/sales/{sale}");
    while !locked(&told).is_over {
        let shopper = entrance.shopper();
        if let Some(reply) = send(&told, "buying", shopper.buying(&sale)).await {
            let order = reply.text("order_id").to_owned();
            let path = format!("/api/v1/orders/{order}");
            locked(&told).winners.push((shopper.clone(), order));
            send(&told, "looking at the order", shopper.ask("GET", &path)).await;
        }
        send(&told, "looking at the sale", shopper.ask("GET", &looking)).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

struct Scene {
    proxy: Program,
    deployment: Deployment,
    sale: String,
    rush: Rush,
}

impl Scene {
    async fn start(kind: Kind) -> Self {
        let settings = [("DRAIN_NOTICE", NOTICE), ("TRUST_PROXY", "127.0.0.1")];
        let deployment = Deployment::start(3, &settings).await;
        let proxy = kind.start(&deployment).await;
        let sale = deployment.running().sale(1_000_000).await;
        let mut rush = Rush::default();
        for _ in 0..LANES {
            rush.lanes.spawn(shop_on(proxy.entrance(SECRET), sale.clone(), rush.told.clone()));
        }
        let scene = Self { proxy, deployment, sale, rush };
        scene.until_answered(500).await;
        scene
    }

    async fn until_answered(&self, more: usize) {
        self.rush.until(more, |told| told.answers).await;
    }

    async fn end(self) -> BTreeMap<String, usize> {
        let told = self.rush.end().await;
        let audit = self.deployment.running().quiet_audit(&self.sale).await;
        assert_has(&audit, json!({"ok": true, "conserved": true}));
        self.deployment.database.assert_kept(&self.sale, &told.winners).await;
        if !told.failures.is_empty() {
            println!("{}", self.proxy.stderr());
        }
        told.failures
    }
}

async fn nobody_is_refused_while_instances_are_replaced(kind: Kind) {
    let _turn = TURN.lock().await;
    let mut scene = Scene::start(kind).await;
    for number in 0..scene.deployment.instances.len() {
        let old = scene.deployment.instances[number].take().expect("an instance runs");
        let url = old.url("/routable");
        let answers = || locked(&scene.rush.told).answers;
        let before = answers();
        let going = old.terminate();
        tokio::pin!(going);
        let told = eventually("it says that it goes", async || {
            (client().get(&url).send().await.ok()?.status() == 503).then_some(())
        });
        tokio::select! {
            () = told => {}
            () = &mut going => panic!("it was gone before it could say so"),
        }
        going.await;
        let served = answers() - before;
        assert!(served > 50, "the others serve meanwhile: {served}");
        scene.deployment.start_instance(number, "").await;
        scene.until_answered(300).await;
    }
    let failures = scene.end().await;
    assert!(failures.is_empty(), "{kind:?}: {failures:#?}");
}

cases! { nobody_is_refused_while_instances_are_replaced:
    nobody_is_refused_while_instances_are_replaced_behind_nginx => Kind::Nginx,
    nobody_is_refused_while_instances_are_replaced_behind_caddy => Kind::Caddy,
}

/// Dies of the first purchase that it is sent, before it answers: the tests above can fail.
/// Promises are kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_dies_instead_is_noticed() {
    let _turn = TURN.lock().await;
    let mut scene = Scene::start(Kind::Nginx).await;
    let last = scene.deployment.instances.len() - 1;
    scene.deployment.instances[last].take().expect("an instance runs").terminate().await;
    scene.deployment.start_instance(last, "FAIL_POINTS=admission.admitted=exit").await;
    wait_for!(!locked(&scene.rush.told).failures.is_empty());
    let mut dead = scene.deployment.instances[last].take().expect("it was started");
    assert_eq!(dead.end().await, None, "it killed itself");
    scene.until_answered(300).await;
    let failures = scene.end().await;
    assert!(failures.keys().all(|failure| failure.starts_with("buying: 502")), "{failures:#?}");
}
