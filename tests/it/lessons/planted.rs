//! A cure with its check taken out is broken, whether or not this machine stood still.

use crate::support::{lessons::*, plant::*, prelude::*};
use lab::lessons::{MOST_REPEATS, pauses::PauseDetector, timeline::Timeline};
use lab::strategy::Language;

async fn theatre_on(bug: Bug, prefix: &'static str) -> TestTheatre {
    let redis = buggy_redis(Servers::shared().await.redis.socket(), bug).await;
    TestTheatre::with(prefix, |servers| servers.redis_url = redis).await
}

#[track_caller]
fn assert_lost(timeline: &Timeline, cure: &str) {
    let mut acts = timeline.lesson.acts.iter().zip(&timeline.endings);
    let ending = acts.find(|(act, _)| act.id == cure).expect(cure).1;
    assert!(ending.broken && !timeline.verdict(Language::En).held, "{cure}: {ending:?}");
}

/// Long leases: a busy machine is not to be taken for the bug.
fn calm(id: &str) -> Value {
    match id {
        "b03" | "b04" => json!({"lease_ms": 2_000, "pause_ms": 2_010}),
        "b06" | "b08" => json!({"lease_ms": 2_000}),
        _ => json!({}),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cure_without_its_check_is_broken() {
    let cases: [(Bug, &[(&str, &str)]); 4] = [
        (take_anybodys, &[("b02", "server-clock"), ("b04", "watchdog"), ("b06", "tries-again")]),
        (without_expiry, &[("b01", "only-expire"), ("b01", "one-command")]),
        (getset_only_reads, &[("b02", "getset")]),
        (release_anybodys, &[("b03", "one-script"), ("b08", "owner-check")]),
    ];
    for (bug, lessons) in cases {
        let theatre = theatre_on(bug, "planted:").await;
        let play = async |(id, cure): &(&str, &str)| {
            assert_lost(&theatre.play(lesson(id), calm(id)).await, cure);
        };
        join_all(lessons.iter().map(play)).await;
        theatre.close().await;
    }
}

/// The row forgets which fencing token it has seen, the provider which refund was asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_forget_are_broken() {
    const FORGET: &str = "
        CREATE FUNCTION lab.forget() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN NEW.newest := 0; RETURN NEW; END $$;
        CREATE TRIGGER planted BEFORE INSERT OR UPDATE ON lab.fenced FOR EACH ROW
            EXECUTE FUNCTION lab.forget();
        CREATE FUNCTION lab.forget_key() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN NEW.key := NULL; RETURN NEW; END $$;
        CREATE TRIGGER planted BEFORE INSERT ON lab.play_refunds FOR EACH ROW
            EXECUTE FUNCTION lab.forget_key()";
    let theatre = TestTheatre::open("forgets:").await;
    theatre.lab.execute(FORGET).await;
    assert_lost(&theatre.play(lesson("b04"), calm("b04")).await, "fencing");
    assert_lost(&theatre.play(lesson("b13"), calm("b13")).await, "refund-once");
    theatre.close().await;
}

/// A pause is an excuse for three more plays, and not for a verdict.
#[tokio::test]
async fn a_process_that_stands_still_again_and_again_loses_its_excuse() {
    let theatre = theatre_on(release_anybodys, "pauses:").await;
    let stands_still = tokio::spawn(async {
        loop {
            std::thread::sleep(Duration::from_millis(60));
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    });
    let timeline = theatre.play(lesson("b08"), calm("b08")).await;
    stands_still.abort();
    assert_eq!(timeline.repeats, MOST_REPEATS);
    assert_lost(&timeline, "owner-check");
    theatre.close().await;
}

#[tokio::test]
async fn the_detector_sees_a_pause_and_forgives_an_ordinary_delay() {
    let detector = PauseDetector::start();
    let began = Instant::now();
    detector.note(Duration::from_millis(15));
    assert_eq!(detector.missing_since(began), Duration::ZERO);
    detector.note(Duration::from_millis(100));
    assert_eq!(detector.missing_since(began), Duration::from_millis(90));
    assert_eq!(detector.missing_since(Instant::now() + Duration::from_secs(1)), Duration::ZERO);
    // Its task has begun to tick; then this thread, the only one, stands still.
    tokio::task::yield_now().await;
    std::thread::sleep(Duration::from_millis(60));
    wait_for!(detector.missing_since(began) >= Duration::from_millis(140));
    // Two have noticed the same ten seconds.
    detector.note(Duration::from_secs(10));
    detector.note(Duration::from_secs(10));
    assert!(detector.missing_since(began) < Duration::from_secs(15));
}
