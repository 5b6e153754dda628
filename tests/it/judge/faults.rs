//! Servers that are not there: what counts as a kill, and who is waited for.

use crate::support::buggy_sale::{BuggySale, Manner, storm_on};
use crate::support::prelude::*;
use judge::{Config, adapter::Adapter};
use tokio::{net::TcpSocket, time::timeout};

/// `GET /orders` lists, `GET /stock` counts; every other GET is a purchase.
const GETS: &str = r#"{
    "order": {
        "request": { "path": "/?buyer={user}" },
        "answers": [{ "status": 200, "means": "sold", "order_id": "/id" }]
    },
    "remaining": { "request": { "path": "/stock" }, "at": "/left" },
    "orders": {
        "request": { "path": "/orders" }, "rows": "", "order_id": "/order_id", "user": "/user"
    }
}"#;
const LONG: Duration = Duration::from_secs(60);

/// A server that closes connections as it likes: that of the second look at the stock, too.
struct Impatient {
    /// Method and path of all requests.
    asked: Mutex<Vec<String>>,
    open: AtomicUsize,
    /// Connections at a time; more are closed at once.
    most: usize,
    /// How long one may be idle after an answer.
    idle: Duration,
}

impl Impatient {
    async fn start(most: usize, idle: Duration) -> (Arc<Self>, String) {
        let (asked, open) = (Mutex::default(), AtomicUsize::new(0));
        let shop = Arc::new(Self { asked, open, most, idle });
        let server = shop.clone();
        let address = serve_each(move |connection| server.clone().serve(connection)).await;
        (shop, format!("http://{address}"))
    }

    async fn serve(self: Arc<Self>, mut connection: TcpStream) {
        let has_room = |open: usize| (open < self.most).then_some(open + 1);
        if self.open.fetch_update(Relaxed, Relaxed, has_room).is_err() {
            return;
        }
        let (mut text, mut bytes, mut limit) = (String::new(), [0; 1_024], LONG);
        while let Ok(Ok(read @ 1..)) = timeout(limit, connection.read(&mut bytes)).await {
            text += &String::from_utf8_lossy(&bytes[..read]);
            if !text.ends_with("\r\n\r\n") {
                continue;
            }
            let asked: Vec<&str> = text.split(' ').take(2).collect();
            if asked[1] == "/stock" && self.count("GET /stock") == 1 {
                locked(&self.asked).push(asked.join(" "));
                break;
            }
            let body = if asked[1] == "/orders" { "[]" } else { r#"{"id":"1","left":50}"# };
            locked(&self.asked).push(asked.join(" "));
            text.clear();
            let length = body.len();
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}");
            if connection.write_all(answer.as_bytes()).await.is_err() {
                break;
            }
            limit = self.idle;
        }
        self.open.fetch_sub(1, Relaxed);
    }

    fn count(&self, what: &str) -> usize {
        locked(&self.asked).iter().filter(|asked| *asked == what).count()
    }
}

/// The error of a run with a kill that does nothing.
async fn not_killed(url: String, adapter: Value, orders_sql: Option<String>) -> String {
    let adapter = Adapter::parse(&adapter.to_string()).expect("an adapter");
    let (adapter, kill) = (Some(adapter), Some("true".to_owned()));
    let config = Config { adapter, kill, orders_sql, retries: 0, ..storm_on(url) };
    judge::run(config, Arc::new(|_| ())).await.expect_err("nothing was killed").to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_closes_connections_is_not_killed() {
    let gets: Value = serde_json::from_str(GETS).expect("JSON");
    let (shop, closes_idle_ones) = Impatient::start(100, Duration::from_millis(50)).await;
    let said = not_killed(closes_idle_ones, gets.clone(), None).await;
    assert!(said.contains("still answers after --kill"), "{said}");
    assert!(shop.count("GET /orders") < shop.count("GET /stock"), "a listing is heavy");
    // The one that there is room for reads what is stored.
    let (_shop, has_no_room) = Impatient::start(1, LONG).await;
    let said = not_killed(has_no_room, gets, None).await;
    assert!(said.contains("turns new connections away before --kill"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_starts_late_is_waited_for() {
    let port = TcpSocket::new_v4().expect("a socket");
    port.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let config = storm_on(format!("http://{}", port.local_addr().expect("an address")));
    let (heard, mut absent) = tokio::sync::mpsc::unbounded_channel();
    let progress = move |event: judge::Event<'_>| {
        if matches!(event, judge::Event::Absent) {
            heard.send(()).expect("somebody waits");
        }
    };
    let judged = tokio::spawn(judge::run(config, Arc::new(progress)));
    absent.recv().await.expect("nobody is there");
    let listener = port.listen(64).expect("a listener").into_std().expect("a listener");
    let _sale = BuggySale::on(listener, Manner::Right);
    let (report, _) = judged.await.expect("it ends").expect("a verdict");
    assert_eq!(report.verdict_in_words(), "held");
}

/// Where nothing is listed, no path is known that a GET of which would buy nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whether_a_server_is_there_is_not_asked_by_a_purchase() {
    let servers = Servers::shared().await;
    let database = servers.database().await;
    let url = &settings_of(servers, &database, "gets:")[0].1;
    let mut gets: Value = serde_json::from_str(GETS).expect("JSON");
    gets.as_object_mut().expect("members").retain(|name, _| name == "order");
    let (shop, address) = Impatient::start(100, LONG).await;
    not_killed(address, gets, Some(format!("{url} SELECT '1', '1' WHERE false"))).await;
    let (bought, probed): (Vec<_>, Vec<_>) =
        locked(&shop.asked).drain(..).partition(|asked| asked.starts_with("GET"));
    assert!(!probed.is_empty() && probed.iter().all(|asked| asked == "OPTIONS /"), "{probed:?}");
    assert!(bought.iter().all(|asked| asked.starts_with("GET /?buyer=u")), "{bought:?}");
}
