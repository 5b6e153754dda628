//! The address of a client.

use crate::proxies::ProxyTrust;
use axum::{
    extract::ConnectInfo,
    http::{Extensions, HeaderMap},
};
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// The client of a request, for limits. An IPv6 /64 counts as one customer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Address {
    V4([u8; 4]),
    V6Net([u8; 8]),
}

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self::V4(ip.octets()),
            IpAddr::V6(ip) => {
                let [a, b, c, d, e, f, g, h, ..] = ip.octets();
                Self::V6Net([a, b, c, d, e, f, g, h])
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(octets) => Ipv4Addr::from(*octets).fmt(f),
            Self::V6Net(head) => {
                let mut octets = [0; 16];
                octets[..8].copy_from_slice(head);
                write!(f, "{}/64", Ipv6Addr::from(octets))
            }
        }
    }
}

impl Address {
    /// The peer's address; behind a known proxy, that of the client in X-Forwarded-For.
    pub fn of(extensions: &Extensions, headers: &HeaderMap, trust_proxy: ProxyTrust) -> Self {
        let peer = extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| peer.ip());
        let client = match trust_proxy {
            ProxyTrust::Nobody => None,
            _ => trust_proxy.client(peer, forwarded(headers)),
        };
        // Without connect info (a router in a test) all clients are one.
        client.or(peer).map_or(Self::V4([0; 4]), Self::from)
    }
}

/// The elements of X-Forwarded-For from the last one on, up to a header that is no text.
fn forwarded(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all("x-forwarded-for")
        .iter()
        .rev()
        .map_while(|value| value.to_str().ok())
        .flat_map(|value| value.rsplit(','))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;
    use proptest::prelude::*;

    fn address(text: &str) -> Address {
        Address::from(text.parse::<IpAddr>().expect("an address"))
    }

    #[test]
    fn an_ipv6_network_is_one_address() {
        assert_eq!(address("2001:db8:0:1::1"), address("2001:db8:0:1:ffff::2"));
        assert_ne!(address("2001:db8:0:1::1"), address("2001:db8:0:2::1"));
        assert_eq!(address("::ffff:10.0.0.1"), address("10.0.0.1"));
    }

    #[test]
    fn only_a_trusted_proxy_names_the_client_and_only_its_own_entry_counts() {
        let mut extensions = Extensions::new();
        extensions.insert(ConnectInfo(SocketAddr::from(([127, 0, 0, 1], 5000))));
        let of = |forwarded: &[&'static str], is_trusted: bool| {
            let trust_proxy = if is_trusted { ProxyTrust::Everybody } else { ProxyTrust::Nobody };
            let mut headers = HeaderMap::new();
            for value in forwarded {
                headers.append("x-forwarded-for", HeaderValue::from_static(value));
            }
            Address::of(&extensions, &headers, trust_proxy)
        };
        let peer = address("127.0.0.1");
        assert_eq!(of(&["1.2.3.4"], false), peer);
        assert_eq!(of(&[], true), peer);
        assert_eq!(of(&["unknown"], true), peer);
        assert_eq!(of(&["6.6.6.6, 1.2.3.4"], true), address("1.2.3.4"));
        assert_eq!(of(&["6.6.6.6", "5.5.5.5, 1.2.3.4:5678"], true), address("1.2.3.4"));
        assert_eq!(of(&["[2001:db8::1]:443"], true), address("2001:db8::9"));
    }

    fn last_forwarded(value: &[u8]) -> Option<Option<IpAddr>> {
        let value = HeaderValue::from_bytes(value).ok()?;
        let headers =
            HeaderMap::from_iter([(axum::http::HeaderName::from_static("x-forwarded-for"), value)]);
        Some(ProxyTrust::Everybody.client(None, forwarded(&headers)))
    }

    proptest! {
        #[test]
        fn any_forwarded_for_is_an_address_or_ignored(value in prop::collection::vec(any::<u8>(),
            0..60), text in "[0-9a-f:., \\[\\]%]{0,50}") {
            last_forwarded(&value);
            last_forwarded(text.as_bytes());
        }

        #[test]
        fn the_last_address_is_read_back_as_written(claimed in "[ -~]{0,30}", ip: IpAddr,
            port: u16) {
            for written in [ip.to_string(), SocketAddr::new(ip, port).to_string()] {
                prop_assert_eq!(last_forwarded(format!("{claimed}, {written}").as_bytes()),
                    Some(Some(ip)));
            }
        }
    }
}
