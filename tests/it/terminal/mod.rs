//! What people read in a terminal, word for word, in the files beside this one. After a change
//! that is wanted `INSTA_UPDATE=always make test ARGS="--test it -- terminal"` writes them anew.

use crate::support::buggy_sale::{BuggySale, Manner};
use crate::support::prelude::*;

/// What is another at each run, or with each line that is added to a source.
const VARIES: [(&str, &str); 13] = [
    (r"http://127\.0\.0\.1:\d+", "[server]"),
    // Attempts a second and a latency: right-aligned, before the verdict.
    (r" {2,}\d+ +\d+\.\d  ", "  [rate]  [ms]  "),
    (r"in \d+\.\d\d s \(\d+/s\)", "in [s] ([rate]/s)"),
    (r" *\d+\.\d+ ms", " [ms]"),
    (r"u\d  201 sold o\d  \(key judge-[0-9a-f-]+\)", "[buyer]  201 sold [id]"),
    (r"order o\d of u\d", "order [id] of [buyer]"),
    (r"(?m)^( *\d+) +\d+ ( *[●○┃·])", "$1  [ms] $2"),
    (r"\(\d+ ms\)|(alice|bob|carol)-[0-9a-f]{6}", "$1[..]"),
    (r"(?m)^   ( *\d+)(  |$)", "  [line]$2"),
    (r"(\.rs|\.lua):\d+", "$1:[line]"),
    // The machine stood still, and the lesson was played again.
    (r"(?m)^  (Played again|本机曾停顿).*\n", ""),
    // It stood still for less, and a lease that nobody holds any more was seen to be over earlier.
    (r"(?m)^ +(?:·  ){5}lock:phone = (no such key|不存在)\n", ""),
    // A busy machine: a statement took over a second.
    (r"(?m)^\S+Z  WARN sqlx::query: slow statement.*\n", ""),
];

fn shown(name: &str, text: &str, filters: &[(&str, &str)]) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(".");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.set_filters(filters.to_vec());
    settings.bind(|| insta::assert_snapshot!(name, text));
}

async fn read(home: &Home, commands: impl IntoIterator<Item = String>) -> String {
    let mut text = String::new();
    for words in commands {
        let ended = home.run(&words).await;
        text += &format!("$ flash-sale {words}\n{}{}\n", ended.stderr, ended.stdout);
        assert!(ended.code.is_some(), "{ended:?}");
    }
    text
}

async fn shown_in_both_languages(name: &str, commands: &[&str]) {
    let home = Home::new();
    for (language, name) in [("en", name), ("zh", &format!("{name}.zh"))] {
        let commands = commands.iter().map(|words| format!("{words} --lang {language}"));
        shown(name, &read(&home, commands).await, &VARIES);
    }
}

const COMMANDS: &str = "serve, worker, migrate, seed, tokens, audit, rebuild, lab, lab list, \
    lab ids, lab locks, lab export, lab new, lab grade, lab run, lesson, lesson list, lesson play, \
    judge, openapi";

/// The settings of the stores, which most commands have, are shown once.
#[tokio::test]
async fn help() {
    let home = Home::new();
    let help = async |words: &str| {
        let mut command = home.command(words);
        command.arg("--help").env_clear();
        home.finish(command).await.assert_done().stdout.clone()
    };
    let migrate = help("migrate").await;
    let settings = migrate.split_once("Options:\n").expect("options").1;
    let settings = settings.split_once("  -h, --help").expect("the last ones").0;
    let mut text = help("").await;
    for words in COMMANDS.split(", ") {
        let mut help = help(words).await;
        if words != "migrate" {
            help = help.replace(settings, "  [the settings of migrate]\n\n");
        }
        text += &format!("\n$ flash-sale {words} --help\n{help}");
    }
    shown("help", &text, &[]);
}

#[tokio::test]
async fn lab() {
    // Long enough for the second buyer of a busy machine to read before the first writes.
    let two = "lab run --stock 1 --buyers 2 --concurrency 2 --option work_ms=1500 --strategy naive";
    let both = format!("{two} --strategy conditional-update");
    shown_in_both_languages("lab", &[two, &both, "lab list naive"]).await;
}

#[tokio::test]
async fn lesson() {
    // Nobody is so slow that a lease ends before it is looked at.
    let calm = "lesson play b03 --option lease_ms=2000 --option pause_ms=2010";
    shown_in_both_languages("lesson", &[calm]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn judge() {
    let home = Home::new();
    let mut text = String::new();
    for manner in [Manner::Right, Manner::Oversells] {
        let sale = BuggySale::start(manner);
        let storm = "--stock 2 --buyers 5 --duplicates 0 --settle 1";
        let words = format!("judge {} {storm}", sale.url());
        text += &sale.beside(read(&home, [words])).await;
    }
    shown("judge", &text, &VARIES);
}

#[tokio::test]
async fn audit() {
    let (home, database) = Home::on_shared_servers("seen:").await;
    home.run("seed").await.assert_done();
    let mut text = home.run("audit").await.assert_done().stdout.clone();
    let damage = "UPDATE sales SET taken = 3 WHERE title = 'Ten phones'";
    database.connect().await.execute(damage).await.expect("the damage is done");
    let broken = home.run("audit --wait 0").await;
    assert_eq!(broken.code, Some(1), "{broken:?}");
    text += &broken.stdout;
    // A sale that cannot be read hides no other.
    let mut redis = redis_connection(&Servers::shared().await.redis.url()).await;
    let log = Keys::new("seen:").log("1".parse().expect("an id"));
    let () = redis.set(log, "no log").await.expect("SET");
    let unread = home.run("audit --wait 0").await;
    assert_eq!(unread.code, Some(1), "{unread:?}");
    assert!(unread.stderr.contains("flash-sale: sale 1: redis: "), "{unread:?}");
    text += &unread.stdout;
    let repaired = damage.replace("taken = 3", "taken = 0");
    database.connect().await.execute(AssertSqlSafe(repaired)).await.expect("repaired");
    let unread = home.run("audit --json --wait 0").await;
    assert_eq!((unread.code, unread.json().as_array().map(Vec::len)), (Some(2), Some(3)));
    shown("audit", &text, &[]);
}
