//! Histories that are written by hand: what may be accused, and what may not. And bad adapters.
//! The judge before servers: `tests/it/judge`.

use judge::adapter::Adapter;
use judge::history::{History, Phase, Request, Row, Run, Stored};
use judge::report::{Report, Verdict};
use judge::verdict::Code;
use judge::verdict::Kind::{self, *};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// `user key from..to meaning order`, in a line each; `!` is a last call, `-` no order.
fn history(stock: usize, requests: &str, rows: &str, remaining: Option<i64>) -> History {
    let request = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [user, key, time, means, id] = words[..] else { panic!("{line}") };
        let (start, end) = time.split_once("..").expect("a time");
        let is_last = user.starts_with('!');
        Request {
            user: user.trim_start_matches('!').to_owned(),
            key: key.to_owned(),
            phase: if is_last { Phase::LastCall } else { Phase::Storm },
            start_us: start.parse().expect("a time"),
            end_us: end.parse().expect("a time"),
            status: None,
            means: serde_json::from_value(means.into()).expect("a meaning"),
            order_id: (id != "-").then(|| id.to_owned()),
            error: None,
        }
    };
    let row = |row: &str| {
        let (order_id, user) = row.split_once(':').expect("a row");
        Row { order_id: order_id.to_owned(), user: user.to_owned() }
    };
    let orders = rows.split_whitespace().map(row).collect();
    History {
        run: Run { server: "a server".to_owned(), stock, per_user: 1, keyed: true },
        requests: requests.split(';').map(request).collect(),
        stored: Some(Stored { orders, remaining }),
    }
}

fn kinds(report: &Report) -> Vec<Kind> {
    report.findings.iter().map(|finding| finding.kind).collect()
}

fn judge(stock: usize, requests: &str, rows: &str, remaining: Option<i64>) -> Vec<Kind> {
    kinds(&Report::on(&history(stock, requests, rows, remaining)))
}

#[test]
fn what_a_correct_server_may_do_is_no_finding() {
    // An answer that was lost may have been a sale, or not; so may "come again" and an error.
    for means in ["lost", "come_again", "unexpected"] {
        let requests = format!("a k 0..9 {means} -; b l 1..2 sold_out -");
        assert_eq!(judge(1, &requests, "o1:a", Some(0)), [], "{means}");
        assert_eq!(judge(1, &requests, "", Some(1)), [], "{means}");
    }
    // The two clicks of one buyer, and a retry that hears of the same order.
    let clicks = "a k 0..9 lost -; a k 10..11 sold o1; a l 2..5 already_ordered -";
    assert_eq!(judge(1, clicks, "o1:a", Some(0)), []);
    // At the same time, one key may hear both: the refusal may be the older one.
    assert_eq!(judge(1, "a k 0..9 sold o1; a k 5..6 sold_out -", "o1:a", None), []);
    // Sold out was true then, and the unit came back: nobody asked last.
    assert_eq!(judge(2, "a k 0..9 sold o1; b k 1..2 sold_out -", "o1:a", Some(1)), []);
    // One answer has the id of the order, and the other none.
    assert_eq!(judge(1, "a k 0..9 sold -; a k 10..11 sold o1", "o1:a", Some(0)), []);
    // Without a key a server cannot know the request again.
    let mut keyless = history(1, "a k 0..9 sold o1; a k 10..12 sold_out -", "o1:a", None);
    keyless.run.keyed = false;
    assert_eq!(kinds(&Report::on(&keyless)), []);
    // The last to ask was served, or heard nothing certain.
    assert_eq!(judge(2, "a k 0..9 sold o1; !b k 10..12 sold o2", "o1:a o2:b", None), []);
    assert_eq!(judge(2, "a k 0..9 sold o1; !b k 10..12 come_again -", "o1:a", None), []);
}

