//! The routes of the API, to ask all of them.

use crate::support::prelude::*;

/// Every route of a sale, an order or a user: who may use it, and a body that it would take.
const ROUTES: &str = include_str!("routes.txt");

pub struct Route {
    pub who: &'static str,
    pub method: &'static str,
    pub path: String,
    pub has_id: bool,
    pub body: &'static str,
}

impl Route {
    pub fn all(sale: &str, order: &str) -> impl Iterator<Item = Self> {
        Self::of(ROUTES, sale, order)
    }

    pub fn of(table: &'static str, sale: &str, order: &str) -> impl Iterator<Item = Self> {
        table.trim().lines().map(move |line| {
            let mut words = line.split_whitespace();
            let mut next = || words.next().unwrap_or_default();
            let (who, method, template, body) = (next(), next(), next(), next());
            let path = template.replace("SALE", sale).replace("ORDER", order);
            Self { who, method, has_id: path != template, path, body }
        })
    }

    pub fn token<'a>(&self, shopper: &'a Shopper) -> &'a str {
        if self.who == "operator" { ADMIN_TOKEN } else { &shopper.token }
    }

    pub fn ask(&self, app: &TestApp) -> Ask {
        let ask = app.ask(self.method, &self.path);
        match self.body {
            "" => ask,
            body => ask.header("content-type", "application/json").body(body),
        }
    }
}
