//! Plays of the lessons, and what every timeline must have.

use super::{test_lab::TestLab, trace::*};
use crate::support::prelude::*;
use embedded::ZooKeeperServer;
use lab::lessons::lesson::{Kind, Lesson};
use lab::lessons::{self, LESSONS, Theatre, timeline::Timeline};
use lab::strategy::{Language, Need};

/// A theatre for as many plays at once as a test wants, and where its keys and rows are.
pub struct TestTheatre {
    pub lab: TestLab,
    prefix: &'static str,
}

impl TestTheatre {
    pub async fn open(prefix: &'static str) -> Self {
        Self::with(prefix, |_| ()).await
    }

    pub async fn with(
        prefix: &'static str,
        change: impl FnOnce(&mut lab::servers::Servers),
    ) -> Self {
        let mut lab = TestLab::with(prefix, change).await;
        let theatre = Theatre::new(lab.servers.clone()).with_places(1_000);
        Arc::get_mut(&mut lab.lab).expect("nobody else has it").theatre = theatre;
        Self { lab, prefix }
    }

    pub async fn play(&self, lesson: &Lesson, options: Value) -> Timeline {
        let options = options.as_object().cloned().unwrap_or_default();
        let played = self.lab.theatre.play(lesson.id, &options, None).await;
        let timeline = played.unwrap_or_else(|error| panic!("{}: {error}", lesson.id));
        is_well_formed(&timeline);
        timeline
    }

    /// Closes it. Plays have left no keys and no rows.
    pub async fn close(self) {
        let mut redis = redis_connection(&Servers::shared().await.redis.url()).await;
        let keys: Vec<String> = redis.keys(format!("{}*", self.prefix)).await.expect("KEYS");
        assert_eq!(keys, [""; 0]);
        let rows = "SELECT (SELECT count(*) FROM lab.plays) + (SELECT count(*) FROM lab.fenced)
                         + (SELECT count(*) FROM lab.play_orders)
                         + (SELECT count(*) FROM lab.play_refunds)";
        let mut postgres = self.lab.database.connect().await;
        let rows: i64 = sqlx::query_scalar(rows).fetch_one(&mut postgres).await.expect("a count");
        assert_eq!(rows, 0);
        self.lab.finish().await;
    }
}

/// Whether this machine can play it; a test that cannot says so on stderr.
pub async fn can_be_played(lesson: &Lesson) -> bool {
    let can = !lesson.needs.contains(&Need::ZooKeeper) || ZooKeeperServer::check().await.is_ok();
    if !can {
        super::not_exercised(&format!("lesson {} needs ZooKeeper", lesson.id));
    }
    can
}

pub fn lesson(id: &str) -> &'static Lesson {
    lessons::find(id).expect(id)
}

/// Short times for a hundred plays; the longest pause is what a lesson waits for.
pub fn quick(lesson: &Lesson) -> Value {
    match lesson.id {
        "b01" | "b08" => json!({"lease_ms": 1_000}),
        "b03" | "b04" | "b10" => json!({"lease_ms": 1_500, "pause_ms": 1_510}),
        "b06" => json!({"lease_ms": 1_800}),
        "b11" => json!({"session_ms": 2_000, "pause_ms": 2_010}),
        _ => json!({}),
    }
}

#[track_caller]
pub fn assert_broken(timeline: &Timeline, expected: &[&str]) {
    let acts = timeline.lesson.acts.iter().zip(&timeline.endings);
    let broken = acts.filter(|(_, ending)| ending.broken);
    let broken: Vec<_> = broken.map(|(act, _)| act.id).collect();
    let (id, endings) = (timeline.lesson.id, &timeline.endings);
    assert_eq!(broken, expected, "{id}: {endings:#?}");
}

/// Every failure and every flaw of a cure happens, and every cure holds, each time.
pub async fn play_each(times: usize, prefix: &'static str) {
    const AT_ONCE: usize = 16;
    let theatre = TestTheatre::open(prefix).await;
    let lessons = stream::iter(LESSONS).filter(|lesson| can_be_played(lesson));
    let lessons: Vec<&Lesson> = lessons.collect().await;
    let played = stream::iter((0..times).flat_map(|_| &lessons)).map(async |lesson| {
        let timeline = theatre.play(lesson, quick(lesson)).await;
        let failing = lesson.acts.iter().filter(|act| act.kind != Kind::Cure);
        let failing: Vec<_> = failing.map(|act| act.id).collect();
        assert_broken(&timeline, &failing);
        (lesson.id, timeline.repeats)
    });
    let played: Vec<(&str, u32)> = played.buffer_unordered(AT_ONCE).collect().await;
    assert_eq!(played.len(), times * lessons.len());
    let repeated: Vec<_> = played.into_iter().filter(|(_, repeats)| *repeats > 0).collect();
    super::say(&format!("{} plays began again after a pause: {repeated:?}", repeated.len()));
    theatre.close().await;
}

