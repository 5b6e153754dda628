//! Bugs, planted from outside of the program: what Redis decides is a function library, and a mutated one
//! under the same name takes its place. It goes for everybody on that server, so the server is the test's own.

use flash_sale::redis::library::LIBRARY;
use redis::aio::ConnectionLike;

/// An expression of the library, and what the bug makes of it.
pub type Mutation = (&'static str, &'static str);

pub const SELL_BEYOND_STOCK: Mutation = (
    "remaining, room = remaining - 1, room - 1",
    "remaining, room = math.max(remaining - 1, 1), room - 1",
);
pub const SELL_TWICE_TO_A_USER: Mutation = ("elseif held >= limit then", "elseif false then");
pub const IGNORE_THE_WINDOW: Mutation = (
    "if created ~= '0' then return nil end",
    "if created then return nil end",
);
/// Every process says that it is the same one.
pub const SELL_FROM_ANY_PROCESS: Mutation = ("if state[2] ~= token() then", "if not state[2] then");

/// Puts the mutated library in the place of the program's own.
pub async fn plant(connection: &mut impl ConnectionLike, (from, to): Mutation) {
    let source = LIBRARY.source();
    assert_eq!(source.matches(from).count(), 1, "{from}");
    redis::cmd("FUNCTION")
        .arg("LOAD")
        .arg("REPLACE")
        .arg(source.replace(from, to))
        .exec_async(connection)
        .await
        .expect("a function library");
}
