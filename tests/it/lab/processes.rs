//! Two real server processes that share an arena: what one process' memory protects, two do not.

use crate::{
    cli::{Home, Program, json_of, settings_of},
    support::Servers,
};
use futures_util::future::join_all;
use reqwest::StatusCode;
use serde_json::{Value, json};

/// Storms the arena through these servers, all buyers at once; what each was told.
async fn storm(servers: &[&Program], arena: &str, buyers: usize) -> Vec<String> {
    let client = reqwest::Client::new();
    let buy = async |number: usize| {
        let server = servers[number % servers.len()];
        let request = client.post(server.url(&format!("/api/v1/lab/arenas/{arena}/orders")));
        let answer = request
            .json(&json!({"user": format!("buyer-{number}")}))
            .send()
            .await
            .expect("an answer");
        assert_eq!(answer.status(), StatusCode::OK);
        let answer: Value = answer.json().await.expect("JSON");
        answer["outcome"].as_str().expect("an outcome").to_owned()
    };
    join_all((0..buyers).map(buy)).await
}

async fn arena(server: &Program, strategy: &str) -> String {
    // Long work, so that the two processes' critical sections cannot miss each other.
    let body = json!({"strategy": strategy, "stock": 6, "work_ms": 400});
    let request = reqwest::Client::new()
        .post(server.url("/api/v1/lab/arenas"))
        .json(&body);
    let made = json_of(request).await;
    made["arena_id"]
        .as_str()
        .unwrap_or_else(|| panic!("no arena: {made:#}"))
        .to_owned()
}

async fn verdict(server: &Program, arena: &str) -> Value {
    let request =
        reqwest::Client::new().get(server.url(&format!("/api/v1/lab/arenas/{arena}/verdict")));
    json_of(request).await
}

#[tokio::test]
async fn a_mutex_holds_in_one_process_and_oversells_in_two() {
    let shared = Servers::shared().await;
    let database = shared.database().await;
    let home = Home::new();
    let serve = || {
        let mut command = home.command(&["serve"]);
        command.envs(settings_of(shared, &database, "two-processes:"));
        command.env("LAB", "on").env("POSTGRES_CONNECTIONS", "5");
        Program::serve_by(&home, command)
    };
    let (first, second) = tokio::join!(serve(), serve());

    let alone = arena(&first, "process-mutex").await;
    storm(&[&first], &alone, 12).await;
    let judged = verdict(&first, &alone).await;
    assert_eq!(
        (&judged["sold"], &judged["oversold"], &judged["processes"]),
        (&json!(6), &json!(0), &json!(1)),
        "{judged:#}"
    );

    let together = arena(&first, "process-mutex").await;
    // The second has it open before anybody buys: otherwise the first may have sold everything by then.
    verdict(&second, &together).await;
    let told = storm(&[&first, &second], &together, 16).await;
    // Whichever process is asked, the verdict is about both.
    for server in [&first, &second] {
        let judged = verdict(server, &together).await;
        let sold = told.iter().filter(|outcome| *outcome == "sold").count();
        assert!(judged["oversold"].as_i64() > Some(0), "{judged:#}");
        assert_eq!(
            (&judged["sold"], &judged["attempts"]),
            (&json!(sold), &json!(16)),
            "{judged:#}"
        );
        assert_eq!(
            (
                &judged["processes"],
                &judged["kept_promise"],
                &judged["quiet"]
            ),
            (&json!(2), &json!(true), &json!(true))
        );
    }
    // What is in the one database protects both.
    let row = arena(&second, "conditional-update").await;
    verdict(&first, &row).await;
    storm(&[&first, &second], &row, 16).await;
    let judged = verdict(&first, &row).await;
    assert_eq!(
        (&judged["sold"], &judged["oversold"], &judged["processes"]),
        (&json!(6), &json!(0), &json!(2)),
        "{judged:#}"
    );

    let (first_ended, second_ended) = (first.terminate(), second.terminate());
    tokio::join!(first_ended, second_ended);
    database.drop().await;
}

/// `lua-stream` runs the very code that counts the figures of a sale: alerts must not sound for a lesson.
#[tokio::test]
async fn what_an_arena_sells_is_not_in_the_figures_of_the_sale() {
    let shared = Servers::shared().await;
    let database = shared.database().await;
    let home = Home::new();
    let serve = || {
        let mut command = home.command(&["serve"]);
        command.envs(settings_of(shared, &database, "lab-figures:"));
        command.env("LAB", "on");
        Program::serve_by(&home, command)
    };
    let server = serve().await;
    let arena = arena(&server, "lua-stream").await;
    let told = storm(&[&server], &arena, 12).await;
    assert_eq!(
        told.iter().filter(|outcome| *outcome == "sold").count(),
        6,
        "{told:?}"
    );
    let judged = verdict(&server, &arena).await;
    assert_eq!(
        (&judged["sold"], &judged["kept_promise"]),
        (&json!(6), &json!(true)),
        "{judged:#}"
    );
    let figures = reqwest::get(server.url("/metrics"));
    let figures = figures.await.expect("an answer").text().await;
    let figures = figures.expect("a text");
    let counted: Vec<&str> = figures
        .lines()
        .filter(|line| {
            [
                "flash_sale_admissions_total",
                "flash_sale_writer_orders_total",
                "flash_sale_orders_total",
            ]
            .iter()
            .any(|name| line.starts_with(name))
        })
        .collect();
    // They are there, and nobody has bought anything in a sale.
    assert!(counted.len() > 8, "{figures}");
    for line in counted {
        assert!(line.ends_with(" 0"), "{line}");
    }
    server.terminate().await;
    database.drop().await;
}
