//! The lock theatre: every lesson ends the same way every time, and an option that takes the cause
//! away takes the failure away.

mod outside;

use crate::support::Servers;
use flash_sale::{
    embedded::ZooKeeperServer,
    lab::{
        Lab,
        lessons::{
            self, LESSONS, Lesson, Theatre,
            timeline::{Kind, Timeline},
        },
        servers,
        strategy::{Language, Need},
    },
    redis::Redis,
};
use futures_util::{StreamExt, stream};
use serde_json::{Map, Value, json};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::sync::mpsc;

/// A theatre with as many seats as a test wants, and where its keys and rows are.
struct House {
    lab: Lab,
    database: crate::support::Database,
    prefix: &'static str,
}

impl House {
    async fn open(prefix: &'static str) -> Self {
        let shared = Servers::shared().await;
        let database = shared.database().await;
        let redis = Redis::new(&shared.redis.url(), prefix).expect("redis url");
        let servers = servers::Servers::new(
            &database.options(),
            Arc::new(redis),
            Some(shared.folder(prefix)),
        );
        let mut lab = Lab::new(servers);
        lab.theatre = Theatre::new(lab.servers.clone())
            .with_seats(1_000)
            .with_patience(Duration::from_secs(60));
        Self {
            lab,
            database,
            prefix,
        }
    }

    async fn play(&self, lesson: &Lesson, options: Value) -> Timeline {
        let options = options.as_object().cloned().unwrap_or_default();
        let played = self.lab.theatre.play(lesson.id, &options, None).await;
        played.unwrap_or_else(|error| panic!("{}: {error}", lesson.id))
    }

    /// What plays have left behind: keys, rows.
    async fn leftovers(&self) -> (Vec<String>, i64) {
        let url = Servers::shared().await.redis.url();
        let client = redis::Client::open(url).expect("redis url");
        let mut redis = client
            .get_multiplexed_async_connection()
            .await
            .expect("redis");
        let keys: Vec<String> = redis::cmd("KEYS")
            .arg(format!("{}*", self.prefix))
            .query_async(&mut redis)
            .await
            .expect("KEYS");
        let mut postgres = self.database.connect().await;
        let rows: i64 = sqlx::query_scalar(
            "SELECT (SELECT count(*) FROM lab.plays) + (SELECT count(*) FROM lab.play_orders)
                  + (SELECT count(*) FROM lab.fenced)",
        )
        .fetch_one(&mut postgres)
        .await
        .expect("a count");
        (keys, rows)
    }

    async fn close(self) {
        self.lab.close().await;
        self.database.drop().await;
    }
}

/// Whether this machine can play it. The program would say so in `available`; a test says it loudly.
async fn can_be_played(lesson: &Lesson) -> bool {
    if lesson.needs.contains(&Need::ZooKeeper) && ZooKeeperServer::check().await.is_err() {
        crate::locks::say(&format!(
            "NOT EXERCISED: lesson {} needs ZooKeeper, which is not installed",
            lesson.id
        ));
        return false;
    }
    true
}

/// What has to be short for a hundred plays; the longest pause is what the lesson waits for.
fn quick(lesson: &Lesson) -> Value {
    match lesson.id {
        "b01" => json!({"lease_ms": 150}),
        "b03" => json!({"lease_ms": 250, "pause_ms": 260}),
        "b10" => json!({"lease_ms": 500, "pause_ms": 510}),
        "b04" => json!({"lease_ms": 600, "pause_ms": 610}),
        "b06" => json!({"lease_ms": 600}),
        "b08" => json!({"lease_ms": 200}),
        "b11" => json!({"session_ms": 1000, "pause_ms": 1010}),
        _ => json!({}),
    }
}

fn broken_acts(timeline: &Timeline) -> Vec<&'static str> {
    let acts = timeline.lesson.acts.iter().zip(&timeline.endings);
    acts.filter(|(_, ending)| ending.broken)
        .map(|(act, _)| act.id)
        .collect()
}

