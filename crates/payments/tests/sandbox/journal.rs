//! What was answered outlives restarts, kills and torn lines.

use crate::support::*;
use payments::sandbox::{self, SandboxError, Settings};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

#[tokio::test]
async fn a_restart_changes_nothing() {
    let bench = Bench::start().await;
    let charge = bench.charge("shop-1-1").await;
    let refund = bench.provider.refund("refund-1", &charge.id, 400).await.expect("a refund");
    let url = bench.provider.checkout(&checkout("shop-2-1", 5)).await.expect("a page");
    let transactions = bench.transactions().await;
    let bench = bench.restart().await;
    assert_eq!(bench.transactions().await, transactions);
    assert_eq!(bench.charge("shop-1-1").await, Charge { refunded_cents: 400, ..charge.clone() });
    let again = bench.provider.refund("refund-1", &charge.id, 400).await;
    assert_eq!(again.expect("the same"), refund);
    let more = bench.provider.refund("refund-2", &charge.id, 601).await;
    assert_eq!(refused(more), "refund_exceeds_charge");
    let there = bench.provider.checkout(&checkout("shop-2-1", 5)).await.expect("the same page");
    assert_eq!(there.rsplit('/').next(), url.rsplit('/').next());
    assert_eq!(bench.transactions().await, transactions);
}

/// Not a test: what the next one kills.
#[tokio::test]
#[ignore = "a process of the test of kills"]
async fn a_sandbox_of_its_own() {
    let file = std::env::var_os("SANDBOX_FILE").expect("the file");
    let started = sandbox::start(settings(file.into(), "http://127.0.0.1:9/")).await;
    println!("\nready on {}", started.expect("a sandbox").url());
    std::future::pending().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_kill_loses_no_charge_that_was_answered() {
    let folder = Folder::new();
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["journal::a_sandbox_of_its_own", "--exact", "--ignored", "--nocapture"])
        .env("SANDBOX_FILE", folder.file())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
    let mut urls = lines
        .map_while(Result::ok)
        .filter_map(|line| Some(line.strip_prefix("ready on ")?.to_owned()));
    let provider = HttpProvider::new(&urls.next().expect("it starts"), KEY).expect("a provider");
    let answered = AtomicUsize::new(0);
    let charge_on = async |client: usize| {
        let mut charges = Vec::new();
        for number in 0.. {
            let request = payment(&format!("shop-{client}-{number}"), 1_000);
            let Ok(charge) = provider.charge(&request).await else { break };
            charges.push(charge);
            if answered.fetch_add(1, SeqCst) == 1_000 {
                child_kill(&child);
            }
        }
        charges
    };
    let clients = (0..32).map(charge_on);
    let charges = within("the kill", futures_util::future::join_all(clients)).await.concat();
    child.wait().expect("its end");
    assert!(charges.len() > 1_000, "it was killed in the middle");
    let bench = Bench::start_on(folder, Shop::open().await).await;
    for charge in &charges {
        let found = bench.provider.charges(&charge.reference).await.expect("the charges");
        assert_eq!(found, std::slice::from_ref(charge));
    }
    // Charges whose answers were lost may be there, too, each once.
    for client in 0..32 {
        let mine = charges
            .iter()
            .filter(|charge| charge.reference.starts_with(&format!("shop-{client}-")));
        let reference = format!("shop-{client}-{}", mine.count());
        let known = bench.provider.charges(&reference).await.expect("the charges");
        let charge = bench.charge(&reference).await;
        assert!(known.iter().all(|known| *known == charge), "{known:?} {charge:?}");
    }
    let numbers = (1..).take(charges.len() + 32);
    let mut found = Vec::new();
    while found.len() < charges.len() + 32 {
        let more = bench.provider.transactions(found.len() as u64).await.expect("transactions");
        assert!(!more.is_empty(), "{} of {}", found.len(), charges.len() + 32);
        found.extend(more.into_iter().map(|transaction| transaction.number));
    }
    assert!(found.into_iter().eq(numbers), "without gaps, and none is there twice");
}