/// Marks of an act whose line it did not run.
pub fn marks_not_run(timeline: &Timeline, trace: &Trace) -> Vec<String> {
    let acts = timeline.lesson.acts.iter().enumerate();
    let not_run = acts.flat_map(|(number, act)| {
        let mut lines: Lines = trace.lines(act.id);
        for (_, event) in timeline.act(number) {
            lines.extend(event.line);
            let words = event.command.iter().flat_map(|command| command.split_whitespace());
            lines.extend(words.filter(|word| word.ends_with(".lua")).map(|script| (script, 0)));
        }
        let marks = act.excerpts(timeline.lesson, Language::En).into_iter();
        let marks = marks.filter(|mark| !ran_in(mark, &lines)).collect::<Vec<_>>().into_iter();
        marks.map(|mark| format!("{}: {}:{}", act.id, mark.file, mark.marked_line))
    });
    not_run.collect()
}

/// Of clients; a server that crashes is killed.
const STAGED: &str =
    "pause slow crash cut cut-off clocks-go-on time-passes runs-fast stays-away clock-jumps";

pub fn is_well_formed(timeline: &Timeline) {
    let lesson = timeline.lesson;
    let actors: BTreeSet<&str> = lesson.cast.iter().map(|actor| actor.id).collect();
    let body = timeline.body(Language::En);
    assert_eq!(body.events.len(), timeline.events.len());
    for (index, (event, shown)) in timeline.events.iter().zip(&body.events).enumerate() {
        let at = format!("{} event {index}: {event:?}", lesson.id);
        let believers: BTreeSet<&str> = event.believers.iter().copied().collect();
        assert_eq!(believers.len(), event.believers.len(), "{at}");
        assert_eq!(shown.overlap, event.believers.len() >= 2, "{at}");
        let mut named = believers.into_iter().chain(event.to).chain([event.actor]);
        assert!(named.all(|actor| actors.contains(actor)), "{at}");
        for text in [&event.say.en, &event.say.zh] {
            assert!(!text.trim().is_empty() && !text.contains(['{', '}']), "{at}");
        }
        assert!(has_chinese(&event.say.zh), "{at}");
        let command = event.command.as_deref();
        assert_ne!(command.map(str::trim), Some(""), "{at}");
        // What the stage does in the place of a client, the network or a clock is not passed off.
        let reply = event.reply.as_deref().unwrap_or_default();
        let is_played = reply.starts_with("(not sent") || reply.starts_with("(reply lost");
        let is_staged = STAGED.split(' ').any(|step| step == event.step);
        let is_played = is_played || is_staged && event.actor != "redis-1";
        assert_eq!(event.is_staged, is_played, "{at}");
        // A request points to the line that sent it, an incident to the line of the lesson.
        if let Some((file, line)) = event.line {
            assert_eq!(command.is_some(), event.reply.is_some(), "{at}");
            let line = body.code[file].lines().nth(line as usize - 1);
            assert!(line.is_some_and(|line| !line.trim().is_empty()), "{at}");
        }
    }
    let times = timeline.events.iter().map(|event| event.t_ms);
    assert!(times.is_sorted(), "{}: {:?}", lesson.id, timeline.events);
    // The acts cover all events, in order, without a gap.
    let mut next = 0;
    for act in &body.acts {
        assert_eq!(act.first, Some(next), "{} {}", lesson.id, act.id);
        next = act.last.expect("every act has an event") + 1;
        let verdict = act.verdict.as_ref().expect("every act has a verdict");
        assert!(verdict.held != verdict.broken && !verdict.why.is_empty());
    }
    assert_eq!(next, timeline.events.len());
}

pub fn has_chinese(text: &str) -> bool {
    text.contains(|letter| ('\u{4e00}'..='\u{9fff}').contains(&letter))
}
