//! The provider's operations on its books. Each decides and enters in one step, and answers when
//! the journal has it; a repeated one waits for the same.

use super::books::{Books, Entry};
use super::journal::{Broken, Journal};
use crate::provider::{
    Charge, ChargeRequest, ChargeStatus, CheckoutRequest, Event, Refund, Transaction,
};
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use time::OffsetDateTime;
use tokio::sync::Notify;
use uuid::Uuid;

/// The most transactions of an answer.
const MOST_TRANSACTIONS: usize = 1_000;

pub struct Store {
    books: Mutex<Books>,
    journal: Journal,
    /// There is a new event.
    pub wakeup: Notify,
}

/// Why an operation did nothing.
#[derive(Debug)]
pub enum Refusal {
    /// The key was used for something else.
    IdempotencyConflict,
    ChargeUnknown,
    CheckoutUnknown,
    RefundExceedsCharge,
    /// The page's time is up.
    Expired,
    Broken,
}

impl From<Broken> for Refusal {
    fn from(_: Broken) -> Self {
        Self::Broken
    }
}

/// What a hosted page shows.
pub struct Page {
    pub checkout: CheckoutRequest,
    pub charge: Option<Charge>,
    pub is_expired: bool,
}

impl Store {
    pub fn open(file: &Path) -> io::Result<Self> {
        let (journal, entries) = Journal::open(file)?;
        let mut books = Books::default();
        entries.into_iter().for_each(|entry| books.apply(entry));
        Ok(Self { books: Mutex::new(books), journal, wakeup: Notify::new() })
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, books: &mut Books, entry: Entry) {
        self.journal.append(&entry);
        books.apply(entry);
        self.wakeup.notify_one();
    }

    /// Waits until all that was read so far is durable.
    pub async fn durable(&self) -> Result<(), Broken> {
        self.journal.durable().await
    }

    /// Charges a reference, or finds its charge.
    pub async fn charge(
        &self,
        request: &ChargeRequest,
        status: ChargeStatus,
    ) -> Result<Charge, Refusal> {
        let charge = self.charge_once(&mut self.books(), request, status)?;
        self.durable().await?;
        Ok(charge)
    }

    fn charge_once(
        &self,
        books: &mut Books,
        request: &ChargeRequest,
        status: ChargeStatus,
    ) -> Result<Charge, Refusal> {
        if !books.agrees(request) {
            return Err(Refusal::IdempotencyConflict);
        }
        if let Some(charge) = books.charge_of(&request.reference) {
            return Ok(charge.clone());
        }
        let is_declined = status == ChargeStatus::Declined;
        let charge = Charge {
            id: name("ch"),
            reference: request.reference.clone(),
            status,
            amount_cents: request.amount_cents,
            refunded_cents: 0,
            currency: request.currency.clone(),
            decline_reason: is_declined.then(|| "card_declined".to_owned()),
        };
        self.enter(books, Entry::Charge { charge: charge.clone(), event: name("evt") });
        Ok(charge)
    }

    /// Opens a page, or finds the one of its reference; answers its id.
    pub async fn open_checkout(&self, request: &CheckoutRequest) -> Result<String, Refusal> {
        let id = {
            let mut books = self.books();
            if !books.agrees(&request.charge) {
                return Err(Refusal::IdempotencyConflict);
            }
            if let Some(id) = books.page_of(&request.charge.reference) {
                id.to_owned()
            } else {
                let id = name("co");
                let entry = Entry::Checkout { id: id.clone(), request: request.clone() };
                self.enter(&mut books, entry);
                id
            }
        };
        self.durable().await?;
        Ok(id)
    }

    pub async fn page(&self, id: &str) -> Result<Page, Refusal> {
        let page = Self::read_page(&self.books(), id)?;
        self.durable().await?;
        Ok(page)
    }

    /// The shopper decides on a page; answers it as it is then. One that has a charge keeps it.
    pub async fn decide(&self, id: &str, status: ChargeStatus) -> Result<Page, Refusal> {
        let page = {
            let mut books = self.books();
            let mut page = Self::read_page(&books, id)?;
            if page.charge.is_none() && page.is_expired {
                return Err(Refusal::Expired);
            }
            page.charge = Some(self.charge_once(&mut books, &page.checkout.charge, status)?);
            page
        };
        self.durable().await?;
        Ok(page)
    }

    fn read_page(books: &Books, id: &str) -> Result<Page, Refusal> {
        let checkout = books.checkout(id).ok_or(Refusal::CheckoutUnknown)?.clone();
        let charge = books.charge_of(&checkout.charge.reference).cloned();
        let is_expired = OffsetDateTime::now_utc() >= checkout.expires_at;
        Ok(Page { checkout, charge, is_expired })
    }

    /// Refunds a part of a charge, or finds the refund of this key.
    pub async fn refund(
        &self,
        key: &str,
        charge: &str,
        amount_cents: i64,
    ) -> Result<Refund, Refusal> {
        let refund = {
            let mut books = self.books();
            match books.refund(key) {
                Some(known) if known.charge == charge && known.amount_cents == amount_cents => {
                    known.clone()
                }
                Some(_) => return Err(Refusal::IdempotencyConflict),
                None => {
                    let known = books.charge(charge).ok_or(Refusal::ChargeUnknown)?;
                    let has_money = known.status == ChargeStatus::Succeeded;
                    if !has_money || amount_cents > known.amount_cents - known.refunded_cents {
                        return Err(Refusal::RefundExceedsCharge);
                    }
                    let refund = Refund { id: name("re"), charge: charge.to_owned(), amount_cents };
                    let (key, event) = (key.to_owned(), name("evt"));
                    let entry = Entry::Refund { key, refund: refund.clone(), event };
                    self.enter(&mut books, entry);
                    refund
                }
            }
        };
        self.durable().await?;
        Ok(refund)
    }

    pub async fn charges(&self, reference: &str) -> Result<Vec<Charge>, Refusal> {
        let found = self.books().charge_of(reference).cloned();
        self.durable().await?;
        Ok(found.into_iter().collect())
    }

    pub async fn transactions(&self, after: u64) -> Result<Vec<Transaction>, Refusal> {
        let found = self.books().transactions(after, MOST_TRANSACTIONS);
        self.durable().await?;
        Ok(found)
    }

    /// Events beyond a number that have to be delivered, once they are durable.
    pub async fn undelivered(&self, after: u64) -> Result<Vec<(u64, Event)>, Broken> {
        let found = self.books().undelivered(after);
        self.durable().await?;
        Ok(found)
    }

    /// An event needs no more delivery. If a crash forgets that, it is delivered again.
    pub fn delivered(&self, number: u64) {
        let entry = Entry::Delivered { number };
        let mut books = self.books();
        self.journal.append(&entry);
        books.apply(entry);
    }
}

fn name(kind: &str) -> String {
    format!("{kind}_{}", Uuid::new_v4().simple())
}
