//! What `cargo test --benches` runs: the generator against the bare endpoint, and the parser. A second
//! of work, no figures.

use crate::{
    Error,
    load::{Expected, Load, Requests, Shape, User},
    process::{Process, Workspace},
    scenarios::BARE_EXPECTED,
};
use flash_sale::{auth::TokenSigner, domain::UserId};
use std::sync::Arc;

const SECRET: &str = "a secret of the benchmark's self-check";

pub fn run() -> Result<bool, Error> {
    let mut wrong = Vec::new();
    parser(&mut wrong);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(generator(&mut wrong))?;
    for what in &wrong {
        eprintln!("bench: {what}");
    }
    if wrong.is_empty() {
        println!("the benchmark's self-check is ok; `make bench` measures");
    }
    Ok(wrong.is_empty())
}

fn check(wrong: &mut Vec<String>, holds: bool, what: &str) {
    if !holds {
        wrong.push(what.to_owned());
    }
}

fn parser(wrong: &mut Vec<String>) {
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
        check(
            wrong,
            measured == right,
            "the parser stumbles over a split answer",
        );
    }
    let longer =
        b"HTTP/1.1 409 Conflict\r\nx: y\r\ncontent-length: 3\r\nz: a long header\r\n\r\nabc";
    let measured = shape.measure(longer);
    check(
        wrong,
        measured == Ok(Some((longer.len() - 3, 3))),
        "the parser trusts an old shape",
    );
    let without = b"HTTP/1.1 200 OK\r\n\r\n";
    check(
        wrong,
        Shape::default().measure(without).is_err(),
        "an answer without a length is parsed",
    );
}

async fn generator(wrong: &mut Vec<String>) -> Result<(), Error> {
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
        expected: BARE_EXPECTED,
    };
    let outcome = load.clone().run().await?;
    check(
        wrong,
        outcome.answered == 2_000,
        "the bare endpoint did not answer everything",
    );
    check(
        wrong,
        outcome.latency.len() == 2_000,
        "a latency is missing",
    );
    check(
        wrong,
        outcome.unexpected.is_empty(),
        "the bare endpoint answered something else",
    );

    users.truncate(1);
    users[0].token.push('x');
    let forged = Load {
        requests: Arc::new(Requests::purchases(bare.address, "1", &users, true)),
        expected: Expected {
            status: 401,
            marker: "",
        },
        ..load
    };
    let outcome = forged.run().await?;
    check(
        wrong,
        outcome.answered == 2_000,
        "the bare endpoint takes a forged token",
    );
    Ok(())
}
