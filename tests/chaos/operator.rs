//! The operator: pauses and resumes one sale again and again, and changes the stock of another. A fault
//! may have one of its own.

use crate::{
    cluster::ADMIN_TOKEN,
    http::{Connection, request},
    shoppers::{PATIENCE, understand},
    support::{
        history::{Answer, Kind, NO_KEY, NO_ORDER, Operation},
        random::Random,
    },
    world::World,
};
use std::{sync::Arc, time::Duration};

pub struct Operator {
    world: Arc<World>,
    random: Random,
    connections: Vec<Connection>,
    pub operations: Vec<Operation>,
}

impl Operator {
    pub fn new(world: &Arc<World>) -> Self {
        Self {
            world: world.clone(),
            random: Random::of(world.seed, "operator", 0),
            connections: (world.addresses.iter())
                .map(|one| Connection::new(*one))
                .collect(),
            operations: Vec::new(),
        }
    }

    /// Works until the world stops, and leaves no sale paused.
    pub async fn run(mut self) -> Vec<Operation> {
        let sales: Vec<_> = (self.world.sales.iter().zip(0u8..))
            .map(|(sale, index)| (index, sale.habits))
            .collect();
        while !self.world.is_stopping() {
            for (sale, habits) in &sales {
                if habits.is_paused_often {
                    self.ask(*sale, Kind::Pause).await;
                    self.wait(20..150).await;
                    self.until_done(*sale, Kind::Resume).await;
                }
                if habits.stock_changes && self.random.chance(0.3) {
                    let add = self.random.below(12) as i16 - 4;
                    if add != 0 {
                        self.ask(*sale, Kind::AddStock(add)).await;
                    }
                }
            }
            self.wait(20..200).await;
        }
        self.operations
    }

    async fn wait(&mut self, millis: std::ops::Range<u64>) {
        let pause = self.random.millis(millis);
        tokio::time::sleep(pause).await;
    }

    /// A sale that stays paused would end the run of its buyers, so this one insists (for a while
    /// also after the end of the run).
    async fn until_done(&mut self, sale: u8, kind: Kind) {
        for _ in 0..600 {
            if self.ask(sale, kind).await == Answer::Done {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn ask(&mut self, sale: u8, kind: Kind) -> Answer {
        let instance = self.random.index(self.connections.len());
        self.ask_at(sale, kind, instance).await
    }

    /// One change, asked for at this instance.
    pub async fn ask_at(&mut self, sale: u8, kind: Kind, instance: usize) -> Answer {
        let id = self.world.sales[usize::from(sale)].id;
        let (action, body) = match kind {
            Kind::Pause => ("pause", String::new()),
            Kind::AddStock(add) => ("stock", format!("{{\"add\":{add}}}")),
            _ => ("resume", String::new()),
        };
        let path = format!("/api/v1/admin/sales/{id}/{action}");
        let asked = request("POST", &path, ADMIN_TOKEN, "", &body);
        let invoked = self.world.now();
        let ended = self.connections[instance].call(&asked, PATIENCE).await;
        let answer = understand(kind, &ended);
        self.operations.push(Operation {
            invoked,
            completed: self.world.now(),
            order: NO_ORDER,
            user: 0,
            key: NO_KEY,
            client: u16::MAX,
            instance: u8::try_from(instance).unwrap_or(u8::MAX),
            sale,
            kind,
            answer,
        });
        answer
    }
}
