//! A network that can be split: node M comes from 127.0.1.M, an instance from 127.0.2.S.

use super::proxy::{Address, Fault, Proxy};
use std::net::Ipv4Addr;

#[derive(Debug, Clone, Copy)]
pub struct Ports {
    pub clients: u16,
    pub bus: u16,
}

/// Who is together when the network is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Alone,
    Others,
}

impl Side {
    const BOTH: [Self; 2] = [Self::Alone, Self::Others];

    pub fn address(self) -> Ipv4Addr {
        match self {
            Self::Alone => Ipv4Addr::new(127, 0, 2, 1),
            Self::Others => Ipv4Addr::new(127, 0, 2, 2),
        }
    }
}

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
            let [alone, others] = Side::BOTH.map(Side::address);
            ways.push([
                proxy(own, ports.bus).await,
                proxy(own, ports.clients).await,
                proxy(alone, ports.clients).await,
                proxy(others, ports.clients).await,
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
            let (of_nodes, of_sides) = ways.split_at(2);
            for way in of_nodes {
                way.set(from_nodes.clone()).await;
            }
            for (way, side) in of_sides.iter().zip(Side::BOTH) {
                if is_alone != (side == Side::Alone) {
                    way.set(Fault::BlackHole).await;
                }
            }
        }
    }

    pub async fn heal(&self) {
        for way in self.ways.iter().flatten() {
            way.set(Fault::None).await;
            way.cut();
        }
    }
}
