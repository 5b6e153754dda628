//! Lessons from outside: HTTP, event streams, `LAB=off`, bad input, and the commands.

use crate::{
    cli::Home,
    support::app::{Options, Reply, TestApp},
};
use reqwest::{Method, StatusCode, header::ACCEPT};
use serde_json::{Value, json};

const LESSONS: &str = "/api/v1/lab/lessons";

#[tokio::test]
async fn lessons_are_listed_and_played() {
    let app = TestApp::start_with(Options::with_lab()).await;
    let list = app.call(Method::GET, LESSONS, None).await;
    list.assert(StatusCode::OK);
    let lessons = list.body["lessons"].as_array().expect("a list");
    assert_eq!(lessons.len(), 12);
    for lesson in lessons {
        for member in ["id", "title", "failure", "forced_how", "cure", "source"] {
            assert!(
                lesson[member].as_str().is_some_and(|text| !text.is_empty()),
                "{member}: {lesson:#}"
            );
        }
        for option in lesson["options"].as_array().expect("options") {
            let bounded = option["min"].is_i64() && option["max"].is_i64();
            assert!(bounded || option["values"].is_array(), "{option:#}");
            assert!(!option["default"].is_null(), "{option:#}");
        }
    }
    // This test's application may start no servers of its own.
    assert_eq!(lessons[8]["available"]["ok"], false);

    let play = app
        .call(Method::POST, &format!("{LESSONS}/b12/play?lang=zh"), None)
        .await;
    play.assert(StatusCode::OK);
    assert_eq!(play.body["lesson"], "b12");
    assert_eq!(
        (
            &play.body["verdict"]["broken"],
            &play.body["verdict"]["held"]
        ),
        (&json!(true), &json!(true))
    );
    let first = &play.body["events"][0];
    assert!(
        first["say"]
            .as_str()
            .is_some_and(|say| say.contains("拿到锁")),
        "{first:#}"
    );
    assert!(
        first["detail"]["command"]
            .as_str()
            .is_some_and(|command| command.starts_with("SET lock:phone alice-")),
        "{first:#}"
    );
    assert_eq!(first["line"]["file"], "src/lock/token.rs");
    assert!(play.body["code"]["src/lock/token.rs"].is_string());

    let options = json!({"options": {"commit": "at-once"}});
    let play = app
        .call(Method::POST, &format!("{LESSONS}/b12/play"), Some(options))
        .await;
    assert_eq!(
        play.body["verdict"]["broken"], false,
        "{:#}",
        play.body["verdict"]
    );
    app.stop().await;
}

#[tokio::test]
async fn a_play_is_streamed_as_it_happens() {
    let app = TestApp::start_with(Options::with_lab()).await;
    let request = app.client.post(app.url(&format!("{LESSONS}/b07/play")));
    let answer = request
        .header(ACCEPT, "text/event-stream")
        .send()
        .await
        .expect("an answer");
    assert_eq!(answer.status(), StatusCode::OK);
    let text = answer.text().await.expect("it ends by itself");
    let events: Vec<(&str, Value)> = text
        .split("\n\n")
        .filter_map(|event| {
            let name = event
                .lines()
                .find_map(|line| line.strip_prefix("event: "))?;
            let data = event.lines().find_map(|line| line.strip_prefix("data: "))?;
            Some((name, serde_json::from_str(data).expect("JSON")))
        })
        .collect();
    let names: Vec<&str> = events.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        (names.first(), names.last()),
        (Some(&"cast"), Some(&"verdict"))
    );
    let (_, cast) = &events[0];
    assert_eq!(
        (
            cast["actors"].as_array().map(Vec::len),
            cast["acts"].as_array().map(Vec::len)
        ),
        (Some(3), Some(2))
    );
    let steps = names
        .iter()
        .rev()
        .skip(1)
        .take_while(|name| **name == "step")
        .count();
    let (_, whole) = &events[events.len() - 1];
    assert_eq!(whole["events"].as_array().map(Vec::len), Some(steps));
    app.stop().await;
}