#[test]
fn what_no_correct_server_does_is_one() {
    let twice = "a k 0..9 sold o1; a l 1..2 sold o2";
    assert_eq!(judge(5, twice, "o1:a o2:a", None), [SoldTwice]);
    let same_key = "a k 0..9 sold o1; a k 1..2 sold o2";
    assert_eq!(judge(5, same_key, "o1:a o2:a", None), [SoldTwice, KeyAnsweredDifferently]);
    // Stored for somebody who was only refused, whom nobody could connect, or who never asked.
    for requests in ["a k 0..9 sold_out -", "a k 0..9 not_sent -", "b k 0..9 sold_out -"] {
        let requests = format!("{requests}; c k 0..9 sold o2");
        let found = judge(2, &requests, "o1:a o2:c", None);
        assert_eq!(found, [StoredNotAcknowledged], "{requests}");
    }
    // Told of more than there is, though the store has overwritten one.
    let both = "a k 0..9 sold o1; b k 1..2 sold o1";
    assert_eq!(judge(1, both, "o1:b", None), [Oversold, OrderIdTwice, AcknowledgedAndLost]);
    // One buyer was told of three orders, of which the last is left.
    let overwritten = "a k 0..9 sold o1; a l 10..12 sold o2; a m 13..14 sold o3";
    assert_eq!(judge(5, overwritten, "o3:a", None), [SoldTwice, AcknowledgedAndLost]);
    assert_eq!(judge(0, "a k 0..9 sold o1", "o1:a", None), [Oversold]);
    let taken_back = "a k 0..9 sold o1; a k 10..12 sold_out -";
    assert_eq!(judge(1, taken_back, "o1:a", None), [KeyAnsweredDifferently]);
    let left = "a k 0..9 sold o1; !b k 10..12 already_ordered -";
    assert_eq!(judge(2, left, "o1:a", None), [Undersold]);
    let again = "a k 0..9 sold o1; a l 10..12 already_ordered -";
    assert_eq!(judge(2, again, "o1:a", Some(0)), [WrongRemaining]);
    // All units are on sale, and nobody is sold one.
    let nothing = "a k 0..9 sold_out -; !a l 10..12 sold_out -";
    assert_eq!(judge(2, nothing, "", Some(2)), [Undersold, FalseSoldOut]);
    let exchanged = "a k 0..9 sold o1; b k 1..2 sold_out -";
    assert_eq!(judge(1, exchanged, "o2:b", None), [AcknowledgedAndLost, StoredNotAcknowledged]);
    // Whatever the refusals mean.
    let two_orders = format!("{same_key}; b k 3..4 already_ordered -; a k 10..11 sold_out -");
    assert_eq!(judge(2, &two_orders, "o1:a o2:a", None), [SoldTwice, KeyAnsweredDifferently]);
}

#[test]
fn what_cannot_be_judged_is_said() {
    let undecided = |history: &History, words: &str| {
        let report = Report::on(history);
        assert_eq!(report.verdict, Verdict::Undecided, "{report:#?}");
        assert!(report.verdict_in_words().contains(words), "{report:#?}");
    };
    let only_lost = history(2, "a k 0..9 lost -; b k 1..2 unexpected -", "", None);
    undecided(&only_lost, "no answer means anything");
    let pushed_off = history(2, "a k 0..9 sold o1; !b k 10..12 come_again -", "o1:a", None);
    undecided(&pushed_off, "the last to ask heard: come_again");
    let misnamed = history(1, "a k 0..9 sold o1; b k 1..2 sold_out -", "o1:user:a", None);
    undecided(&misnamed, "names nobody who asked: a was told o1, stored under user:a");
    let strange = history(1, "a k 0..9 sold o1; b k 1..2 sold_out -", "7:main", None);
    undecided(&strange, "orders.user and orders.order_id: no stored order is that of a buyer");
    let strange = "a k 0..9 sold 1; a k 10..12 sold 2; b k 1..2 sold_out -";
    undecided(&history(1, strange, "o1:main", None), "orders.user and orders.order_id");
    let other_id = "a k 0..9 sold o1; a k 10..12 sold o2; b k 1..2 sold_out -";
    let other_id = history(1, other_id, "7:a", Some(0));
    undecided(&other_id, "order.answers[…].order_id and orders.order_id");
    let not_understood = history(1, "a k 0..9 unexpected -; b k 1..2 sold_out -", "o1:a", Some(0));
    undecided(&not_understood, "1 orders are stored, and no answer means sold");
    let swapped = "a k 0..9 sold -; b k 0..9 sold -; c k 0..9 sold_out -";
    undecided(&history(1, swapped, "o1:c", None), "are the meanings swapped?");
    let nothing = history(2, "a k 0..9 sold_out -", "", None);
    undecided(&nothing, "setup: not one of 2 units was sold");
    let unread = History { stored: None, ..history(1, "a k 0..9 sold o1", "", None) };
    undecided(&unread, "does not say what is stored");
    // What the adapter misreads stands above what it may have caused.
    let both = history(1, "a k 0..9 sold o1; b k 1..2 sold o2", "o1:x o2:y", None);
    let report = Report::on(&both);
    assert_eq!(
        (kinds(&report), report.doubt_codes.as_slice()),
        (vec![Oversold], &[Code::Adapter][..])
    );
    let table = report.table();
    assert!(table.find("doubt     orders.user") < table.find("oversold: "), "{table}");
}

