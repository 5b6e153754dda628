//! A network that can be split: node M comes from 127.0.1.M, an instance from 127.0.2.S.

use super::proxy::{Address, Fault, Proxy};
use std::net::Ipv4Addr;

#[derive(Debug, Clone, Copy)]
pub struct Ports {
    pub clients: u16,
    pub bus: u16,
}

/// Where instances come from: the one that is split off, and the others.
pub const ALONE: Ipv4Addr = Ipv4Addr::new(127, 0, 2, 1);
pub const OTHERS: Ipv4Addr = Ipv4Addr::new(127, 0, 2, 2);

/// To each node: two ways of other nodes (bus, replication), one of an instance of each side.
pub struct Network {
    ways: Vec<[Proxy; 4]>,
}

impl Network {
    pub async fn start(nodes: &[Ports]) -> Self {
        let proxy = async |address: Ipv4Addr, port: u16| {
            let target = Address::Tcp((Ipv4Addr::LOCALHOST, port).into());
            Proxy::start_at((address, port).into(), target).await
        };
        let mut ways = Vec::new();
        for (number, ports) in nodes.iter().enumerate() {
            let own = Self::address_of(number);
            ways.push([
                proxy(own, ports.bus).await,
                proxy(own, ports.clients).await,
                proxy(ALONE, ports.clients).await,
                proxy(OTHERS, ports.clients).await,
            ]);
        }
        Self { ways }
    }

    /// Where other nodes find this one, and where it comes from.
    pub fn address_of(node: usize) -> Ipv4Addr {
        Ipv4Addr::new(127, 0, 1, u8::try_from(node + 1).expect("few nodes"))
    }

    /// This node and one instance have only each other; what is on its way vanishes.
    pub async fn split_off(&self, alone: usize) {
        for (number, ways) in self.ways.iter().enumerate() {
            let is_alone = number == alone;
            let from_nodes = match is_alone {
                true => Fault::BlackHole,
                false => Fault::SilentFrom(Self::address_of(alone).into()),
            };
            let [bus, clients, from_alone, from_others] = ways;
            for way in [bus, clients] {
                way.set(from_nodes.clone()).await;
            }
            let across = if is_alone { from_others } else { from_alone };
            across.set(Fault::BlackHole).await;
        }
    }

    pub async fn heal(&self) {
        for way in self.ways.iter().flatten() {
            way.set(Fault::None).await;
            way.cut();
        }
    }
}
