//! What `cargo test --benches` runs: the generator against the bare endpoint, the parser, the
//! arithmetic. A second of work, no figures.

use crate::load::{Expected, Follower, Load, Requests, Schedule, lengths, order_id};
use crate::process::{Process, Workspace};
use crate::report::{Bound, Section, spread};
use crate::{Result, scenarios::ACCEPTED};
use flash_sale::{auth::TokenSigner, domain::UserId};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SECRET: &str = "a secret of the benchmark's self-check";

pub fn run() -> Result {
    let answer = b"HTTP/1.1 202 Accepted\r\nContent-Length: 12\r\nx: y\r\n\r\nhello, world";
    let head = answer.len() - 12;
    for end in 0..answer.len() {
        let right = (end >= head).then_some((head, 12));
        assert_eq!(lengths(&answer[..end]), Ok(right), "a split answer");
    }
    assert!(lengths(b"HTTP/1.1 200 OK\r\n\r\n").is_err(), "an answer without a length is parsed");
    let ids = [&br#"{"order_id":"123","sale_id":"7"}"#[..], b"{}"].map(order_id);
    assert_eq!(ids, [123, 0]);

    assert_eq!(spread([3.0, 1.0, 2.0, 4.0].into_iter()), Some((1.0, 2.5, 4.0)));
    assert!(Bound::AtLeast(0.5).is_met(0.5) && !Bound::AtLeast(0.5).is_met(0.49));
    assert!(Bound::AtMost(1.1).is_met(1.1) && !Bound::AtMost(1.1).is_met(1.11));
    let mut section = Section::new("x", "Title", &["a", "b"]);
    section.row(["1".to_owned(), "2".to_owned()]);
    section.goal("speed", Bound::AtLeast(1.0), 0.5);
    let text = section.text();
    let words: Vec<&str> = text.split_whitespace().collect();
    for row in ["| a | b | | - | - | | 1 | 2 |", "| speed | ≥ 1 | 0.500 | **not met** |"] {
        assert!(words.join(" ").contains(row), "no {row} in {text}");
    }

    tokio::runtime::Runtime::new()?.block_on(generator())?;
    println!("the benchmark's self-check is ok; `make bench` measures");
    Ok(())
}

/// An open loop: two kinds of right answers, of every second is told, none before it is due.
async fn generator() -> Result {
    let workspace = Workspace::create()?;
    let bare = Process::bare(&workspace, SECRET)?;
    let until = time::OffsetDateTime::now_utc() + time::Duration::HOUR;
    let good = TokenSigner::new(SECRET.as_bytes())?.mint(UserId::random(), "load", until);
    let tokens = [format!("{good}x"), good];
    let (tell, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let schedule =
        Schedule { begin: Instant::now() + Duration::from_millis(100), per_second: 1_000.0 };
    let load = Load {
        address: bare.address,
        requests: Arc::new(Requests::purchases(bare.address, "1", &tokens, true)),
        count: 200,
        connections: 7,
        expected: vec![ACCEPTED, Expected { status: 401, marker: "" }],
        schedule: Some(schedule),
        follower: Some(Follower { every: 2, tell }),
    };
    let run = load.run().await?;
    assert_eq!(run.kinds, [100, 100], "a forged token is taken, or kinds are miscounted");
    assert_eq!((run.latency.len(), run.unexpected.len()), (200, 0));
    assert!(run.seconds >= 0.199, "an open loop is faster than its schedule");
    let mut told = 0;
    while let Ok(answer) = seen.try_recv() {
        told += 1;
        // The even ones are forged.
        let is_right = answer.index.is_multiple_of(2) && answer.order_id == 0;
        assert!(is_right && answer.answered >= schedule.due(answer.index), "{answer:?}");
    }
    assert_eq!(told, 100, "a follower is told of every second answer");
    Ok(())
}