#[test]
fn what_is_odd_is_noted() {
    let noted = |requests: &str, rows: &str, words: &str| {
        let report = Report::on(&history(1, requests, rows, None));
        assert_eq!(report.verdict, Verdict::Held, "{report:#?}");
        assert!(report.notes.iter().any(|note| note.contains(words)), "{report:#?}");
    };
    noted("a k 0..9 sold -; b k 1..2 sold_out -", "o1:a", "1 sales came without an id");
    noted("a k 0..9 sold o1; a l 1..2 sold_out -", "o1:a", "heard sold_out have an order");
    noted("a k 0..9 sold o1; b k 1..2 come_again -", "o1:a", "nobody heard sold_out");
}

#[test]
fn the_refusal_that_proves_it_is_shown_however_often_its_buyer_was_put_off() {
    let put_off: String = (0..30).map(|at| format!("b k {at}..{at} come_again -; ")).collect();
    let requests = format!("a k 0..1 sold o1; {put_off}!b k 40..41 sold_out -");
    let report = Report::on(&history(2, &requests, "o1:a", None));
    let undersold = &report.findings[0];
    assert_eq!((undersold.kind, undersold.requests.len()), (Undersold, 20));
    assert!(undersold.requests.iter().any(|request| request.phase == Phase::LastCall));
}

#[test]
fn requests_and_rows_of_a_finding_belong_together() {
    let (mut requests, mut rows) = (Vec::new(), String::new());
    for number in 0..30 {
        // By name u10 comes before u2.
        let (start, end) = (number * 10, number * 10 + 5);
        requests.push(format!("u{number} k{number} {start}..{end} sold o{number}"));
        requests.push(format!("u{number} l{number} {start}..{end} sold p{number}"));
        rows += &format!("o{number}:u{number} p{number}:u{number} ");
    }
    let report = Report::on(&history(60, &requests.join("; "), &rows, None));
    let twice = &report.findings[0];
    let first: Vec<String> =
        (0..10).flat_map(|user| [format!("u{user}"), format!("u{user}")]).collect();
    let asked = twice.requests.iter().map(|request| request.user.clone());
    assert_eq!((twice.kind, asked.collect::<Vec<_>>()), (SoldTwice, first.clone()));
    let mut stored: Vec<_> = twice.rows.iter().map(|row| row.user.clone()).collect();
    stored.sort_unstable();
    assert_eq!(stored, first);
}

#[test]
fn the_time_line_is_that_of_the_first_finding_with_requests() {
    let requests = "a k 5..9 sold o1; a k 10..12 sold_out -";
    let report = Report::on(&history(2, requests, "o1:a o2:z", Some(1)));
    assert_eq!(kinds(&report), [StoredNotAcknowledged, KeyAnsweredDifferently, WrongRemaining]);
    assert!(report.findings[0].requests.is_empty() && report.findings[2].rows.len() == 2);
    let page = report.html().expect("a page");
    assert!(
        page.find("<svg").expect("a time line") > page.find("key answered").expect("its finding")
    );
}

/// docs/judge.md names every member of the report, and no other.
#[test]
fn the_report_is_documented() {
    let report = Report::on(&history(1, "a k 0..9 sold o1; b l 1..2 sold o2", "o1:a", None));
    let report = serde_json::to_value(report).expect("JSON");
    let under = |name: &str, value: &Value| {
        let members = value.as_object().expect("members").keys();
        members.map(|member| format!("{name}{member}")).collect::<BTreeSet<_>>()
    };
    let mut members = under("", &report);
    for (name, inner) in
        [("findings", &report["findings"][0]), ("latency_ms", &report["latency_ms"])]
    {
        assert!(members.remove(name), "{name}");
        let dot = if name == "findings" { "[]." } else { "." };
        members.append(&mut under(&format!("{name}{dot}"), inner));
    }
    let page = include_str!("../../../docs/judge.md");
    let (_, section) = page.split_once("\n## The report as JSON\n").expect("a section");
    let (section, _) = section.split_once("\n## ").expect("a section behind it");
    let cells = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once(" |"));
    let named = cells.flat_map(|(cell, _)| cell.split(", "));
    let named: BTreeSet<String> = named.map(|name| name.replace('`', "")).collect();
    assert_eq!(named, members);
}