/// Every failure and every flaw of a cure happens, every cure holds.
fn as_announced(lesson: &Lesson) -> Vec<&'static str> {
    let acts = lesson.acts.iter();
    acts.filter(|act| act.kind != Kind::Cure)
        .map(|act| act.id)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lesson_played_a_hundred_times_ends_a_hundred_times_the_same_way() {
    const PLAYS: usize = 100;
    const AT_ONCE: usize = 24;
    let house = House::open("hundred:").await;
    let house = &house;
    let mut plays = Vec::new();
    for lesson in LESSONS {
        if can_be_played(lesson).await {
            plays.push(lesson);
        }
    }
    // One after the other through all lessons, so that different ones run beside each other.
    let all = (0..PLAYS).flat_map(|_| plays.iter());
    let played = stream::iter(all).map(|lesson| async move {
        let timeline = house.play(lesson, quick(lesson)).await;
        assert_eq!(
            broken_acts(&timeline),
            as_announced(lesson),
            "{}: {:#?}",
            lesson.id,
            timeline.endings
        );
        is_well_formed(&timeline);
    });
    let count = played.buffer_unordered(AT_ONCE).count().await;
    assert_eq!(count, PLAYS * plays.len());
    assert_eq!(house.leftovers().await, (Vec::new(), 0));
}

fn is_well_formed(timeline: &Timeline) {
    let lesson = timeline.lesson;
    let at = |index: usize| format!("{} event {index}", lesson.id);
    let actors: BTreeSet<&str> = lesson.cast.iter().map(|actor| actor.id).collect();
    let body = timeline.body(Language::En);
    assert_eq!(body.events.len(), timeline.events.len());
    for (index, (event, shown)) in timeline.events.iter().zip(&body.events).enumerate() {
        assert!(
            actors.contains(event.actor),
            "{}: {}",
            at(index),
            event.actor
        );
        assert!(
            event.to.is_none_or(|to| actors.contains(to)),
            "{}",
            at(index)
        );
        let believers: BTreeSet<&str> = event.believers.iter().copied().collect();
        assert_eq!(believers.len(), event.believers.len(), "{}", at(index));
        assert!(believers.is_subset(&actors), "{}", at(index));
        assert_eq!(shown.overlap, event.believers.len() >= 2, "{}", at(index));
        for (language, text) in [("en", &event.say.en), ("zh", &event.say.zh)] {
            assert!(
                !text.trim().is_empty() && !text.contains(['{', '}']),
                "{} {language}: {text}",
                at(index)
            );
        }
        assert!(
            event.say.zh.chars().any(is_chinese),
            "{}: {}",
            at(index),
            event.say.zh
        );
        assert!(
            event
                .command
                .as_deref()
                .is_none_or(|command| !command.trim().is_empty())
        );
        // What went over a watched wire points to the line that sent it.
        if let Some((file, line)) = event.line {
            assert!(
                event.command.is_some() && event.reply.is_some(),
                "{}",
                at(index)
            );
            let text = body
                .code
                .get(file)
                .unwrap_or_else(|| panic!("{}: no text of {file}", at(index)));
            let line = text.lines().nth(line as usize - 1);
            assert!(
                line.is_some_and(|line| !line.trim().is_empty()),
                "{} {file}:{line:?}",
                at(index)
            );
        }
    }
    let times: Vec<f64> = timeline.events.iter().map(|event| event.t_ms).collect();
    assert!(times.is_sorted(), "{}: {times:?}", lesson.id);
    // The acts cover all events, in order, without a gap.
    let mut next = 0;
    for act in &body.acts {
        assert_eq!(act.first, Some(next), "{} {}", lesson.id, act.id);
        next = act.last.expect("every act has an event") + 1;
        let verdict = act.verdict.as_ref().expect("every act has a verdict");
        assert_ne!(verdict.held, verdict.broken);
        assert!(!verdict.why.is_empty());
    }
    assert_eq!(next, timeline.events.len());
}

