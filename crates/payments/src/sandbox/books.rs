//! What the provider knows: charges, refunds, pages, and the events that were not delivered yet.
//! It is what the journal's entries make of it, one after the other.

use crate::provider::{
    Charge, ChargeRequest, ChargeStatus, CheckoutRequest, Event, Movement, Refund, Transaction,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// A line of the journal. Its names are a format: only add.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
pub enum Entry {
    Checkout {
        id: String,
        request: CheckoutRequest,
    },
    Charge {
        charge: Charge,
        event: String,
    },
    Refund {
        key: String,
        refund: Refund,
        event: String,
    },
    /// The event of this number needs no more delivery.
    Delivered {
        number: u64,
    },
}

#[derive(Default)]
pub struct Books {
    charges: HashMap<String, Charge>,
    /// The id of the one charge of a reference.
    charged: HashMap<String, String>,
    checkouts: HashMap<String, CheckoutRequest>,
    /// The id of the one page of a reference.
    pages: HashMap<String, String>,
    refunds: HashMap<String, Refund>,
    movements: Vec<Movement>,
    /// How many events there have been; the last one's number.
    events: u64,
    undelivered: BTreeMap<u64, Event>,
}

impl Books {
    pub fn apply(&mut self, entry: Entry) {
        match entry {
            Entry::Checkout { id, request } => {
                self.pages.insert(request.charge.reference.clone(), id.clone());
                self.checkouts.insert(id, request);
            }
            Entry::Charge { charge, event } => {
                let kind = match charge.status {
                    ChargeStatus::Succeeded => "charge.succeeded",
                    ChargeStatus::Declined => "charge.declined",
                };
                if charge.status == ChargeStatus::Succeeded {
                    self.movements.push(Movement::Charge(charge.clone()));
                }
                self.tell(event, kind, charge.clone());
                self.charged.insert(charge.reference.clone(), charge.id.clone());
                self.charges.insert(charge.id.clone(), charge);
            }
            Entry::Refund { key, refund, event } => {
                if let Some(charge) = self.charges.get_mut(&refund.charge) {
                    charge.refunded_cents += refund.amount_cents;
                    let charge = charge.clone();
                    self.tell(event, "charge.refunded", charge);
                }
                self.movements.push(Movement::Refund(refund.clone()));
                self.refunds.insert(key, refund);
            }
            Entry::Delivered { number } => {
                self.undelivered.remove(&number);
            }
        }
    }

    fn tell(&mut self, id: String, kind: &str, charge: Charge) {
        self.events += 1;
        let event = Event { id, kind: kind.to_owned(), charge };
        self.undelivered.insert(self.events, event);
    }

    pub fn charge(&self, id: &str) -> Option<&Charge> {
        self.charges.get(id)
    }

    pub fn charge_of(&self, reference: &str) -> Option<&Charge> {
        self.charges.get(self.charged.get(reference)?)
    }

    pub fn checkout(&self, id: &str) -> Option<&CheckoutRequest> {
        self.checkouts.get(id)
    }

    pub fn page_of(&self, reference: &str) -> Option<&str> {
        self.pages.get(reference).map(String::as_str)
    }

    pub fn refund(&self, key: &str) -> Option<&Refund> {
        self.refunds.get(key)
    }

    /// Whether its reference was not used for another amount or currency.
    pub fn agrees(&self, request: &ChargeRequest) -> bool {
        let wanted = (request.amount_cents, request.currency.as_str());
        let charge = self.charge_of(&request.reference);
        let charge = charge.map(|charge| (charge.amount_cents, charge.currency.as_str()));
        let page = self.page_of(&request.reference).and_then(|id| self.checkout(id));
        let page = page.map(|page| (page.charge.amount_cents, page.charge.currency.as_str()));
        charge.into_iter().chain(page).all(|known| known == wanted)
    }

    pub fn transactions(&self, after: u64, most: usize) -> Vec<Transaction> {
        let skipped = usize::try_from(after).unwrap_or(usize::MAX);
        let numbered = (1..).zip(&self.movements).skip(skipped).take(most);
        let transaction = |(number, movement): (u64, &Movement)| Transaction {
            number,
            movement: movement.clone(),
        };
        numbered.map(transaction).collect()
    }

    /// Events beyond a number that were not delivered.
    pub fn undelivered(&self, after: u64) -> Vec<(u64, Event)> {
        let left = self.undelivered.range(after + 1..);
        left.map(|(number, event)| (*number, event.clone())).collect()
    }
}
