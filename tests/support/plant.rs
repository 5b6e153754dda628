//! Bugs planted from outside: a function library with one expression changed, triggers, or a proxy
//! that changes what clients ask of Redis.

use super::serve_each;
use flash_sale::redis::library::LIBRARY;
use redis::{aio::ConnectionLike, parse_redis_value_async};
use std::path::PathBuf;
use tokio::io::{AsyncWriteExt, copy};
use tokio::net::{TcpStream, UnixStream};

/// An expression of the library, and what the bug makes of it.
pub type Mutation = (&'static str, &'static str);

pub const SELL_BEYOND_STOCK: Mutation = (
    "remaining, room = remaining - 1, room - 1",
    "remaining, room = math.max(remaining - 1, 1), room - 1",
);
pub const SELL_TWICE_TO_A_USER: Mutation = ("elseif held >= limit then", "elseif false then");
pub const SOLD_OUT_TOO_EARLY: Mutation = (
    "elseif remaining <= 0 then",
    "elseif remaining * 2 <= tonumber(redis.call('HGET', keys[1], 'stock')) then",
);
pub const FORGET_IDEMPOTENCY_KEYS: Mutation = ("if key ~= NO_KEY and", "if false and");
pub const IGNORE_THE_WINDOW: Mutation =
    ("if created ~= '0' then return nil end", "if created then return nil end");
pub const REPEAT_IDS: Mutation =
    ("local top = redis.call('INCRBY', keys[2], args[2])", "local top = tonumber(args[2])");
pub const SELL_FROM_ANY_PROCESS: Mutation = ("if state[2] ~= token() then", "if not state[2] then");
pub const DRAW_BY_ARRIVAL: Mutation = ("early = joined\n", "early = 0\n");
pub const LET_EVERYBODY_IN: Mutation = (
    "local room_left = math.ceil(remaining * tonumber(args[8]) / 100) - open",
    "local room_left = joined",
);

pub async fn plant(connection: &mut impl ConnectionLike, (from, to): Mutation) {
    let source = LIBRARY.source();
    assert!(source.contains(from), "not in the library: {from}");
    let mutated = source.replace(from, to);
    let mut load = redis::cmd("FUNCTION");
    let loaded = load.arg(&["LOAD", "REPLACE", &mutated]).exec_async(connection).await;
    loaded.expect("a function library");
}

macro_rules! trigger {
    ($when:literal, $condition:literal, $body:literal) => {
        concat!(
            "CREATE FUNCTION planted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN ",
            $body,
            " END $$; CREATE TRIGGER planted ",
            $when,
            " FOR EACH ROW WHEN (",
            $condition,
            ") EXECUTE FUNCTION planted()"
        )
    };
}

// These two: for one order in seven.
pub const SWALLOW_ROWS: &str =
    trigger!("BEFORE INSERT ON orders", "NEW.id % 7 = 0", "RETURN NULL;");
pub const INVENT_AN_ORDER: &str = trigger!(
    "AFTER INSERT ON orders",
    "NEW.id % 7 = 0 AND NEW.id < 1::bigint << 61",
    "INSERT INTO orders (id, sale_id, user_id, slot, status, price_cents, created_at, pay_by)
     VALUES (NEW.id | (1::bigint << 62), NEW.sale_id, gen_random_uuid(), NEW.slot, NEW.status,
             NEW.price_cents, NEW.created_at, NEW.pay_by);
     RETURN NULL;"
);
pub const WRITE_NOTHING: &str = trigger!(
    "BEFORE INSERT ON orders",
    "true",
    "RAISE EXCEPTION 'planted' USING ERRCODE = '53000';"
);
pub const UNPAY: &str = trigger!(
    "AFTER UPDATE ON orders",
    "OLD.status = 'pending_payment' AND NEW.status = 'paid'",
    "UPDATE orders SET status = 'pending_payment', paid_at = NULL WHERE id = NEW.id; RETURN NULL;"
);

