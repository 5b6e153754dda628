//! A payment provider that does what a test says, with books of its own.

use ::payments::provider::{
    Charge, ChargeRequest, ChargeStatus, CheckoutRequest, Movement, PaymentProvider, Pending,
    ProviderError, Refund, Transaction,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Clone, Copy, PartialEq)]
pub enum Mood {
    Accepts,
    Declines,
    /// It charges, and its answer is lost.
    LosesAnswers,
    RefusesRefunds,
    Away,
}

pub struct Told {
    pub mood: Mood,
    pub charges: Vec<Charge>,
    pub movements: Vec<Movement>,
    /// By their keys.
    pub refunds: BTreeMap<String, Refund>,
    pub pages: Vec<CheckoutRequest>,
}

/// The provider's own books, and how it answers.
#[derive(Clone)]
pub struct Scripted(Arc<Mutex<Told>>);

impl Scripted {
    pub fn new() -> Self {
        let (charges, movements, pages) = (Vec::new(), Vec::new(), Vec::new());
        let refunds = BTreeMap::new();
        let told = Told { mood: Mood::Accepts, charges, movements, refunds, pages };
        Self(Arc::new(Mutex::new(told)))
    }

    pub fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock().expect("no panic")
    }

    pub fn is(&self, mood: Mood) {
        self.told().mood = mood;
    }

    /// A charge beside all others.
    pub fn charges_anew(&self, request: &ChargeRequest, status: ChargeStatus) -> Charge {
        let mut told = self.told();
        let charge = Charge {
            id: format!("ch_{}_{}", request.reference, told.charges.len()),
            reference: request.reference.clone(),
            status,
            amount_cents: request.amount_cents,
            refunded_cents: 0,
            currency: request.currency.clone(),
            decline_reason: (status == ChargeStatus::Declined).then(|| "no cover".to_owned()),
        };
        told.charges.push(charge.clone());
        told.movements.push(Movement::Charge(charge.clone()));
        charge
    }

    pub fn charged(&self, reference: &str) -> Option<Charge> {
        self.told().charges.iter().find(|charge| charge.reference == reference).cloned()
    }

    /// The shopper confirms on the last page that was opened.
    pub fn confirm(&self) -> Charge {
        let page = self.told().pages.last().expect("a page").charge.clone();
        self.charges_anew(&page, ChargeStatus::Succeeded)
    }
}

fn away<T>() -> Result<T, ProviderError> {
    Err(ProviderError::Unknown("away".to_owned()))
}

fn refused<T>(code: &str) -> Result<T, ProviderError> {
    Err(ProviderError::Refused { code: code.to_owned(), message: "no".to_owned() })
}

impl PaymentProvider for Scripted {
    fn charge<'a>(&'a self, request: &'a ChargeRequest) -> Pending<'a, Charge> {
        Box::pin(async move {
            let mood = self.told().mood;
            let status = match mood {
                Mood::Away => return away(),
                Mood::Declines => ChargeStatus::Declined,
                _ => ChargeStatus::Succeeded,
            };
            let before = self.charged(&request.reference);
            let charge = before.unwrap_or_else(|| self.charges_anew(request, status));
            if mood == Mood::LosesAnswers { away() } else { Ok(charge) }
        })
    }

    fn checkout<'a>(&'a self, request: &'a CheckoutRequest) -> Pending<'a, String> {
        self.told().pages.push(request.clone());
        Box::pin(async move { Ok(format!("http://pay.example/{}", request.charge.reference)) })
    }

    fn refund<'a>(&'a self, key: &'a str, of: &'a str, amount_cents: i64) -> Pending<'a, Refund> {
        Box::pin(async move {
            let mut told = self.told();
            if told.mood == Mood::Away {
                return away();
            }
            if told.mood == Mood::RefusesRefunds {
                return refused("too_old");
            }
            if let Some(refund) = told.refunds.get(key) {
                return Ok(refund.clone());
            }
            let by_hand = told.refunds.contains_key("by hand");
            let charge = told.charges.iter_mut().find(|charge| charge.id == of);
            let charge = charge.expect("a charge of ours");
            if charge.refunded_cents + amount_cents > charge.amount_cents {
                assert!(by_hand, "refunded twice: {charge:?}");
                return refused("refund_exceeds_charge");
            }
            charge.refunded_cents += amount_cents;
            let id = format!("re_{}", told.refunds.len());
            let refund = Refund { id, charge: of.to_owned(), amount_cents };
            told.refunds.insert(key.to_owned(), refund.clone());
            told.movements.push(Movement::Refund(refund.clone()));
            Ok(refund)
        })
    }

    fn charges<'a>(&'a self, reference: &'a str) -> Pending<'a, Vec<Charge>> {
        Box::pin(async move {
            let told = self.told();
            if told.mood == Mood::Away {
                return away();
            }
            let of_it = told.charges.iter().filter(|charge| charge.reference == reference);
            Ok(of_it.cloned().collect())
        })
    }

    fn transactions(&self, after: u64) -> Pending<'_, Vec<Transaction>> {
        Box::pin(async move {
            let told = self.told();
            let all = told.movements.iter().zip(1..);
            let all =
                all.map(|(movement, number)| Transaction { number, movement: movement.clone() });
            // Pages of two: the ledger has to ask on.
            Ok(all.filter(|one| one.number > after).take(2).collect())
        })
    }
}