fn child_kill(child: &std::process::Child) {
    let pid = i32::try_from(child.id()).expect("a process id");
    let signal = nix::sys::signal::Signal::SIGKILL;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).expect("killed");
}

#[tokio::test]
async fn a_torn_last_line_is_as_if_it_had_never_been() {
    let bench = Bench::start().await;
    let first = bench.charge("shop-1-1").await;
    let (folder, mut shop) = bench.stop().await;
    let before = std::fs::read(folder.file()).expect("the file");
    let bench = Bench::start_on(folder, shop).await;
    let second = bench.charge("shop-2-1").await;
    let (mut folder, stopped) = bench.stop().await;
    shop = stopped;
    let whole = std::fs::read(folder.file()).expect("the file");
    let start = String::from_utf8(whole.clone()).expect("text").rfind("{\"entry\":\"charge\"");
    let start = start.expect("the second charge").max(before.len());
    let line = whole[start..].iter().position(|byte| *byte == b'\n').expect("its end");
    for torn in (0..=line).step_by(37).chain([line]) {
        std::fs::write(folder.file(), &whole[..start + torn]).expect("torn");
        let bench = Bench::start_on(folder, shop).await;
        assert_eq!(bench.provider.charges("shop-2-1").await.expect("none"), [], "{torn}");
        let transaction = Transaction { number: 1, movement: Movement::Charge(first.clone()) };
        assert_eq!(bench.transactions().await, [transaction]);
        // And it goes on behind what is whole.
        let third = bench.charge("shop-3-1").await;
        let bench = bench.restart().await;
        assert_eq!(bench.charge("shop-3-1").await, third);
        (folder, shop) = bench.stop().await;
    }
    std::fs::write(folder.file(), &whole[..=start + line]).expect("whole");
    let bench = Bench::start_on(folder, shop).await;
    assert_eq!(bench.charge("shop-2-1").await, second);
}

#[tokio::test]
async fn a_file_in_use_or_with_a_broken_line_is_refused() {
    let bench = Bench::start().await;
    bench.charge("shop-1-1").await;
    let file = bench.folder.file();
    let start = async |file| match sandbox::start(settings(file, "http://127.0.0.1:9/")).await {
        Err(error @ SandboxError::File(..)) => error.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it started"),
    };
    assert!(start(file.clone()).await.contains("another sandbox uses it"));
    let (folder, _) = bench.stop().await;
    let mut text = std::fs::read_to_string(&file).expect("the file");
    text.insert_str(0, "{\"entry\":\"charge\"}\n");
    std::fs::write(&file, text).expect("broken");
    let error = start(file).await;
    assert!(error.contains("line 1: missing field"), "{error}");
    let missing = folder.file().join("no/such/folder");
    start(missing).await;
}

#[tokio::test]
async fn beside_a_shop_it_has_a_port_of_its_own_and_another_if_that_is_taken() {
    let (folder, bench) = (Folder::new(), Bench::start().await);
    let file = folder.file();
    let folder = file.parent().expect("a folder");
    let beside = |port| {
        let (key, secret) = ("a key".to_owned(), "a secret".to_owned());
        Settings::beside(([127, 0, 0, 1], port).into(), folder, key, secret)
    };
    let ports = [80, 8_080, 65_535].map(|port| beside(port).listen_addr.port());
    assert_eq!(ports, [0, 8_090, 0]);
    let taken = Settings { listen_addr: bench.sandbox.address, ..beside(8_080) };
    let other = sandbox::start_anywhere(taken).await.expect("a sandbox");
    assert_ne!(other.address, bench.sandbox.address);
    let provider = HttpProvider::new(&other.url(), "a key").expect("a provider");
    assert_eq!(provider.transactions(0).await.expect("an answer"), []);
    other.stop().await;
}
