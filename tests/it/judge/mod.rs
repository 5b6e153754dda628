//! The judge, on servers with one fault each and on right ones (a hundred times: `proof judge::`;
//! histories written by hand: crates/judge).

mod adapters;
mod command;
mod faults;
mod lane;

use crate::support::buggy_sale::{BuggySale, Manner, Manner::*, SOON, kinds, storm_on};
use crate::support::prelude::*;
use judge::history::{History, Meaning, Phase};
use judge::report::{Report, Verdict};
use judge::verdict::Kind::{self, *};

/// Everything that is wrong is found, nothing else is, and it is proved by the buyers concerned.
async fn is_caught<const N: usize>((manner, expected): (Manner, [Kind; N])) {
    let sale = BuggySale::start(manner);
    let (report, _) = sale.judged(|config| config.settle = SOON).await.expect("a verdict");
    assert_eq!(report.verdict, Verdict::Broken, "{report:#?}");
    assert_eq!(kinds(&report), expected, "{report:#?}");
    let wronged = sale.wronged();
    for finding in &report.findings {
        let (mut requests, rows) = (finding.requests.iter(), &finding.rows);
        let is_proved = match finding.kind {
            Oversold => requests.len() > 2 && requests.all(|one| one.means == Meaning::Sold),
            Undersold => {
                requests.any(|one| one.phase == Phase::LastCall && one.means != Meaning::Sold)
            }
            FalseSoldOut => requests.len() > 1 && requests.all(|one| one.means == Meaning::SoldOut),
            OrderIdTwice => rows.len() > 1 && rows.iter().all(|row| row.order_id == "o1"),
            WrongRemaining => finding.what == "1 remaining, but 50 − 50 stored = 0",
            _ => requests.len() > 0 && requests.all(|request| wronged.contains(&request.user)),
        };
        assert!(is_proved, "{finding:#?} of {wronged:?}");
    }
}

cases! { is_caught:
    three_units_too_many => (Oversells, [Oversold]),
    two_units_for_one_buyer => (SellsTwice, [SoldTwice]),
    one_id_for_several_orders => (GivesAnIdTwice, [OrderIdTwice]),
    an_acknowledged_order_that_is_not_stored => (Forgets, [AcknowledgedAndLost]),
    a_stored_order_that_was_refused => (StoresWhatItRefuses, [StoredNotAcknowledged]),
    a_key_that_was_sold_and_then_sold_out => (TakesAKeyBack, [KeyAnsweredDifferently]),
    units_that_a_failure_keeps => (LosesUnits, [Undersold, FalseSoldOut]),
    buyers_who_are_locked_out_by_a_failure => (MarksBeforeItFails, [Undersold]),
    a_count_that_is_wrong => (Miscounts, [WrongRemaining]),
    units_that_a_kill_keeps => (HangsBeforeStoring, [Undersold, FalseSoldOut]),
    a_key_that_was_sold_twice => (ForgetsKeys, [SoldTwice, KeyAnsweredDifferently]),
    an_accepted_order_that_is_never_stored => (AcceptsAndForgets, [AcknowledgedAndLost]),
    orders_that_a_kill_loses => (LosesTheLast, [AcknowledgedAndLost]),
    keys_that_a_kill_loses => (LosesItsKeys, [KeyAnsweredDifferently]),
    a_count_that_a_kill_makes_wrong => (MiscountsWhenStarted, [WrongRemaining]),
}

async fn is_caught_late<const N: usize>((manner, buyers, late): (Manner, usize, [Kind; N])) {
    let change = |config: &mut judge::Config| {
        (config.buyers, config.settle) = (buyers, Some(Duration::from_secs(3)));
    };
    let (report, _) = BuggySale::start(manner).judged(change).await.expect("a verdict");
    assert_eq!(kinds(&report), late, "{report:#?}");
}