/// A refund is done as soon as it is to be done: the provider is not asked.
pub const FORGET_REFUNDS: &str = trigger!(
    "BEFORE UPDATE ON payments",
    "NEW.state = 'refunding'",
    "NEW.state := 'refunded'; RETURN NEW;"
);
/// One that was paid before.
pub const EXPIRE_AT_THE_WEBHOOK: &str = trigger!(
    "AFTER INSERT ON webhook_events",
    "true",
    "UPDATE orders SET status = 'expired', slot = NULL, paid_at = NULL, closed_at = now()
     WHERE status = 'paid'
         AND id = (SELECT order_id FROM payments WHERE charge_id = NEW.body->'charge'->>'id');
     RETURN NULL;"
);
pub const GIVE_TO_THE_DECLINED: &str = trigger!(
    "AFTER UPDATE ON payments",
    "NEW.state = 'failed'",
    "UPDATE orders SET status = 'paid', paid_at = now()
     WHERE id = NEW.order_id AND status = 'pending_payment';
     RETURN NULL;"
);

/// Units that came back stay taken. (What Redis alone has lost, the scrubber gets back.)
pub const FORGET_A_RELEASE: &str = trigger!(
    "BEFORE UPDATE ON sales",
    "NEW.taken < OLD.taken",
    "NEW.taken := OLD.taken; RETURN NEW;"
);

/// Postgres takes no live order of users in `refused`; then the writer rejects it.
pub const REFUSE_SOME_USERS: &str = "
    CREATE TABLE refused (user_id uuid PRIMARY KEY);
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.status = 'pending_payment'
            AND EXISTS (SELECT FROM refused AS r WHERE r.user_id = NEW.user_id) THEN
            RAISE EXCEPTION 'not to them' USING ERRCODE = 'check_violation';
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER refuse BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION refuse()";

type Command = Vec<Vec<u8>>;
pub type Bug = fn(Command) -> Command;

/// The lock is taken from any owner: `SET … NX GET` does not look at the owner.
pub fn take_anybodys(command: Command) -> Command {
    let is = |word: &str| command.iter().any(|one| one.eq_ignore_ascii_case(word.as_bytes()));
    if !(is("SET") && is("NX") && is("GET") && is("PX")) {
        return command;
    }
    let script = "redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return false";
    let lease = command.last().cloned().unwrap_or_default();
    let words = [b"EVAL".to_vec(), script.into(), b"1".to_vec()];
    words.into_iter().chain([command[1].clone(), command[2].clone(), lease]).collect()
}

pub fn getset_only_reads(command: Command) -> Command {
    let is_it = command[0].eq_ignore_ascii_case(b"GETSET");
    if is_it { vec![b"GET".to_vec(), command[1].clone()] } else { command }
}

/// Nothing gets an expiry.
pub fn without_expiry(command: Command) -> Command {
    let is_expire = command[0].eq_ignore_ascii_case(b"PEXPIRE");
    let set = command.into_iter().take_while(|word| !word.eq_ignore_ascii_case(b"PX"));
    if is_expire { vec![b"PING".to_vec()] } else { set.collect() }
}

/// The release does not compare: it deletes whatever lock there is.
pub fn release_anybodys(command: Command) -> Command {
    let is_script = command[0].to_ascii_uppercase().starts_with(b"EVAL");
    if !(is_script && command.get(4).is_some_and(|key| key.ends_with(b":freed"))) {
        return command;
    }
    let words = [b"EVAL".to_vec(), b"return redis.call('DEL', KEYS[1])".to_vec(), b"1".to_vec()];
    words.into_iter().chain([command[3].clone()]).collect()
}

/// The URL of a Redis with this bug: a proxy in front of it changes what clients ask.
pub async fn buggy_redis(socket: PathBuf, bug: Bug) -> String {
    format!("redis://{}", serve_each(move |client| pass(client, socket.clone(), bug)).await)
}

async fn pass(client: TcpStream, socket: PathBuf, bug: Bug) {
    let Ok(server) = UnixStream::connect(socket).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let mut decoder = combine::stream::Decoder::new();
    let requests = async {
        while let Ok(request) = parse_redis_value_async(&mut decoder, &mut from_client).await {
            let command = bug(redis::from_redis_value(request).expect("a command"));
            let sent = redis::Cmd::new().arg(command).get_packed_command();
            // Of a server that has gone its replies tell.
            to_server.write_all(&sent).await.ok();
        }
    };
    tokio::select! {
        () = requests => {}
        _ = copy(&mut from_server, &mut to_client) => {}
    }
}
