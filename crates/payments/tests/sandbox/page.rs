//! The hosted page: pay, decline, walk away, come too late; both languages.

use crate::support::*;

async fn open(bench: &Bench, request: &CheckoutRequest) -> String {
    bench.provider.checkout(request).await.expect("a page")
}

async fn click(url: &str, button: &str) -> Reply {
    let reply = ask("POST", &format!("{url}/{button}"), &[], "").await.must_be(303);
    assert_eq!(reply.header("location"), checkout("", 0).return_url);
    reply
}

#[tokio::test]
async fn confirming_charges_once_and_leads_back() {
    let mut bench = Bench::start().await;
    let url = open(&bench, &checkout("shop-1-1", 5)).await;
    let page = ask("GET", &url, &[], "").await.must_be(200);
    for part in ["SANDBOX", "Ten phones", "10.00 USD", "/confirm", "/decline", "/leave"] {
        assert!(page.text.contains(part), "{part}: {}", page.text);
    }
    click(&url, "confirm").await;
    click(&url, "confirm").await;
    let told = bench.shop.next().await;
    assert_eq!((&*told.kind, &*told.charge.reference), ("charge.succeeded", "shop-1-1"));
    assert_eq!(bench.provider.charges("shop-1-1").await.expect("one"), [told.charge]);
    assert_eq!(bench.transactions().await.len(), 1);
    let page = ask("GET", &url, &[], "").await.must_be(200);
    assert!(page.text.contains("This is paid.") && !page.text.contains("<form"), "{}", page.text);
    assert!(page.text.contains("href=\"http://shop.example:8080/orders/1?a=b&amp;c=d\""));
}

#[tokio::test]
async fn declining_and_leaving_charge_nothing() {
    let mut bench = Bench::start().await;
    let url = open(&bench, &checkout("shop-1-1", 5)).await;
    click(&url, "leave").await;
    assert_eq!(bench.provider.charges("shop-1-1").await.expect("none"), []);
    click(&url, "decline").await;
    assert_eq!(bench.shop.next().await.kind, "charge.declined");
    let page = ask("GET", &url, &[], "").await.must_be(200);
    assert!(page.text.contains("was declined"), "{}", page.text);
    click(&url, "confirm").await;
    let found = bench.provider.charges("shop-1-1").await.expect("the charges");
    assert_eq!(found[0].status, ChargeStatus::Declined, "a decision stays");
    assert_eq!(bench.transactions().await, []);
}

#[tokio::test]
async fn an_expired_page_charges_nothing() {
    let bench = Bench::start().await;
    let url = open(&bench, &checkout("shop-1-1", 0)).await;
    let page = ask("GET", &url, &[], "").await.must_be(410);
    assert!(page.text.contains("time to pay is over") && !page.text.contains("<form"));
    for button in ["confirm", "decline"] {
        let page = ask("POST", &format!("{url}/{button}?lang=zh"), &[], "").await.must_be(410);
        assert!(page.text.contains("支付时间已过"), "{}", page.text);
    }
    click(&url, "leave").await;
    assert_eq!(bench.provider.charges("shop-1-1").await.expect("none"), []);
    // The shop's own charge is its own decision.
    bench.charge("shop-1-1").await;
    let page = ask("GET", &url, &[], "").await.must_be(200);
    assert!(page.text.contains("This is paid."), "{}", page.text);
}

#[tokio::test]
async fn the_page_speaks_the_shoppers_language() {
    let bench = Bench::start().await;
    let url = open(&bench, &checkout("shop-1-1", 5)).await;
    for (query, accepted, lang) in [
        ("", "", "en"),
        ("", "zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("", "en-GB,en;q=0.9,zh;q=0.8", "en"),
        ("", "de, ZH", "zh"),
        ("", "de, fr", "en"),
        ("", "é,z", "en"),
        ("?lang=zh", "en", "zh"),
        ("?lang=en", "zh", "en"),
        ("?lang=xx", "zh", "zh"),
        ("?lang=%C3%A9", "", "en"),
    ] {
        let headers = [("accept-language", accepted)];
        let page = ask("GET", &format!("{url}{query}"), &headers, "").await.must_be(200);
        assert!(page.text.contains(&format!("<html lang=\"{lang}\">")), "{query} {accepted}");
        assert!(page.text.contains("SANDBOX"));
        assert_eq!(page.text.contains("不会发生任何真实扣款"), lang == "zh");
    }
}

#[tokio::test]
async fn amounts_are_as_people_write_them() {
    let bench = Bench::start().await;
    for (currency, amount) in [("USD", "10.00 USD"), ("JPY", ">1000 JPY"), ("CNY", "10.00 CNY")] {
        let mut request = checkout(&format!("shop-{currency}-1"), 5);
        request.charge.currency = currency.to_owned();
        let page = ask("GET", &open(&bench, &request).await, &[], "").await.must_be(200);
        assert!(page.text.contains(amount), "{}", page.text);
    }
}

#[tokio::test]
async fn what_the_shop_says_is_text_and_the_policy_allows_no_script() {
    let bench = Bench::start().await;
    let description = "<script>alert(\"1\")</script> & 'more'".to_owned();
    let request = CheckoutRequest { description, ..checkout("shop-1-1", 5) };
    let url = open(&bench, &request).await;
    let page = ask("GET", &url, &[], "").await.must_be(200);
    assert!(!page.text.contains("<script"), "{}", page.text);
    assert!(page.text.contains("&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt; &amp; "));
    let policy = page.header("content-security-policy");
    assert!(policy.starts_with("default-src 'none'; style-src 'self';"), "{policy}");
    assert!(policy.contains("form-action 'self' http://shop.example:8080;"), "{policy}");
    let style = format!("{}/pay.css", bench.sandbox.url());
    assert_eq!(ask("GET", &style, &[], "").await.must_be(200).header("content-type"), "text/css");
    for (method, path) in [("GET", ""), ("POST", "/confirm"), ("POST", "/leave")] {
        let unknown = format!("{}/pay/co_no{path}", bench.sandbox.url());
        let page = ask(method, &unknown, &[], "").await.must_be(404);
        assert!(page.text.contains("There is no such payment."), "{}", page.text);
    }
}
