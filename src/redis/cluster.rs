//! What a node of a Redis Cluster says of the others: who owns which slots.

use super::{address::HostPort, node::Node, slots::SLOTS};
use redis::{ErrorKind, RedisError, Value};
use std::ops::RangeInclusive;

/// The slots that somebody owns, and who.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    pub owned: Vec<(RangeInclusive<u16>, HostPort)>,
    /// Primaries that own no slots (yet): they can be approved before a slot is moved to them.
    pub idle: Vec<HostPort>,
    /// Whether the one that was asked takes part in a working majority. One that does not may believe what
    /// is no longer true.
    pub is_ok: bool,
}

/// Asks this node.
pub async fn view(node: &Node) -> Result<View, RedisError> {
    let mut connection = node.pooled().await?;
    let asked = redis::pipe()
        .ignore_errors()
        .cmd("CLUSTER")
        .arg("SLOTS")
        .cmd("CLUSTER")
        .arg("INFO")
        .cmd("CLUSTER")
        .arg("NODES")
        .query_async::<Vec<Value>>(&mut *connection)
        .await?;
    let [slots, info, nodes] = <[Value; 3]>::try_from(asked).map_err(|_| unreadable())?;
    let slots = match slots.extract_error() {
        Ok(slots) => slots,
        // "This instance has cluster support disabled".
        Err(error) if error.code() == Some("ERR") => {
            return Err(RedisError::from((
                ErrorKind::InvalidClientConfig,
                "this server is not in cluster mode: write redis://host:port",
                node.name().to_owned(),
            )));
        }
        Err(error) => return Err(error),
    };
    let (host, _) = node.name().rsplit_once(':').unwrap_or((node.name(), ""));
    let text = |value: Value| redis::from_redis_value::<String>(value).unwrap_or_default();
    Ok(View {
        owned: owned(&slots, host).ok_or_else(unreadable)?,
        idle: idle(&text(nodes)),
        is_ok: text(info)
            .lines()
            .any(|line| line.trim() == "cluster_state:ok"),
    })
}

fn unreadable() -> RedisError {
    RedisError::from((
        ErrorKind::UnexpectedReturnType,
        "CLUSTER SLOTS in an unknown form",
    ))
}

/// Reads CLUSTER SLOTS: `[first, last, [host, port, …], replicas…]` for each range. An empty or unknown host
/// is that of the node that was asked. Total over any reply.
fn owned(reply: &Value, asked: &str) -> Option<Vec<(RangeInclusive<u16>, HostPort)>> {
    let Value::Array(ranges) = reply else {
        return None;
    };
    let range = |range: &Value| {
        let Value::Array(members) = range else {
            return None;
        };
        let [
            Value::Int(first),
            Value::Int(last),
            Value::Array(primary),
            ..,
        ] = members.as_slice()
        else {
            return None;
        };
        let [host, Value::Int(port), ..] = primary.as_slice() else {
            return None;
        };
        let host: Option<String> = redis::from_redis_value(host.clone()).ok()?;
        let host = host.filter(|host| !host.is_empty() && host != "?");
        let slot = |number: i64| u16::try_from(number).ok().filter(|slot| *slot < SLOTS);
        let port = u16::try_from(*port).ok()?;
        Some((
            slot(*first)?..=slot(*last)?,
            join(host.as_deref().unwrap_or(asked), port),
        ))
    };
    ranges.iter().map(range).collect()
}

/// An address from a host that may be an IPv6 one.
fn join(host: &str, port: u16) -> HostPort {
    if host.contains(':') && !host.starts_with('[') {
        return format!("[{host}]:{port}");
    }
    format!("{host}:{port}")
}

/// The address in a MOVED or ASK that `node` answered with; an empty host is its own. `None`: unreadable.
pub fn target(address: &str, node: &Node) -> Option<HostPort> {
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let own = node.name().rsplit_once(':').map_or("", |(host, _)| host);
    Some(join(if host.is_empty() { own } else { host }, port))
}

/// Reads CLUSTER NODES for primaries without slots:
/// `id ip:port@bus[,name] flags primary ping pong epoch link slots…`. What is in another form is left out.
fn idle(nodes: &str) -> Vec<HostPort> {
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (address, flags) = (words.nth(1)?, words.next()?);
        let mut rest = words.skip(5);
        let flags: Vec<&str> = flags.split(',').collect();
        let usable = flags.contains(&"master")
            && !flags
                .iter()
                .any(|flag| matches!(*flag, "fail" | "fail?" | "handshake" | "noaddr"));
        if !usable || rest.next().is_some() {
            return None;
        }
        let (host, port) = address.split_once('@')?.0.rsplit_once(':')?;
        let port = port.parse().ok()?;
        (!host.is_empty()).then(|| join(host, port))
    };
    nodes.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::parrot::any_value;
    use proptest::prelude::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn slots_and_their_owners_are_read() {
        let range = |first, last, host: Value, port| {
            Value::Array(vec![
                Value::Int(first),
                Value::Int(last),
                Value::Array(vec![host, Value::Int(port), bulk("id")]),
                Value::Array(vec![bulk("replica"), Value::Int(1), bulk("id")]),
            ])
        };
        let reply = Value::Array(vec![
            range(0, 5_460, bulk("10.0.0.1"), 7_000),
            range(5_461, 5_461, Value::Nil, 7_001),
            range(5_462, 16_383, bulk("::1"), 7_002),
        ]);
        let expected = [
            (0..=5_460, "10.0.0.1:7000"),
            (5_461..=5_461, "asked:7001"),
            (5_462..=16_383, "[::1]:7002"),
        ];
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(range, at)| (range, at.to_owned()))
            .collect();
        assert_eq!(owned(&reply, "asked"), Some(expected));
        assert_eq!(
            owned(&Value::Array(vec![range(0, 16_384, bulk("a"), 1)]), "asked"),
            None
        );
    }

    #[test]
    fn primaries_without_slots_are_found() {
        let nodes = "\
a 10.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-5460
b 10.0.0.2:7001@17001,name master - 0 0 2 connected
c 10.0.0.3:7002@17002 slave a 0 0 1 connected
d 10.0.0.4:7003@17003 master,fail - 0 0 3 disconnected
e :0@0 master,noaddr - 0 0 3 disconnected
";
        assert_eq!(idle(nodes), ["10.0.0.2:7001"]);
    }

    proptest! {
        #[test]
        fn any_reply_is_read_or_refused(reply in any_value(), nodes in "([ -~]{0,40}\n){0,4}") {
            owned(&reply, "asked");
            idle(&nodes);
        }
    }
}