cases! { is_caught_late:
    /// Everybody has an order when this one comes.
    a_second_order_that_is_stored_late => (StoresAgain, 40, [SoldTwice, StoredNotAcknowledged]),
    /// Nothing is wrong for a second after this one has put its buyers off.
    what_was_put_off_and_is_carried_out_later => (CarriesOutLater, 90, [Oversold]),
}

async fn holds(manner: Manner) {
    BuggySale::start(manner).must_hold(3).await;
}

cases! { holds:
    a_right_server_holds => Right,
    a_slow_server_holds => Slow,
    a_busy_server_holds => Busy,
    a_server_that_stores_later_holds => StoresLater,
    a_server_that_knows_no_key_holds => KnowsNoKey,
    a_server_that_is_killed_with_answers_unsent_holds => HangsAfterStoring,
    a_server_that_takes_back_what_it_refused_holds => TakesBack,
    a_server_that_breaks_off_its_answers_holds => BreaksOff,
    a_server_that_says_when_to_come_again_holds => TooMany,
    a_killed_server_that_lists_slowly_holds => ListsSlowly,
    a_killed_server_behind_a_proxy_holds => BehindAProxy,
    a_killed_server_that_is_there_again_at_once_holds => Supervised,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_that_hardly_took_place_proves_nothing() {
    let change = |config: &mut judge::Config| {
        config.concurrency = 1;
        config.time_limit = Duration::from_millis(200);
        config.settle = SOON;
    };
    let judged = BuggySale::start(Manner::Slow).judged(change).await;
    let said = judged.expect("a verdict").0.verdict_in_words();
    assert!(said.starts_with("undecided (") && said.contains("had been begun"), "{said}");
}

/// A host of the judge may serve others on the same thread.
#[tokio::test]
async fn looking_and_judging_block_nobody_else() {
    let (here, looked) = (std::thread::current().id(), Arc::new(Mutex::new(Vec::new())));
    let seen = looked.clone();
    let progress = move |event: judge::Event<'_>| {
        if matches!(event, judge::Event::Settling(_)) {
            locked(&seen).push(std::thread::current().id());
        }
    };
    let sale = BuggySale::start(Right);
    judge::run(storm_on(sale.url()), Arc::new(progress)).await.expect("a verdict");
    let looked = locked(&looked);
    assert!(!looked.is_empty() && !looked.contains(&here), "{looked:?} on {here:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_clients_are_served_too() {
    let judged = BuggySale::start(Right).judged(|config| config.slow_client = 0.5).await;
    assert_eq!(judged.expect("a verdict").0.verdict_in_words(), "held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_history_is_judged_from_its_file_as_it_was_from_the_storm() {
    let sale = BuggySale::start(Oversells);
    let (report, history) = sale.judged(|config| config.settle = SOON).await.expect("a verdict");
    let file = std::env::temp_dir().join(format!("fs-judge-{}.jsonl", std::process::id()));
    history.save(&file).expect("saved");
    let again = History::load(&file).expect("loaded");
    let request =
        |times: &str| format!(r#"{{"request":{{"user":"a","key":"k","means":"lost",{times}}}}}"#);
    for (second, why) in [
        (r#"{"request":{}}"#.to_owned(), "line 2: missing field"),
        (request(r#""start_us":2,"end_us":1"#), "line 2: end_us is before start_us"),
        (r#"{"run":{"stock":1,"per_user":0}}"#.to_owned(), "line 2: per_user must be at least 1"),
    ] {
        std::fs::write(&file, format!("{{\"run\":{{\"stock\":1}}}}\n{second}\n")).expect("written");
        let error = History::load(&file).expect_err(why).to_string();
        assert!(error.starts_with(why), "{error}");
    }
    std::fs::remove_file(&file).expect("removed");
    assert_eq!(again, history);
    assert_eq!(Report::on(&again).findings, report.findings);
    assert!(history.requests.iter().any(|request| request.means == Meaning::Sold));
}
