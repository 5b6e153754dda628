//! The lessons: each ends the same way every time, and another way without the cause.

mod outside;
mod planted;
mod texts;

use crate::support::{lessons::*, prelude::*, test_lab::TestLab, trace::Trace};
use lab::lessons::terminal::{self, Style};
use lab::lessons::timeline::{Event, Timeline};
use lab::lessons::{LESSONS, lesson::Lesson, recorded};
use lab::strategy::{Language, Words};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lesson_played_three_times_ends_three_times_the_same_way() {
    play_each(3, "three:").await;
}

/// On one thread, one play after the other: what is traced meanwhile is of this play.
#[tokio::test]
async fn the_line_of_every_mark_runs_in_its_act() {
    let theatre = TestTheatre::open("marks:").await;
    let (trace, _guard) = Trace::here();
    let not_run = async |lesson: &Lesson, options| {
        trace.clear();
        marks_not_run(&theatre.play(lesson, options).await, &trace)
    };
    for lesson in LESSONS {
        if can_be_played(lesson).await {
            assert_eq!(not_run(lesson, quick(lesson)).await, [""; 0], "{}", lesson.id);
        }
    }
    // Without the cause a line is not reached, and that is seen.
    let calm = json!({"network": "holds", "lease_ms": 1_800});
    let missing = not_run(lesson("b06"), calm).await.join(" ");
    assert!(missing.contains("tries-again: crates/locks/src/watchdog.rs:"), "{missing}");
    drop(_guard);
    theatre.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_option_that_takes_the_cause_away_takes_the_failure_away() {
    let theatre = TestTheatre::open("cause:").await;
    let paused = |cure: &str| json!({"lease_ms": 1_500, "pause_ms": 1_510, (cure): "on"});
    // Lesson, options, the acts that are still broken.
    let cases: [(_, _, &str); 16] = [
        ("b01", json!({"lease_ms": 1_000, "crash": "after"}), ""),
        ("b02", json!({"pause_ms": 1_000, "skew_ms": 1_000}), ""),
        ("b02", json!({"skew_ms": 0}), "del-and-setnx overwritten"),
        ("b03", json!({"lease_ms": 3_000, "pause_ms": 0}), ""),
        ("b03", paused("token"), "two-calls"),
        ("b04", json!({"lease_ms": 3_000, "pause_ms": 0}), ""),
        ("b04", paused("fencing"), "watchdog-sleeps-too"),
        ("b05", json!({"reply": "arrives"}), ""),
        ("b06", json!({"network": "holds", "lease_ms": 2_000}), ""),
        ("b07", json!({"unlock": "after-subscribe"}), ""),
        ("b08", json!({"cleanup": "if-held", "lease_ms": 1_000}), ""),
        ("b09", json!({"replicated": "yes"}), ""),
        (
            "b10",
            json!({"lease_ms": 2_000, "pause_ms": 0, "restart": "delayed", "clock": "steady"}),
            "",
        ),
        ("b11", json!({"session_ms": 4_000, "pause_ms": 0, "reply": "arrives"}), ""),
        ("b12", json!({"commit": "at-once"}), ""),
        ("b13", json!({"webhook": "in-time"}), ""),
    ];
    for (id, options, broken) in cases {
        if can_be_played(lesson(id)).await {
            let timeline = theatre.play(lesson(id), options).await;
            assert_broken(&timeline, &broken.split_whitespace().collect::<Vec<_>>());
            let verdict = timeline.verdict(Language::En);
            assert!(verdict.held, "{id}: {}", verdict.why);
        }
    }
    theatre.close().await;
}

/// All clients write the same value; a key's owner is still the client that wrote it last.
#[tokio::test]
async fn a_key_that_was_written_anew_after_a_lease_has_a_new_owner() {
    let theatre = TestTheatre::open("owners:").await;
    let timeline = theatre.play(lesson("b03"), quick(lesson("b03"))).await;
    let mut bobs = timeline.events.iter().filter(|event| event.act == 0 && event.actor == "bob");
    let with_lock = bobs.find_map(|event| Some((event.step, event.keys.get("lock:phone")?)));
    let (step, key) = with_lock.expect("an event with the lock");
    assert_eq!((step, key.value.as_deref(), key.owner), ("bob-tries", Some("locked"), Some("bob")));
    // No client put the phone there.
    let stock = timeline.events[0].keys.get("phones in stock");
    assert_eq!(stock.map(|stock| stock.owner), Some(None));
    theatre.close().await;
}

/// Where a lesson's own servers would keep their files there is no room for any.
#[tokio::test]
async fn a_server_that_does_not_start_is_what_the_refusal_names() {
    let lab = TestLab::with("no-server:", |servers| {
        servers.data_dir = Some("/dev/null/a".into());
    })
    .await;
    for id in ["b09", "b10"] {
        let refused = lab.theatre.play(id, &Default::default(), None).await;
        let refusal = refused.expect_err("no server").to_string();
        assert!(refusal.contains("a server that the lesson needs does not start: "), "{refusal}");
    }
    lab.finish().await;
}

/// The servers did what the texts say: the reply is lost on the wire, the node is there.
#[tokio::test]
async fn lesson_11_loses_the_reply_to_the_create_and_not_another() {
    let lesson = lesson("b11");
    if !can_be_played(lesson).await {
        return;
    }
    let theatre = TestTheatre::open("orphan:").await;
    let timeline = theatre.play(lesson, quick(lesson)).await;
    for (act, requests) in
        [("orphan", "create create delete"), ("guid", "create sync ls ls stat delete")]
    {
        let number = lesson.acts.iter().position(|one| one.id == act);
        let in_act = |event: &&Event| Some(event.act) == number && event.actor == "alice";
        let hers: Vec<_> = timeline.events.iter().filter(in_act).collect();
        let verbs = hers.iter().filter_map(|event| event.command.as_deref()?.split(' ').next());
        assert_eq!(verbs.collect::<Vec<_>>().join(" "), requests, "{act}");
        let reply = hers[0].reply.as_deref().unwrap_or_default();
        assert!(reply.starts_with("(error)"), "{act}: {reply}");
        let queue = hers[0].keys.keys().filter(|key| key.contains("lock-"));
        assert_eq!(queue.count(), 1, "{act}: {:?}", hers[0].keys);
    }
    theatre.close().await;
}

#[tokio::test]
async fn order_numbers_are_measured_and_nothing_is_left() {
    let theatre = TestTheatre::open("numbers:").await;
    let ids = async |language| theatre.lab.theatre.ids(language).await.expect("it runs");
    let chinese = ids(Language::Zh).await;
    let began = Instant::now();
    let english = ids(Language::En).await;
    let took = began.elapsed().as_secs() as i64 + 1;
    assert_eq!((chinese.sections.len(), english.sections.len()), (6, 6));
    assert!(chinese.sections.iter().all(|section| has_chinese(&section.text)));
    for section in chinese.sections.iter().chain(&english.sections) {
        let whole = !section.title.is_empty() && !section.text.contains(['{', '}']);
        assert!(whole, "{}", section.text);
        let columns = section.columns.as_ref().map_or(0, Vec::len);
        let full = section.rows.as_ref().expect("a table").iter().all(|row| row.len() == columns);
        assert!(full, "{}", section.title);
    }
    let mut sections = english.sections.iter();
    let clock = sections.find(|section| section.title.contains("put back"));
    let clock = clock.expect("a section").rows.as_ref().expect("rows");
    let seconds: Vec<i64> = clock.iter().filter_map(|row| row[1].as_str()?.parse().ok()).collect();
    // Two ids at each reading: now, a second, a minute and an hour back, and behind the floor.
    let [now, _, second, _, minute, _, hour, _, floor, _] = seconds[..] else {
        panic!("{clock:?}");
    };
    assert!(second > minute && minute > hour, "{seconds:?}");
    // An hour back, as far as no time has passed from one reading to the next.
    assert!((3_600 - took..=3_600).contains(&(now - hour)), "{seconds:?}");
    assert!(floor >= now, "{seconds:?}");
    let ids: BTreeSet<String> = clock.iter().map(|row| row[3].to_string()).collect();
    assert_eq!(ids.len(), clock.len(), "no id twice");
    theatre.close().await;
}

fn steps(timeline: &Timeline) -> Vec<(usize, &str, &str)> {
    let steps = timeline.events.iter().map(|event| (event.act, event.actor, event.step));
    let mut steps: Vec<_> = steps.collect();
    // How often a queue is asked depends on the moment.
    steps.dedup();
    steps
}

/// What is kept for machines without ZooKeeper; with `RECORD=1` it is made anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_recorded_play_is_as_the_lesson_goes_today() {
    let lesson = lesson("b11");
    let why = Words::new("There is no ZooKeeper.", "没有 ZooKeeper。");
    let kept = recorded::of(lesson, why).expect("a recording");
    if can_be_played(lesson).await {
        let theatre = TestTheatre::open("recorded:").await;
        let played = theatre.play(lesson, json!({})).await;
        theatre.close().await;
        if std::env::var_os("RECORD").is_some() {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/lab/recorded/b11.json");
            let written = recorded::written(&played).expect("JSON");
            return std::fs::write(file, written).expect("the file is written");
        }
        assert_eq!(steps(&kept), steps(&played), "RECORD=1 makes it anew");
    }
    is_well_formed(&kept);
    assert!(recorded::written(&kept).expect("JSON").len() <= 60_000);
    for language in [Language::En, Language::Zh] {
        let body = kept.body(language);
        assert!(body.recorded && body.verdict.broken && body.verdict.held, "{:?}", body.verdict);
    }
    let style = Style { language: Language::En, colours: false };
    let shown = terminal::play(&kept, style).expect("a text");
    assert!(shown.contains("This is a recording. There is no ZooKeeper."), "{shown}");
}