#[tokio::test]
async fn what_is_asked_wrongly_is_refused_clearly() {
    let app = TestApp::start_with(Options::with_lab()).await;
    let play = |id: &str| format!("{LESSONS}/{id}/play");
    let asked = [
        json!({"options": {"leese_ms": 5}}),
        json!({"options": {"lease_ms": 0}}),
        json!({"options": {"lease_ms": 1e9}}),
        json!({"options": {"lease_ms": null}}),
        json!({"options": {"token": "maybe"}}),
        json!({"options": []}),
        json!({"option": {}}),
    ];
    let asked = asked.map(|body| (play("b03"), Some(body), 422, "invalid"));
    let others = [
        (play("b99"), None, 404, "lesson_not_found"),
        (play("b09"), None, 409, "lesson_unavailable"),
    ];
    for (path, body, status, code) in asked.into_iter().chain(others) {
        let reply = app.call(Method::POST, &path, body.clone()).await;
        reply.assert_problem_at(&format!("{path} {body:?}"), status, code);
    }
    let wrong = app
        .call(Method::POST, &format!("{LESSONS}/b12/play?lang=fr"), None)
        .await;
    assert_eq!(
        (wrong.status.as_u16(), &wrong.body["code"]),
        (422, &json!("invalid"))
    );
    app.stop().await;
}

#[tokio::test]
async fn only_a_few_are_played_at_once() {
    let app = TestApp::start_with(Options::with_lab()).await;
    let slow = json!({"options": {"lease_ms": 50, "pause_ms": 1_500}});
    let plays = (0..8).map(|_| {
        app.call(
            Method::POST,
            "/api/v1/lab/lessons/b03/play",
            Some(slow.clone()),
        )
    });
    let replies = futures_util::future::join_all(plays).await;
    let refused: Vec<&Reply> = replies
        .iter()
        .filter(|reply| reply.status == StatusCode::TOO_MANY_REQUESTS)
        .collect();
    assert!(
        !refused.is_empty() && refused.len() <= 4,
        "{} refused",
        refused.len()
    );
    for reply in refused {
        assert_eq!(reply.body["code"], "rate_limited");
        assert!(reply.body["retry_after_ms"].is_u64());
    }
    app.stop().await;
}

#[tokio::test]
async fn order_numbers_are_explained() {
    let app = TestApp::start_with(Options::with_lab()).await;
    let told = app.call(Method::GET, "/api/v1/lab/ids?lang=zh", None).await;
    told.assert(StatusCode::OK);
    assert_eq!(told.body["sections"].as_array().map(Vec::len), Some(6));
    app.stop().await;
}

#[tokio::test]
async fn a_terminal_shows_the_same_timeline() {
    let home = Home::new();
    let run = |arguments: &[&str]| {
        let output = home.command(arguments).output().expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let (code, list, _) = run(&["lesson", "list"]);
    assert!(
        code == Some(0) && list.contains("b01") && list.contains("b12"),
        "{list}"
    );

    let (code, shown, errors) = run(&["lesson", "play", "b08"]);
    assert_eq!(code, Some(0), "{errors}");
    for part in [
        "TWO HOLD THE LOCK: alice, carol",
        "=> BROKEN",
        "=> HELD",
        "DEL lock:phone",
        "(integer) 1",
        "lock:phone = locked",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains('\x1b'), "no colours where nobody sees them");
    let widest = shown.lines().map(|line| line.chars().count()).max();
    assert!(widest.is_some_and(|widest| widest <= 100), "{widest:?}");

    let (code, shown, errors) = run(&["lesson", "play", "b08", "--lang", "zh"]);
    assert!(
        code == Some(0) && shown.contains("两个人同时持锁"),
        "{shown}{errors}"
    );
    let options = [
        "lesson",
        "play",
        "b08",
        "--json",
        "--option",
        "cleanup=if-held",
    ];
    let (code, shown, errors) = run(&options);
    assert_eq!(code, Some(0), "{errors}");
    let play: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(play["verdict"]["broken"], false, "{}", play["verdict"]);

    for wrong in [
        &["lesson", "play", "b99"][..],
        &["lesson", "play", "b08", "--option", "x=1"],
        &["lesson", "play", "b08", "--option", "lease_ms=soon"],
    ] {
        let (code, _, errors) = run(wrong);
        assert!(code == Some(2) && !errors.is_empty(), "{wrong:?}: {errors}");
    }
    let (code, shown, errors) = run(&["lab", "ids"]);
    assert!(code == Some(0) && shown.contains("INCR"), "{shown}{errors}");
}