#[test]
fn what_a_server_says_does_not_steer_a_terminal() {
    let mut history = history(1, "a k 0..9 sold o1; b l 1..2 sold o2", "o1:a o2:b", None);
    history.requests[0].order_id = Some("\u{1b}[2Jo1\nverdict: held".to_owned());
    history.run.server = "\u{1b}[2J".to_owned();
    let table = Report::on(&history).table();
    assert!(table.contains("sold \\u{1b}[2Jo1\\nverdict: held"), "{table}");
    assert!(!table.contains('\u{1b}'), "{table}");
}

const CONTRACT: &str = include_str!("../adapters/contract.json");

#[test]
fn a_bad_adapter_is_told_which_member_is_wrong() {
    let bad = |from: &str, to: &str, member: &str, why: &str| {
        assert!(CONTRACT.contains(from), "{from}");
        let error = Adapter::parse(&CONTRACT.replacen(from, to, 1)).expect_err(to).to_string();
        assert!(error.starts_with(&format!("adapter: {member}: ")), "{error}");
        assert!(error.contains(why), "{error}");
    };
    bad("\"order\":", "\"ordr\":", "ordr", "unknown field");
    bad("\"rows\"", "\"lines\"", "orders.lines", "unknown field `lines`");
    bad("\"sold_out\" }", "\"gone\" }", "order.answers[1].means", "must be sold");
    bad("\"come_again\"", "\"lost\"", "order.answers[3].means", "must be sold");
    bad("201, 202]", "\"202\"]", "order.answers[0].status", "nor a list of such values");
    bad("201, 202", "2010", "order.answers[0].status", "from 100 to 599");
    bad("\"/order_id\"", "\"order_id\"", "order.answers[0].order_id", "no JSON pointer");
    bad("\"at\": \"/code\", ", "", "order.answers[1].is", "needs `at`");
    bad("\"means\": \"sold\"", "\"means\": \"come_again\"", "order.answers", "none means sold");
    bad("{user}", "{usr}", "order.request.body.user", "no variable {usr} here, only key, number");
    bad("{stock}", "{user}", "setup[0].body.stock", "no variable {user}");
    bad("\"/reset\"", "\"reset\"", "setup[0].path", "does not begin with /");
    bad("\"POST\"", "\"PO ST\"", "setup[0].method", "is no method");
    bad("Idempotency-Key", "Idempotency Key", "order.request.headers.Idempotency Key", "header");
    bad(
        "Idempotency-Key",
        "Content-Length",
        "order.request.headers.Content-Length",
        "by the judge",
    );
    bad("\"/remaining\"", "\"remaining\"", "remaining.at", "no JSON pointer");
    bad("\"about\"", "\"per_user\": 0, \"about\"", "per_user", "at least 1");
    let unset = CONTRACT.replacen("{key}", "{env:NOBODY_SETS_THIS}", 1);
    let error = Adapter::parse(&unset).expect("an adapter").environment().expect_err("unset");
    assert_eq!(error.member, "order.request.headers.Idempotency-Key");
    let more = format!("{CONTRACT} 1");
    assert_eq!(Adapter::parse(&more).expect_err("two values").member, "the end of the file");
}

/// As tests/pages/answers.test.mjs reads the same file with the rule of loadtest/judge.js.
#[test]
fn an_answer_means_the_same_here_and_in_k6() {
    let file = include_str!("../../../tests/support/answers.json");
    let file: Value = serde_json::from_str(file).expect("JSON");
    let mut adapter: Value = serde_json::from_str(CONTRACT).expect("JSON");
    adapter["order"]["answers"] = file["answers"].clone();
    let order = Adapter::parse(&adapter.to_string()).expect("an adapter").order;
    for case in file["cases"].as_array().expect("cases") {
        let status = case["status"].as_u64().expect("a status") as u16;
        let (means, order_id, error) = order.meaning(status, &case["body"]);
        let found = json!({"means": means, "order_id": order_id, "error": error});
        let expected =
            ["means", "order_id", "error"].map(|name| (name.to_owned(), case[name].clone()));
        assert_eq!(found, Value::Object(expected.into_iter().collect()), "{case}");
    }
}
