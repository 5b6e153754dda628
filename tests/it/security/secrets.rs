//! What clients send forges no line of the log, and no secret is told.

use crate::cli::{Home, Program};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

const TOKEN_SECRET: &str = "the-token-secret-that-must-not-be-told";
const ADMIN_TOKEN: &str = "the-admin-token-that-must-not-be-told";
/// What an attacker would like to see at the beginning of a line of the log.
const FORGED: &str = "2026-01-01T00:00:00Z  INFO the shop was sold";

/// Does what a hostile client can do to get its words into a log. Answers the tokens that it used.
async fn be_hostile(program: &Program) -> Vec<String> {
    let client = reqwest::Client::new();
    let opened = client.post(program.url("/api/v1/session"));
    let opened: Value = opened
        .json(&json!({"name": "Ada \u{2028} L"}))
        .send()
        .await
        .expect("an answer")
        .json()
        .await
        .expect("JSON");
    let token = opened["token"].as_str().expect("a token").to_owned();
    let title = format!("a title\n{FORGED}\n{{\"level\":\"ERROR\"}}");
    let request = client
        .post(program.url("/api/v1/admin/sales"))
        .bearer_auth(ADMIN_TOKEN)
        .json(&json!({"title": title, "price_cents": 1, "stock": 5}));
    let created = request.send().await.expect("an answer");
    assert_eq!(created.status(), StatusCode::CREATED);
    let sale: Value = created.json().await.expect("JSON");
    let sale = sale["id"].as_str().expect("an id");
    let orders = format!("/api/v1/sales/{sale}/orders");
    let strange = [
        client
            .post(program.url(&orders))
            .bearer_auth(&token)
            .header("idempotency-key", FORGED),
        client
            .post(program.url(&orders))
            .bearer_auth(&token)
            .header("x-request-id", FORGED),
        client
            .get(program.url("/%0d%0a2026-01-01T00:00:00Z%20INFO%20the%20shop%20was%20sold"))
            .header("x-request-id", "\t[31mred"),
        client.get(program.url(&format!("/api/v1/sales/1%0a{sale}?state=%0aforged"))),
        client
            .post(program.url("/api/v1/session"))
            .json(&json!({"name": format!("x\n{FORGED}")})),
        client
            .post(program.url("/api/v1/session"))
            .header("content-type", "application/json")
            .body(format!("{{\"\\n{FORGED}\": 1}}")),
        client
            .get(program.url("/api/v1/admin/sales/1/audit"))
            .bearer_auth(format!("{ADMIN_TOKEN}?")),
        client
            .get(program.url("/healthz"))
            .header("user-agent", FORGED)
            .header("cookie", format!("session={token}")),
        client.request(
            Method::from_bytes(b"FORGED").expect("a method"),
            program.url("/"),
        ),
    ];
    for request in strange {
        let answer = request.send().await.expect("an answer");
        assert!(answer.status().as_u16() < 500, "{answer:?}");
        let id = answer.headers()["x-request-id"].to_str().expect("text");
        assert!(
            id.bytes().all(|byte| byte.is_ascii_graphic()) && !id.contains("INFO"),
            "{id}"
        );
    }
    vec![token]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_clients_send_forges_no_line_of_the_log_and_no_secret_gets_there() {
    for format in ["text", "json"] {
        let home = Home::new();
        let settings = [
            ("TOKEN_SECRET", TOKEN_SECRET),
            ("ADMIN_TOKEN", ADMIN_TOKEN),
            ("LOG_FORMAT", format),
            ("RUST_LOG", "trace"), // whatever is said by anybody
        ];
        let program = Program::serve(&home, &[], &settings).await;
        let tokens = be_hostile(&program).await;
        wait_for!(program.stderr().contains("/api/v1/admin/sales"));
        let log = program.stderr();
        program.terminate().await;
        for line in log.lines() {
            assert!(!line.trim_start().starts_with(FORGED), "{line}");
            assert!(!line.contains('\u{1b}'), "{line:?}");
            if format == "json" {
                let entry: Value = serde_json::from_str(line)
                    .unwrap_or_else(|error| panic!("no JSON ({error}): {line}"));
                assert!(entry["level"].is_string() && entry["timestamp"].is_string());
            }
        }
        for secret in [TOKEN_SECRET, ADMIN_TOKEN, &tokens[0]] {
            let told = log.lines().find(|line| line.contains(secret));
            assert_eq!(told, None);
        }
    }
}

#[tokio::test]
async fn no_error_and_no_help_tells_a_password() {
    const PASSWORD: &str = "hunter2-in-a-url";
    let home = Home::new();
    let redis = "redis://127.0.0.1:1";
    let postgres = "postgres://shop@127.0.0.1:1/shop";
    let with = |text: &str| text.replace("PASSWORD", PASSWORD);
    for (command, database_url, redis_url) in [
        (
            "migrate",
            "postgres://shop:PASSWORD@127.0.0.1:1/shop",
            redis,
        ),
        ("seed", "postgres://shop:PASSWORD@127.0.0.1:1/shop", redis),
        ("serve", "postgres://shop:PASSWORD@[::1/shop", redis),
        ("serve", "postgres://shop:PASSWORD@host:no-port/shop", redis),
        (
            "serve",
            "postgres://shop:PASSWORD@host:99999/shop?sslmode=x",
            redis,
        ),
        ("serve", "mysql://shop:PASSWORD@host/shop", redis),
        ("serve", "shop:PASSWORD@host/shop", redis),
        ("serve", postgres, "redis://:PASSWORD@host:no-port"),
        ("serve", postgres, "http://:PASSWORD@host"),
        ("serve", postgres, "redis://:PASSWORD@[::1"),
        ("serve", postgres, "PASSWORD"),
        (
            "migrate --no-such-flag",
            "postgres://shop:PASSWORD@host/shop",
            redis,
        ),
        (
            "serve --help",
            "postgres://shop:PASSWORD@host/shop",
            "redis://:PASSWORD@host",
        ),
    ] {
        let arguments: Vec<&str> = command.split(' ').collect();
        let mut command = home.command(&arguments);
        command
            .env("DATABASE_URL", with(database_url))
            .env("REDIS_URL", with(redis_url))
            .env(
                "TOKEN_SECRET",
                with("PASSWORD that is at least thirty-two bytes"),
            )
            .env("ADMIN_TOKEN", PASSWORD)
            .env("RUST_LOG", "debug");
        let ended = home.finish(command).await;
        let said = format!("{}{}", ended.stdout, ended.stderr);
        assert!(!said.is_empty(), "{arguments:?} {database_url}");
        assert!(
            !said.contains(PASSWORD),
            "{arguments:?} {database_url}: {said}"
        );
        let asks_for_help = arguments.contains(&"--help");
        assert_eq!(ended.code == Some(0), asks_for_help, "{said}");
    }
}
