//! Clients cannot forge lines of the log, and no secret is printed.

use crate::support::prelude::*;
use std::os::unix::fs::{PermissionsExt, symlink};

const TOKEN_SECRET: &str = "the-token-secret-that-must-not-be-told";
const ADMIN_TOKEN: &str = "the-admin-token-that-must-not-be-told";
/// The start of a log line that an attacker tries to forge.
const FORGED: &str = "2026-01-01T00:00:00Z  INFO the shop was sold";

/// Does what a hostile client can do to get its words into a log; the token that it used.
async fn be_hostile(program: &Program) -> String {
    let ask = |method: &str, path: &str| program.ask(method, path);
    let session = || ask("POST", "/api/v1/session");
    let opened = session().json(json!({"name": "Ada \u{2028} L"})).await;
    let token = opened.text("token");
    let title = format!("a title\n{FORGED}\n{{\"level\":\"ERROR\"}}");
    let sale = json!({"title": title, "price_cents": 1, "stock": 5});
    let create = ask("POST", "/api/v1/admin/sales").bearer(ADMIN_TOKEN);
    let created = create.json(sale).await.must_be(201);
    let sale = created.text("id");
    let buy = || ask("POST", &format!("/api/v1/sales/{sale}/orders")).bearer(token);
    let unescaped = "/%0d%0a2026-01-01T00:00:00Z%20INFO%20the%20shop%20was%20sold";
    for strange in [
        buy().header("idempotency-key", FORGED),
        buy().header("x-request-id", FORGED),
        ask("GET", unescaped).header("x-request-id", "\t[31mred"),
        ask("GET", &format!("/api/v1/sales/1%0a{sale}?state=%0aforged")),
        session().json(json!({"name": format!("x\n{FORGED}")})),
        session().json(json!({(format!("\n{FORGED}")): 1})),
        ask("GET", "/api/v1/admin/sales/1/audit").bearer(&format!("{ADMIN_TOKEN}?")),
        ask("GET", "/healthz").header("user-agent", FORGED).cookie(token),
        ask("FORGED", "/"),
    ] {
        let answer = strange.await;
        assert!(!answer.status.is_server_error(), "{answer:?}");
        let id = answer.header("x-request-id");
        let is_sound = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_graphic());
        assert!(is_sound && !id.contains("INFO"), "{id}");
    }
    token.to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_clients_send_forges_no_line_of_the_log_and_no_secret_gets_there() {
    for format in ["text", "json"] {
        let home = Home::new();
        let secrets = format!("TOKEN_SECRET={TOKEN_SECRET} ADMIN_TOKEN={ADMIN_TOKEN}");
        let log = format!("LOG_FORMAT={format} RUST_LOG=trace"); // of every crate
        let program = Program::serve(&home, &format!("{secrets} {log}")).await;
        let token = be_hostile(&program).await;
        wait_for!(program.stderr().contains("/api/v1/admin/sales"));
        let log = program.stderr();
        let (log, _half_a_line) = log.rsplit_once('\n').expect("lines");
        program.terminate().await;
        for line in log.lines() {
            assert!(!line.trim_start().starts_with(FORGED) && !line.contains('\u{1b}'), "{line:?}");
            if format == "json" {
                let entry: Value = serde_json::from_str(line).expect("JSON");
                assert!(entry["level"].is_string() && entry["timestamp"].is_string());
            }
        }
        for secret in [TOKEN_SECRET, ADMIN_TOKEN, &token] {
            assert_eq!(log.lines().find(|line| line.contains(secret)), None);
        }
    }
}

/// A command, its DATABASE_URL and its REDIS_URL; `PASSWORD` is secret.
const CALLS: &str = include_str!("calls.txt");

#[tokio::test]
async fn no_error_and_no_help_tells_a_password() {
    const PASSWORD: &str = "hunter2-in-a-url";
    let home = Home::new();
    for call in CALLS.replace("PASSWORD", PASSWORD).trim().lines() {
        let parts: Vec<&str> = call.trim().split(", ").collect();
        let stores = format!("DATABASE_URL={} REDIS_URL={}", parts[1], parts[2]);
        // Long enough for a secret.
        let secrets = format!("TOKEN_SECRET={PASSWORD}-{PASSWORD} ADMIN_TOKEN={PASSWORD}");
        let ended = home.run(&format!("{} {stores} {secrets} RUST_LOG=debug", parts[0])).await;
        let said = ended.stdout + &ended.stderr;
        assert!(!said.is_empty() && !said.contains(PASSWORD), "{call}: {said}");
        assert_eq!(ended.code == Some(0), parts[0].contains("--help"), "{said}");
    }
}

const SECRETS: &str =
    "token_secret admin_token payment_key payment_webhook_secret sandbox-pay.jsonl";

#[tokio::test]
async fn files_are_for_their_owner_alone_and_no_link_is_followed() {
    let home = Home::new();
    let [tokens, link, target] = ["tokens.json", "link", "target"].map(|name| home.path.join(name));
    let mint =
        async |file: &Path| home.run(&format!("tokens --users 1 --out {}", file.display())).await;
    symlink(&target, &link).expect("a link");
    mint(&link).await.assert_refused(&["cannot write"]);
    assert!(!target.exists());
    mint(&tokens).await.assert_done();
    Program::serve(&home, "").await.terminate().await;
    let mode = |file: &Path| fs::metadata(file).expect("it is there").permissions().mode();
    // Postgres, which root runs as another user, walks through.
    let data = home.data();
    assert_eq!(mode(&data) & 0o066, 0);
    let logs = entries(&data).filter(|file| file.extension().is_some_and(|is| is == "log"));
    let secrets = SECRETS.split(' ').map(|name| data.join(name));
    let readable = logs.chain(secrets).chain([tokens]).filter(|file| mode(file) & 0o077 != 0);
    assert_eq!(readable.collect::<Vec<_>>(), [""; 0].map(PathBuf::from));
}
