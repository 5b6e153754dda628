//! What `cargo test --benches` runs: the generator against the bare endpoint, the parser, the arithmetic.
//! A second of work, no figures.

use crate::{
    Error,
    load::{Crowd, Expected, Follower, Load, Requests, Schedule, Shape, User, order_id},
    process::{Process, Workspace},
    scenarios::BARE_EXPECTED,
    section::{Bound, Goal, Section, markdown, spread, thousands},
};
use flash_sale::{auth::TokenSigner, domain::UserId};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

const SECRET: &str = "a secret of the benchmark's self-check";

pub fn run() -> Result<(), Error> {
    parser();
    arithmetic();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(generator())?;
    println!("the benchmark's self-check is ok; `make bench` measures");
    Ok(())
}

fn parser() {
    let answer = b"HTTP/1.1 202 Accepted\r\nContent-Length: 12\r\nx: y\r\n\r\nhello, world";
    let head = answer.len() - 12;
    let mut shape = Shape::default();
    for end in 0..answer.len() {
        let measured = shape.measure(&answer[..end]);
        let right = if end < head {
            Ok(None)
        } else {
            Ok(Some((head, 12)))
        };
        assert!(measured == right, "the parser stumbles over a split answer");
    }
    let longer =
        b"HTTP/1.1 409 Conflict\r\nx: y\r\ncontent-length: 3\r\nz: a long header\r\n\r\nabc";
    let measured = shape.measure(longer);
    assert!(
        measured == Ok(Some((longer.len() - 3, 3))),
        "the parser trusts an old shape"
    );
    let without = b"HTTP/1.1 200 OK\r\n\r\n";
    assert!(
        Shape::default().measure(without).is_err(),
        "an answer without a length is parsed"
    );
}

async fn generator() -> Result<(), Error> {
    let workspace = Workspace::create(None)?;
    let bare = Process::bare(&workspace, SECRET)?;
    let signer = TokenSigner::new(SECRET.as_bytes())?;
    let expires_at = time::OffsetDateTime::now_utc() + time::Duration::HOUR;
    let mut users: Vec<User> = (0..100)
        .map(|_| User {
            token: signer.mint(UserId::random(), "load", expires_at),
        })
        .collect();
    let load = Load {
        address: bare.address,
        requests: Arc::new(Requests::purchases(bare.address, "1", &users, true)),
        count: 2_000,
        connections: 7,
        threads: 2,
        expected: vec![BARE_EXPECTED],
        schedule: None,
        follower: None,
    };
    let outcome = load.clone().run().await?;
    assert!(
        outcome.answered == 2_000,
        "the bare endpoint did not answer everything"
    );
    assert!(outcome.latency.len() == 2_000, "a latency is missing");
    assert!(
        outcome.unexpected.is_empty(),
        "the bare endpoint answered something else"
    );

    users.truncate(1);
    users[0].token.push('x');
    let forged = Load {
        requests: Arc::new(Requests::purchases(bare.address, "1", &users, true)),
        expected: vec![FORGED],
        ..load.clone()
    };
    let outcome = forged.run().await?;
    assert!(
        outcome.answered == 2_000,
        "the bare endpoint takes a forged token"
    );

    // An open loop: two kinds of right answers, each told of, none before it is due.
    users.extend((0..1).map(|_| User {
        token: signer.mint(UserId::random(), "load", expires_at),
    }));
    let (tell, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let schedule = Schedule {
        begin: Instant::now() + Duration::from_millis(100),
        per_second: 1_000.0,
    };
    let open = Load {
        requests: Arc::new(Requests::purchases(bare.address, "1", &users, false)),
        count: 200,
        expected: vec![BARE_EXPECTED, FORGED],
        schedule: Some(schedule),
        follower: Some(Follower { every: 2, tell }),
        ..load
    };
    let outcome = open.run().await?;
    assert!(
        outcome.kinds == [100, 100],
        "an open loop miscounts the kinds of its answers"
    );
    let took = outcome.elapsed >= Duration::from_millis(199);
    assert!(took, "an open loop is faster than its schedule");
    let mut told = 0;
    while let Ok(answer) = seen.try_recv() {
        told += 1;
        let right = answer.index.is_multiple_of(2)
            && answer.sent >= schedule.due(answer.index)
            && answer.answered > answer.sent
            && (answer.order_id != 0) == (answer.kind == 0)
            && answer.server == bare.address.port();
        assert!(right, "a follower is told something wrong");
    }
    assert!(told == 100, "a follower is not told of every second answer");
    Ok(())
}

fn arithmetic() {
    assert!(
        spread([3.0, 1.0, 2.0, 4.0].into_iter()) == Some((1.0, 2.5, 4.0))
            && spread(std::iter::empty()).is_none(),
        "the spread is wrong"
    );
    assert!(
        thousands(1_234_567.4) == "1,234,567" && thousands(999.0) == "999",
        "thousands are written wrongly"
    );
    for (bound, reached, met) in [
        (Bound::AtLeast(0.5), 0.5, true),
        (Bound::AtLeast(0.5), 0.49, false),
        (Bound::AtMost(1.1), 1.1, true),
        (Bound::AtMost(1.1), 1.11, false),
    ] {
        let goal = Goal::new("", bound, reached);
        assert!(goal.is_met() == met, "a target is judged wrongly");
    }
    assert!(
        order_id(br#"{"order_id":"123","sale_id":"7"}"#) == 123 && order_id(b"{}") == 0,
        "an order id is read wrongly"
    );
    assert!(
        Crowd::within(20_000, 19_000, 1) == Ok(Crowd::Fits)
            && Crowd::within(1_024, 10_000, 1).is_err()
            && (Crowd::within(20_000, 30_000, 2) == Ok(Crowd::ByThread)
                || cfg!(not(target_os = "linux"))),
        "it is not known how many connections fit"
    );
    let mut section = Section::new("x", "Title", &["a", "b"]);
    section.row(["1".to_owned(), "2".to_owned()]);
    section.goal("speed", Bound::AtLeast(1.0), 0.5);
    let text = markdown(&serde_json::json!({"section": section.json()}));
    assert!(
        text.contains("| a | b |\n|---|---|\n| 1 | 2 |\n")
            && text.contains("| speed | ≥ 1 | 0.500 | **not met** |"),
        "Markdown is written wrongly"
    );
}

const FORGED: Expected = Expected {
    status: 401,
    marker: "",
};
