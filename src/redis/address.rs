//! What `REDIS_URL` may be: one server, a Redis Cluster, or a primary that Sentinels watch.
//!
//! | form | means |
//! |---|---|
//! | `redis://host:port`, `rediss://…`, `redis+unix:///socket` | one server |
//! | `redis://a:1,b:2,c:3` or `redis+cluster://a:1` | a Redis Cluster; some of its nodes, the others are learned |
//! | `redis-sentinel://s1,s2,s3/NAME` | the primary that these Sentinels call NAME |
//!
//! `rediss` speaks TLS in each of them; `user:password@` stands before the first host and goes to every
//! server. Nothing here prints an address whole: it may hold a password.

use redis::{ErrorKind, RedisError};

const REDIS_PORT: u16 = 6_379;
const SENTINEL_PORT: u16 = 26_379;

/// Where a server listens, without a login: `host:port`, an IPv6 host in brackets.
pub type HostPort = String;

/// Where Redis is.
#[derive(Clone, PartialEq, Eq)]
pub enum Address {
    /// As the `redis` crate takes it.
    One(String),
    Cluster {
        seeds: Vec<HostPort>,
        login: Login,
    },
    Sentinel {
        sentinels: Vec<HostPort>,
        /// What the Sentinels call the primary.
        master: String,
        /// For the primary.
        login: Login,
        /// For the Sentinels.
        sentinel_login: Login,
    },
}

/// How to reach a server once its host is known.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// `redis` or `rediss`.
    scheme: &'static str,
    /// Empty, or `user:password@` as it was written.
    user: String,
    database: u8,
}

impl Login {
    /// The address of this server as the `redis` crate takes it.
    pub fn url(&self, at: &str) -> String {
        format!("{}://{}{at}/{}", self.scheme, self.user, self.database)
    }
}

fn wrong(why: &'static str) -> RedisError {
    RedisError::from((ErrorKind::InvalidClientConfig, why))
}

impl Address {
    /// Reads an address. An error says what is wrong and repeats nothing of it.
    pub fn parse(text: &str) -> Result<Self, RedisError> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Ok(Self::One(text.to_owned()));
        };
        let (family, tls) = match scheme {
            "redis" | "redis+cluster" | "redis+sentinel" | "redis-sentinel" => (scheme, "redis"),
            "rediss" | "rediss+cluster" | "rediss+sentinel" | "rediss-sentinel" => {
                (scheme, "rediss")
            }
            _ => return Ok(Self::One(text.to_owned())),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        // A password may hold a slash only as %2F, so the first one ends the list of hosts, but for those of
        // a list whose members repeat the scheme.
        let repeated = format!(",{scheme}://");
        let mut members: Vec<&str> = rest.split(&*repeated).collect();
        let last = members.pop().unwrap_or_default();
        let (last, path) = last.split_once('/').unwrap_or((last, ""));
        members.push(last);
        let (mut user, mut hosts) = ("", Vec::new());
        for (number, member) in members.iter().enumerate() {
            let (login, list) = member.rsplit_once('@').unwrap_or(("", member));
            if number > 0 && !login.is_empty() && login != user {
                return Err(wrong("its servers have different logins"));
            }
            if number == 0 {
                user = login;
            }
            hosts.extend(list.trim_end_matches('/').split(','));
        }
        let user = match user {
            "" => String::new(),
            user => format!("{user}@"),
        };
        let login = |database| Login {
            scheme: tls,
            user: user.clone(),
            database,
        };
        if family.ends_with("sentinel") {
            let (master, database) = path.split_once('/').unwrap_or((path, "0"));
            if master.is_empty() {
                return Err(wrong(
                    "a Sentinel address ends with the name of the primary: redis-sentinel://host,host/NAME",
                ));
            }
            let database = database.parse().map_err(|_| {
                wrong("what stands behind the name of the primary is not a database number")
            })?;
            return Ok(Self::Sentinel {
                sentinels: host_ports(&hosts, SENTINEL_PORT)?,
                master: master.to_owned(),
                login: login(database),
                sentinel_login: sentinel_login(tls, query)?,
            });
        }
        if !family.ends_with("cluster") && hosts.len() == 1 {
            return Ok(Self::One(text.to_owned()));
        }
        if !matches!(path, "" | "0") {
            return Err(wrong("a Redis Cluster has only database 0"));
        }
        if !query.is_empty() {
            return Err(wrong("the address of a Redis Cluster takes no parameters"));
        }
        Ok(Self::Cluster {
            seeds: host_ports(&hosts, REDIS_PORT)?,
            login: login(0),
        })
    }
}

