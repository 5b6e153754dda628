//! Lessons from outside: HTTP, event streams, bad input, and the commands.

use crate::lab::http::{assert_text, events, with_lab};
use crate::support::prelude::*;

const LESSONS: &str = "/api/v1/lab/lessons";

async fn play(app: &TestApp, lesson: &str, body: Option<Value>) -> Reply {
    let (id, query) = lesson.split_once('?').unwrap_or((lesson, ""));
    app.ask("POST", &format!("{LESSONS}/{id}/play?{query}")).maybe_json(body).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lessons_are_listed_and_played() {
    let app = with_lab().await;
    let list = app.get(LESSONS).await.must_be(200);
    let lessons = list.body["lessons"].as_array().expect("a list");
    assert_eq!(lessons.len(), 13);
    for lesson in lessons {
        for member in ["id", "title", "failure", "forced_how", "cure", "source"] {
            assert_ne!(lesson[member].as_str().unwrap_or_default(), "", "{member}: {lesson:#}");
        }
        for option in lesson["options"].as_array().expect("options") {
            let bounded = option["min"].is_i64() && option["max"].is_i64();
            let limited = bounded || option["values"].is_array();
            assert!(limited && !option["default"].is_null(), "{option:#}");
        }
    }
    for act in lessons.iter().flat_map(|lesson| lesson["acts"].as_array().expect("acts")) {
        assert!(act["title"].is_string() && act["kind"].is_string(), "{act:#}");
    }
    // This application may start no servers of its own; of one lesson it has a recording.
    let available = |number: usize| &lessons[number]["available"];
    assert_has(available(8), json!({"ok": false, "recorded": false}));
    assert_has(available(10), json!({"ok": false, "recorded": true}));
    let recorded = play(&app, "b11", None).await.must_be(200);
    assert_has(&recorded.body, json!({"recorded": true, "repeats": 0}));
    let other = play(&app, "b11", Some(json!({"options": {"reply": "arrives"}}))).await;
    other.assert_problem_at("not as it was recorded", 409, "lesson_unavailable");
    let played = play(&app, "b12?lang=zh", None).await.must_be(200);
    assert_eq!(played.body["lesson"], "b12");
    let marks = &played.body["acts"][0]["marks"];
    assert_eq!(marks.as_array().map(Vec::len), Some(1), "{marks:#}");
    let file = "crates/lab/src/lessons/b12_before_commit.rs";
    assert_has(&marks[0], json!({"kind": "flaw", "file": file}));
    assert_has(&played.body["verdict"], json!({"broken": true, "held": true}));
    let first = &played.body["events"][0];
    assert_text(&first["say"], "拿到锁");
    assert_has(first, json!({"actor": "alice", "to": "redis"}));
    for part in ["SET lock:phone alice-", " NX GET PX 60000"] {
        assert_text(&first["detail"]["command"], part);
    }
    // It points to the line of the lock that sends it.
    assert_eq!(first["line"]["file"], "crates/locks/src/token.rs");
    let source = played.body["code"]["crates/locks/src/token.rs"].as_str().expect("a source");
    let number = first["line"]["line"].as_u64().expect("a number") as usize;
    assert!(source.lines().nth(number - 1).is_some_and(|line| line.contains(".ask(")), "{number}");
    let played = play(&app, "b12", Some(json!({"options": {"commit": "at-once"}}))).await;
    assert_eq!(played.body["verdict"]["broken"], false, "{:#}", played.body);
    let ids = app.get("/api/v1/lab/ids?lang=zh").await.must_be(200);
    assert_eq!(ids.body["sections"].as_array().map(Vec::len), Some(6));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_play_is_streamed_as_it_happens() {
    let app = with_lab().await;
    let ask = app.ask("POST", &format!("{LESSONS}/b07/play"));
    let events = events(ask.header("accept", "text/event-stream")).await;
    let [(first, cast), .., (last, whole)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((&**first, &**last), ("cast", "verdict"));
    let length = |list: &Value| list.as_array().map(Vec::len);
    assert_eq!((length(&cast["actors"]), length(&cast["acts"])), (Some(3), Some(2)));
    // Those after the last "again" are the steps of the whole.
    let told = events.rsplit(|(name, _)| name != "step").nth(1).expect("steps");
    let told: Value = told.iter().map(|(_, step)| step.clone()).collect();
    assert_eq!(told, whole["events"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_requests_and_those_of_a_crowd_are_refused_clearly() {
    let app = with_lab().await;
    let bad = json!([
        {"options": {"leese_ms": 5}}, {"options": {"lease_ms": 0}}, {"options": {"lease_ms": 1e9}},
        {"options": {"lease_ms": null}}, {"options": {"token": "maybe"}}, {"options": []},
        {"option": {}},
    ]);
    app.refuses(&format!("{LESSONS}/b03/play"), &json!({}), bad).await;
    play(&app, "b12?lang=fr", None).await.assert_problem(422, "invalid");
    play(&app, "b99", None).await.assert_problem(404, "lesson_not_found");
    play(&app, "b09", None).await.assert_problem(409, "lesson_unavailable");
    // Only a few are played at once.
    let slow = json!({"options": {"lease_ms": 200, "pause_ms": 1_500}});
    let replies = join_all((0..8).map(|_| play(&app, "b03", Some(slow.clone())))).await;
    let refused: Vec<&Reply> = replies.iter().filter(|reply| reply.status == 429).collect();
    assert!((1..=4).contains(&refused.len()), "{refused:?}");
    for reply in refused {
        assert!(reply.code() == "rate_limited" && reply.body["retry_after_ms"].is_u64());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_list_play_and_refuse() {
    let home = Home::new();
    for (words, part) in [("lesson list", "b01"), ("lesson list", "b13"), ("lab ids", "INCR")] {
        let ended = home.run(words).await;
        assert!(ended.assert_done().stdout.contains(part), "{words}: {ended:?}");
    }
    let played = home.run("lesson play b08 --json --option cleanup=if-held").await;
    let verdict = &played.assert_done().json()["verdict"];
    assert_eq!(verdict["broken"], false, "{verdict:#}");
    for wrong in ["b99", "b08 --option x=1", "b08 --option lease_ms=soon"] {
        let ended = home.run(&format!("lesson play {wrong}")).await;
        assert!(ended.code == Some(2) && !ended.stderr.is_empty(), "{wrong}: {ended:?}");
    }
}
