//! Trusted proxies.
//!
//! A proxy appends the address of its client to X-Forwarded-For. Any client can send this header
//! too, so it counts only on connections from a known proxy.

use std::{
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

/// A network such as `10.0.0.0/8` or `2001:db8::/32`, or a single address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

/// The peers that are trusted in X-Forwarded-For and X-Forwarded-Proto.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProxyTrust {
    /// No proxy is in front: the peer is the client.
    #[default]
    Nobody,
    /// Every peer is a proxy: clients cannot reach this program.
    Everybody,
    /// Peers in these networks are proxies, all others clients. Leaked once from the settings.
    Only(&'static [Network]),
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "{0:?} is neither on, off, nor an address or network (10.0.0.7, 10.0.0.0/8, 2001:db8::/32)"
)]
pub struct NotAProxy(String);

impl Network {
    fn holds(self, address: IpAddr) -> bool {
        let (ours, theirs) = match (self.address, address.to_canonical()) {
            // In the upper bits, so that one shift serves both versions.
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                (u128::from(u32::from(ours)) << 96, u128::from(u32::from(theirs)) << 96)
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => (ours.into(), theirs.into()),
            _ => return false,
        };
        // A shift by 128 bits would overflow; every address is in a /0.
        self.prefix == 0 || (ours ^ theirs) >> (128 - u32::from(self.prefix)) == 0
    }
}

impl FromStr for Network {
    type Err = NotAProxy;

    fn from_str(text: &str) -> Result<Self, NotAProxy> {
        let not_one = || NotAProxy(text.to_owned());
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| not_one())?;
        let address = address.to_canonical();
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => longest,
            Some(prefix) => {
                prefix.parse().ok().filter(|prefix| *prefix <= longest).ok_or_else(not_one)?
            }
        };
        Ok(Self { address, prefix })
    }
}

impl FromStr for ProxyTrust {
    type Err = NotAProxy;

    fn from_str(text: &str) -> Result<Self, NotAProxy> {
        match text {
            "on" => Ok(Self::Everybody),
            "off" => Ok(Self::Nobody),
            _ => {
                let networks: Result<Vec<Network>, NotAProxy> =
                    text.split(',').map(|one| one.trim().parse()).collect();
                Ok(Self::Only(networks?.leak()))
            }
        }
    }
}

impl ProxyTrust {
    pub fn is_on(self) -> bool {
        self != Self::Nobody
    }

    /// Whether this peer is a proxy whose word counts. Without a peer (a router driven by a test)
    /// everybody is one.
    pub fn trusts(self, peer: Option<IpAddr>) -> bool {
        match self {
            Self::Nobody => false,
            Self::Everybody => true,
            Self::Only(networks) => {
                peer.is_some_and(|peer| networks.iter().any(|network| network.holds(peer)))
            }
        }
    }

    /// The client of a request, by the elements of X-Forwarded-For from the last to the first. The
    /// last one was written by the peer; an earlier one counts only behind another known proxy.
    /// `None`: no trusted proxy has named a client.
    pub fn client<'a>(
        self,
        peer: Option<IpAddr>,
        forwarded: impl Iterator<Item = &'a str>,
    ) -> Option<IpAddr> {
        if !self.trusts(peer) {
            return None;
        }
        let mut client = None;
        for element in forwarded {
            let Some(address) = address(element) else {
                break;
            };
            client = Some(address);
            let is_a_proxy_again = matches!(self, Self::Only(_)) && self.trusts(Some(address));
            if !is_a_proxy_again {
                break;
            }
        }
        client
    }
}

/// Some proxies add the port.
fn address(element: &str) -> Option<IpAddr> {
    let element = element.trim();
    element.parse().ok().or_else(|| element.parse::<SocketAddr>().ok().map(|address| address.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn trust(text: &str) -> ProxyTrust {
        text.parse().expect("a setting")
    }

    fn client(setting: &str, peer: &str, forwarded: &str) -> Option<IpAddr> {
        trust(setting).client(Some(ip(peer)), forwarded.rsplit(','))
    }

    #[test]
    fn a_setting_is_on_off_or_networks() {
        assert_eq!(trust("on"), ProxyTrust::Everybody);
        assert_eq!(trust("off"), ProxyTrust::Nobody);
        for wrong in
            ["", "yes", "10.0.0.0/33", "::/129", "10.0.0.1,", "10.0.0.0/-1", "10.0.0.0/8/8"]
        {
            assert!(wrong.parse::<ProxyTrust>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_known_proxies_are_believed() {
        let proxies = "10.0.0.0/8, 192.168.1.7,fd00::/8";
        assert_eq!(client(proxies, "10.9.8.7", "1.2.3.4"), Some(ip("1.2.3.4")));
        assert_eq!(client(proxies, "::ffff:10.9.8.7", "1.2.3.4"), Some(ip("1.2.3.4")));
        assert_eq!(client(proxies, "fd00::1", "1.2.3.4"), Some(ip("1.2.3.4")));
        assert_eq!(client(proxies, "11.0.0.1", "1.2.3.4"), None);
        assert_eq!(client(proxies, "192.168.1.8", "1.2.3.4"), None);
        assert_eq!(client("off", "10.0.0.1", "1.2.3.4"), None);
        assert_eq!(client("0.0.0.0/0", "11.0.0.1", "1.2.3.4, ::2"), Some(ip("::2")));
        assert_eq!(trust("10.0.0.0/8").client(None, "1.2.3.4".rsplit(',')), None);
    }

    #[test]
    fn a_chain_of_known_proxies_is_followed_to_the_first_unknown_address() {
        let known = "10.0.0.0/8";
        assert_eq!(client(known, "10.0.0.1", "6.6.6.6, 1.2.3.4, 10.0.0.2"), Some(ip("1.2.3.4")));
        // What a client claims stands before its own address, and is not reached.
        assert_eq!(client(known, "10.0.0.1", "10.6.6.6, 1.2.3.4"), Some(ip("1.2.3.4")));
        assert_eq!(client(known, "10.0.0.1", "unknown, 10.0.0.2"), Some(ip("10.0.0.2")));
        assert_eq!(client(known, "10.0.0.1", "unknown"), None);
        // Where everybody is believed only the peer's own word is.
        assert_eq!(client("on", "10.0.0.1", "1.2.3.4, 10.0.0.2:80"), Some(ip("10.0.0.2")));
    }

    proptest! {
        #[test]
        fn any_setting_is_read_or_refused(text in "on|off|[0-9a-f:./, ]{0,40}|.{0,20}",
            peer: IpAddr, forwarded in "[0-9a-f:., ]{0,40}") {
            if let Ok(trust) = text.parse::<ProxyTrust>() {
                let _ = trust.client(Some(peer), forwarded.rsplit(','));
            }
        }

        #[test]
        fn an_address_is_in_every_network_around_it(address: IpAddr, prefix in 0u8..=128) {
            let longest = if address.to_canonical().is_ipv4() { 32 } else { 128 };
            let network: Network = format!("{address}/{}",
                prefix.min(longest)).parse().expect("a network");
            prop_assert!(network.holds(address));
        }
    }
}
