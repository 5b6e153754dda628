//! Addresses of this machine, as a Host header and an `http://` URL spell them.

use parking_lot::Mutex;
use std::net::SocketAddr;

const HTTP: u16 = 80;
/// Below are services of the system: no learner's server is there, except at 80.
const LEAST_PORT: u16 = 1_024;

/// What `127.0.0.1:9000`, `localhost` or `[::1]:9000` stand for; `None` for every other host.
pub fn authority(text: &str) -> Option<SocketAddr> {
    let after_name = text.strip_prefix("localhost");
    let literal = match after_name.filter(|rest| rest.is_empty() || rest.starts_with(':')) {
        Some(port) => format!("127.0.0.1{port}"),
        None => text.to_owned(),
    };
    let with_port = || format!("{literal}:{HTTP}").parse().ok();
    let address: SocketAddr = literal.parse().ok().or_else(with_port)?;
    address.ip().is_loopback().then_some(address)
}

static OWN_PORTS: Mutex<Vec<u16>> = Mutex::new(Vec::new());

/// Where a part of this process, or a server that it has started, listens: until this is dropped,
/// nothing is judged there.
pub struct OwnPort(u16);

impl OwnPort {
    pub fn new(port: u16) -> Self {
        OWN_PORTS.lock().push(port);
        Self(port)
    }

    fn is(port: u16) -> bool {
        OWN_PORTS.lock().contains(&port)
    }
}

impl Drop for OwnPort {
    fn drop(&mut self) {
        let mut all = OWN_PORTS.lock();
        let index = all.iter().position(|port| *port == self.0);
        index.map(|index| all.swap_remove(index));
    }
}

/// The port of this URL, or why it may not be judged. `closed`: ports of this program's own, and of
/// its stores.
pub fn check_url(url: &str, closed: &[u16]) -> Result<u16, String> {
    let rest = url.strip_prefix("http://").unwrap_or_default();
    let (host, _path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b":/.[]_-".contains(&byte);
    let Some(address) = authority(host).filter(|_| url.bytes().all(is_plain)) else {
        return Err("must be http:// and a loopback address: http://127.0.0.1:9000".to_owned());
    };
    let port = address.port();
    if closed.contains(&port) || OwnPort::is(port) {
        return Err(format!("port {port} is this program's own, or that of its stores"));
    }
    if port < LEAST_PORT && port != HTTP {
        return Err(format!(
            "port {port} is one of the system's: {HTTP}, or {LEAST_PORT} and above"
        ));
    }
    Ok(port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_judged() {
        let good = "127.0.0.1:9000 127.255.0.9:1024 localhost:9000/shop/v1 localhost [::1]:80 \
                    [::1]/ 127.0.0.1";
        for good in good.split_whitespace() {
            assert!(check_url(&format!("http://{good}"), &[]).is_ok(), "{good}");
        }
        let bad = "192.168.0.1:9000 example.com localhost.example.com localhost1:9000 0.0.0.0:9000 \
                   a@127.0.0.1:9000 127.0.0.1:9000@example.com 127.0.0.1:9000?a 127.0.0.1:9000#a \
                   127.0.0.1:9000/%0d [::ffff:127.0.0.1]:9000 [::1%1]:9000 2130706433:9000 \
                   0x7f.1:9000 127.1:9000 127.0.0.1:+80 127.0.0.1: 127.0.0.1:99999 [::2]:9000 / \
                   127.0.0.1:22 127.0.0.1:0 localhost:1023 [::1 ::1 ::1:9000 127.0.0.1:8080";
        for bad in bad.split_whitespace() {
            assert!(check_url(&format!("http://{bad}"), &[8080]).is_err(), "{bad}");
        }
        for bad in ["", "127.0.0.1:9000", "https://127.0.0.1:9000", "HTTP://127.0.0.1:9000"] {
            assert!(check_url(bad, &[]).is_err(), "{bad}");
        }
        assert!(check_url("http://localhost:9000/\r\nx", &[]).is_err());
    }

    #[test]
    fn a_port_of_a_server_of_this_program_is_closed_as_long_as_the_server_is_there() {
        let is_open = || check_url("http://localhost:9001", &[]).is_ok();
        let own = [9_001, 9_001].map(OwnPort::new);
        assert!(!is_open());
        let [first, second] = own;
        drop(first);
        assert!(!is_open());
        drop(second);
        assert!(is_open());
    }
}