/// `?sentinel_user=…&sentinel_password=…`, both optional.
fn sentinel_login(scheme: &'static str, query: &str) -> Result<Login, RedisError> {
    let (mut user, mut password) = ("", "");
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        match parameter.split_once('=') {
            Some(("sentinel_user", value)) => user = value,
            Some(("sentinel_password", value)) => password = value,
            _ => {
                return Err(wrong(
                    "a Sentinel address takes only the parameters sentinel_user and sentinel_password",
                ));
            }
        }
    }
    Ok(Login {
        scheme,
        user: match (user, password) {
            ("", "") => String::new(),
            (user, password) => format!("{user}:{password}@"),
        },
        database: 0,
    })
}

fn host_ports(hosts: &[&str], port: u16) -> Result<Vec<HostPort>, RedisError> {
    hosts.iter().map(|host| host_port(host, port)).collect()
}

fn host_port(text: &str, default: u16) -> Result<HostPort, RedisError> {
    // An IPv6 address has colons of its own, and stands in brackets.
    let name_ends = text.rfind(']').map_or(0, |bracket| bracket + 1);
    let (host, port) = match text[name_ends..].find(':') {
        None => (text, default),
        Some(colon) => {
            let (host, port) = text.split_at(name_ends + colon);
            let port = port[1..].parse();
            (
                host,
                port.map_err(|_| wrong("a port is not a number from 0 to 65535"))?,
            )
        }
    };
    let well_formed = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | '@' | ',' | '?' | '#');
    if host.is_empty() || !host.chars().all(well_formed) {
        return Err(wrong("a host is missing in the list of servers"));
    }
    Ok(format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cluster(text: &str) -> (Vec<HostPort>, Login) {
        match Address::parse(text) {
            Ok(Address::Cluster { seeds, login }) => (seeds, login),
            Ok(_) => panic!("{text} is no cluster"),
            Err(error) => panic!("{text}: {error}"),
        }
    }

    #[test]
    fn one_server_is_handed_on_as_it_is_written() {
        for text in [
            "redis://127.0.0.1:6379/3",
            "redis://:a,comma@host",
            "rediss://user:pass@host:1/0?protocol=resp3",
            "redis+unix:///run/redis.sock?db=1",
            "unix:///run/redis.sock",
        ] {
            assert!(
                Address::parse(text).is_ok_and(|address| address == Address::One(text.to_owned())),
                "{text}"
            );
        }
    }

    #[test]
    fn every_way_to_write_a_cluster_is_the_same() {
        for text in [
            "redis+cluster://me:secret@a:1,b,[::1]:3",
            "redis://me:secret@a:1,b,[::1]:3",
            "redis://me:secret@a:1,redis://me:secret@b,redis://me:secret@[::1]:3/0",
            "redis://me:secret@a:1,redis://b,redis://[::1]:3/",
        ] {
            let (seeds, login) = cluster(text);
            assert_eq!(seeds, ["a:1", "b:6379", "[::1]:3"], "{text}");
            assert_eq!(login.url("c:9"), "redis://me:secret@c:9/0");
        }
        let (seeds, login) = cluster("rediss+cluster://a");
        assert_eq!(
            (seeds, login.url("a:1")),
            (vec!["a:6379".to_owned()], "rediss://a:1/0".to_owned())
        );
    }

    #[test]
    fn a_sentinel_address_names_the_primary() {
        for text in ["redis-sentinel", "redis+sentinel"] {
            let text = format!(
                "{text}://me:secret@s1,s2:2/shop/4?sentinel_user=watch&sentinel_password=man"
            );
            let Ok(Address::Sentinel {
                sentinels,
                master,
                login,
                sentinel_login,
            }) = Address::parse(&text)
            else {
                panic!("{text} is no sentinel address");
            };
            assert_eq!(sentinels, ["s1:26379", "s2:2"]);
            assert_eq!(master, "shop");
            assert_eq!(login.url("p:1"), "redis://me:secret@p:1/4");
            assert_eq!(
                sentinel_login.url("s1:26379"),
                "redis://watch:man@s1:26379/0"
            );
        }
    }

    #[test]
    fn what_is_wrong_is_said_without_the_password() {
        for text in [
            "redis-sentinel://u:secret@s1,s2",
            "redis-sentinel://u:secret@s1/shop/many",
            "redis-sentinel://u:secret@s1/shop?speed=2",
            "redis+cluster://u:secret@a,,b",
            "redis+cluster://u:secret@",
            "redis+cluster://u:secret@a:many",
            "redis+cluster://u:secret@a/3",
            "redis://u:secret@a,b?protocol=resp3",
            "redis://u:secret@a,redis://u:other@b",
        ] {
            let Err(error) = Address::parse(text) else {
                panic!("{text} is read");
            };
            assert!(!error.to_string().contains("secret"), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_an_address_or_an_error(text in ".{0,60}", scheme in "rediss?([+-](cluster|sentinel))?", rest in "[ -~]{0,60}") {
            let _ = Address::parse(&text);
            let _ = Address::parse(&format!("{scheme}://{rest}"));
        }
    }
}