fn is_chinese(letter: char) -> bool {
    ('\u{4e00}'..='\u{9fff}').contains(&letter)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_option_that_takes_the_cause_away_takes_the_failure_away() {
    let house = House::open("cause:").await;
    let in_time = json!({"lease_ms": 3_000, "pause_ms": 0});
    // Lesson, options, the acts that are still broken.
    let cases: &[(&str, Value, &[&str])] = &[
        ("b01", json!({"lease_ms": 150, "crash": "after"}), &[]),
        ("b02", json!({"pause_ms": 1_000, "skew_ms": 1_000}), &[]),
        (
            "b02",
            json!({"skew_ms": 0}),
            &["del-and-setnx", "overwritten"],
        ),
        ("b03", in_time.clone(), &[]),
        (
            "b03",
            json!({"lease_ms": 250, "pause_ms": 260, "token": "on"}),
            &["two-calls"],
        ),
        ("b04", in_time.clone(), &[]),
        (
            "b04",
            json!({"lease_ms": 600, "pause_ms": 610, "fencing": "on"}),
            &["watchdog-sleeps-too"],
        ),
        ("b05", json!({"reply": "arrives"}), &[]),
        ("b06", json!({"network": "holds"}), &[]),
        ("b07", json!({"unlock": "after-subscribe"}), &[]),
        ("b08", json!({"cleanup": "if-held", "lease_ms": 200}), &[]),
        ("b09", json!({"replicated": "yes"}), &[]),
        (
            "b10",
            json!({"lease_ms": 2_000, "pause_ms": 0, "restart": "delayed", "clock": "steady"}),
            &[],
        ),
        (
            "b11",
            json!({"session_ms": 4_000, "pause_ms": 0, "reply": "arrives"}),
            &[],
        ),
        ("b12", json!({"commit": "at-once"}), &[]),
    ];
    for (id, options, broken) in cases {
        let lesson = lessons::find(id).expect("a lesson");
        if !can_be_played(lesson).await {
            continue;
        }
        let timeline = house.play(lesson, options.clone()).await;
        assert_eq!(
            broken_acts(&timeline),
            *broken,
            "{id} {options}: {:#?}",
            timeline.endings
        );
        is_well_formed(&timeline);
        let verdict = timeline.verdict(Language::En);
        assert!(verdict.held, "{id} {options}: {}", verdict.why);
    }
    assert_eq!(house.leftovers().await, (Vec::new(), 0));
    house.close().await;
}

#[tokio::test]
async fn the_steps_are_told_while_they_happen_and_are_those_of_the_timeline() {
    let house = House::open("told:").await;
    let (told, mut moments) = mpsc::unbounded_channel();
    let played = house.lab.theatre.play("b07", &Map::new(), Some(told)).await;
    let timeline = played.expect("it is played");
    let mut steps = Vec::new();
    while let Some(moment) = moments.recv().await {
        match moment {
            lessons::timeline::Moment::Step(event) => steps.push(event),
            lessons::timeline::Moment::Again => steps.clear(),
        }
    }
    let shape = |event: &lessons::timeline::Event| {
        (event.step, event.command.clone(), event.believers.clone())
    };
    let told: Vec<_> = steps.iter().map(|event| shape(event)).collect();
    let kept: Vec<_> = timeline.events.iter().map(shape).collect();
    assert_eq!(told, kept);
    house.close().await;
}

/// Everybody writes the same value, and a key's owner is whoever wrote it last all the same.
#[tokio::test]
async fn a_key_that_was_written_anew_after_a_lease_has_a_new_owner() {
    let house = House::open("owners:").await;
    let lesson = lessons::find("b03").expect("a lesson");
    let timeline = house.play(lesson, quick(lesson)).await;
    let act = timeline.events.iter().filter(|event| event.act == 0);
    let owners: Vec<_> = act
        .filter_map(|event| Some((event.actor, event.step, event.keys.get("lock:phone")?)))
        .filter(|(actor, ..)| *actor == "bob")
        .map(|(_, step, key)| (step, key.value.as_deref(), key.owner))
        .collect();
    let his = |step| (step, Some("locked"), Some("bob"));
    assert_eq!(owners.first(), Some(&his("acquire")), "{owners:?}");
    // Nobody on stage put the phone there.
    let stock = timeline.events[0].keys.get("phones in stock");
    assert_eq!(stock.map(|stock| stock.owner), Some(None));
    house.close().await;
}

/// The servers did what the texts say: the reply is lost on the wire, the node is there.
#[tokio::test]
async fn lesson_11_loses_the_reply_to_the_create_and_not_another() {
    let lesson = lessons::find("b11").expect("a lesson");
    if !can_be_played(lesson).await {
        return;
    }
    let house = House::open("orphan:").await;
    let timeline = house.play(lesson, quick(lesson)).await;
    for (act, verbs) in [
        ("orphan", &["create", "create", "delete"][..]),
        ("guid", &["create", "sync", "ls", "ls", "stat", "delete"]),
    ] {
        let number = lesson.acts.iter().position(|one| one.id == act);
        let hers = timeline.events.iter();
        let hers: Vec<_> = hers
            .filter(|event| Some(event.act) == number && event.actor == "alice")
            .collect();
        let sent = hers.iter().filter_map(|event| event.command.as_deref());
        let sent: Vec<_> = sent
            .filter_map(|command| command.split(' ').next())
            .collect();
        assert_eq!(sent, verbs, "{act}");
        let reply = hers[0].reply.as_deref().unwrap_or_default();
        assert!(reply.starts_with("(error)"), "{act}: {reply}");
        let queue = hers[0].keys.keys().filter(|key| key.contains("lock-"));
        assert_eq!(queue.count(), 1, "{act}: {:?}", hers[0].keys);
    }
    house.close().await;
}

#[test]
fn every_lesson_says_all_there_is_to_say_in_both_languages() {
    let numbers: Vec<u8> = LESSONS.iter().map(|lesson| lesson.number).collect();
    assert_eq!(numbers, (1..=12).collect::<Vec<u8>>());
    for lesson in LESSONS {
        assert_eq!(lesson.id, format!("b{:02}", lesson.number));
        let texts = [
            lesson.title,
            lesson.failure,
            lesson.forced_how,
            lesson.cure,
            lesson.source,
        ];
        let acts = lesson.acts.iter().flat_map(|act| [act.title, act.say]);
        let options = lesson.options.iter().map(|option| option.teaches);
        for words in texts.into_iter().chain(acts).chain(options) {
            assert!(
                !words.en.is_empty() && words.zh.chars().any(is_chinese),
                "{}: {}",
                lesson.id,
                words.en
            );
        }
        let kinds: Vec<Kind> = lesson.acts.iter().map(|act| act.kind).collect();
        assert!(
            kinds.first() == Some(&Kind::Failure) && kinds.contains(&Kind::Cure),
            "{}",
            lesson.id
        );
        let ids: BTreeSet<&str> = lesson.acts.iter().map(|act| act.id).collect();
        assert_eq!(ids.len(), lesson.acts.len(), "{}", lesson.id);
    }
}

#[tokio::test]
async fn order_numbers_are_measured_and_nothing_is_left() {
    let house = House::open("numbers:").await;
    for language in [Language::En, Language::Zh] {
        let told = house.lab.theatre.ids(language).await.expect("it runs");
        assert_eq!(told.sections.len(), 6);
        for section in &told.sections {
            assert!(
                !section.title.is_empty() && !section.text.contains(['{', '}']),
                "{}",
                section.text
            );
            let columns = section.columns.as_ref().map_or(0, Vec::len);
            let rows = section.rows.as_ref().expect("a table");
            assert!(
                rows.iter().all(|row| row.len() == columns),
                "{}",
                section.title
            );
            if language == Language::Zh {
                assert!(section.text.chars().any(is_chinese), "{}", section.text);
            }
        }
    }
    let told = house.lab.theatre.ids(Language::En).await.expect("it runs");
    let clock = told
        .sections
        .iter()
        .find(|section| section.title.contains("put back"));
    let clock = clock
        .and_then(|section| section.rows.as_ref())
        .expect("rows");
    let seconds: Vec<i64> = clock
        .iter()
        .filter_map(|row| row[1].as_str().and_then(|second| second.parse().ok()))
        .collect();
    // Two ids at each of five readings: now, a second, a minute and an hour back, and behind the floor.
    let [now, _, second, _, minute, _, hour, _, floor, _] = seconds[..] else {
        panic!("{clock:?}");
    };
    assert!(second > minute && minute > hour, "{seconds:?}");
    // A busy machine may have taken a moment from one to the next.
    assert!((3_500..=3_600).contains(&(now - hour)), "{seconds:?}");
    assert!(floor >= now, "{seconds:?}");
    let ids: BTreeSet<String> = clock.iter().map(|row| row[3].to_string()).collect();
    assert_eq!(ids.len(), clock.len(), "no id twice");
    assert_eq!(house.leftovers().await.0, Vec::<String>::new());
    house.close().await;
}
