//! The payment sandbox as people start it: beside an embedded shop, and as a command.

use crate::cli::{entrance, sale_for_loads};
use crate::support::prelude::*;
use ::payments::client::HttpProvider;
use ::payments::provider::{ChargeRequest, ChargeStatus, PaymentProvider, ProviderError};

async fn books(home: &Home) -> Value {
    home.run("audit --books --json").await.assert_done().json()
}

#[tokio::test]
async fn an_embedded_shop_is_paid_on_the_page_of_the_sandbox_beside_it() {
    let home = Home::new();
    let program = Program::serve(&home, "").await;
    let sale = sale_for_loads(&program).await;
    let shopper = entrance(&home, &program).shopper();
    let order = shopper.order_to_pay(&sale).await;
    let page = shopper.open_page(&order).await;
    let (sandbox, _) = page.split_once("/pay/").expect("a page");
    let line = format!("payments go to a sandbox at {sandbox}, which moves no money");
    assert!(program.stderr().contains(&line), "{}", program.stderr());
    let confirmed = client().post(format!("{page}/confirm")).send().await.expect("an answer");
    assert_eq!(confirmed.url().as_str(), program.url(&format!("/orders?order={order}")));
    assert_eq!(shopper.until(&order, "paid").await["payment"], "captured");
    let kept = json!({"captured_cents": 4_900, "refunded_cents": 0, "transactions": 1});
    let sound = json!({"ok": true, "quiescent": true, "provider": kept});
    assert_has(&books(&home).await, sound.clone());
    program.terminate().await;
    home.until_nothing_runs().await;
    assert_has(&books(&home).await, sound); // without a shop, too
    // It goes on with the same books, key and secret.
    let program = Program::serve(&home, "").await;
    let shopper = entrance(&home, &program).shopper();
    let order = shopper.order_to_pay(&sale).await;
    shopper.pay(&order).await.must_be(200).assert_has(json!({"status": "paid"}));
    let kept = json!({"captured_cents": 9_800, "refunded_cents": 0, "transactions": 2});
    assert_has(&books(&home).await, json!({"ok": true, "paid_cents": 9_800, "provider": kept}));
    program.terminate().await;
    home.until_nothing_runs().await;
}

#[tokio::test]
async fn a_shop_that_others_reach_or_that_has_a_provider_has_no_sandbox() {
    let elsewhere = "PAYMENT_URL=http://127.0.0.1:1 PAYMENT_KEY=key PAYMENT_WEBHOOK_SECRET=secret";
    for settings in ["LISTEN_ADDR=0.0.0.0:0", "TRUST_PROXY=on", elsewhere] {
        let home = Home::new();
        let program = Program::serve(&home, &format!("{settings} LAB=off")).await;
        assert!(!program.stderr().contains("sandbox"), "{}", program.stderr());
        assert!(!home.data().join("sandbox-pay.jsonl").exists());
        program.terminate().await;
    }
}

#[tokio::test]
async fn sandbox_pay_obeys_its_flags_and_keeps_its_charges_when_it_is_killed() {
    let home = Home::new();
    let start = async |more: &str| {
        let words = "sandbox-pay --listen-addr 127.0.0.1:0 --api-key key --webhook-secret secret \
                     --webhook-url http://127.0.0.1:1/";
        let mut program = Program::spawn(&home, home.command(&format!("{words} {more}")));
        let url = program.line_after("flash-sale sandbox-pay ready on ").await;
        (program, HttpProvider::new(&url, "key").expect("a provider"))
    };
    let request = |reference: &str| {
        let (reference, currency) = (reference.to_owned(), "USD".to_owned());
        ChargeRequest { reference, amount_cents: 500, currency }
    };
    let (program, provider) = start("--decline 1").await;
    let declined = provider.charge(&request("shop-1-1")).await.expect("an answer");
    assert_eq!(declined.status, ChargeStatus::Declined);
    drop(program); // by SIGKILL
    let (program, provider) = start("--charge-and-no-answer 1").await;
    let lost = provider.charge(&request("shop-2-1")).await;
    assert!(matches!(lost, Err(ProviderError::Unknown(_))), "{lost:?}");
    drop(program);
    let (program, provider) = start("").await;
    assert_eq!(provider.charges("shop-1-1").await.expect("an answer"), [declined]);
    let found = provider.charges("shop-2-1").await.expect("an answer");
    assert_eq!(found, [provider.charge(&request("shop-2-1")).await.expect("an answer")]);
    let moved = provider.transactions(0).await.expect("an answer");
    assert_eq!(moved.len(), 1, "{moved:?}");
    program.terminate().await;
}
