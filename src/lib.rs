//! A flash sale: many people, few things, one moment.
//!
//! The modules in reading order, which is also the order in which they may import: each only what
//! stands below it (`scripts/check_imports.py` holds them to it). A purchase reads
//! `http::orders` → `sale` → `sale::gate` → `redis/library/admit.lua` → `sale::log` →
//! `worker::writer` → `migrations/`.

/// The commands of the program.
pub mod commands;

/// The composition root: settings → services → shop → router and workers.
pub mod app;

/// HTTP: routes, extractors, errors, event streams, pages.
pub mod http;

/// The waiting room of a sale: the draw among those who came early, the queue behind them, and whose turn it is.
pub mod room;

/// Defence against bots: limits that all instances share, proof of work, passes.
pub mod bots;

/// The lab: every way to sell a scarce thing, the broken ones too, side by side.
pub mod lab;

/// HTTP as the shop and the lab share it: problems, JSON bodies, event streams, addresses.
pub mod web;

/// The loops behind the purchase path: writing accepted orders, recovering what a dead process left,
/// expiring, refreshing what is shown, rebuilding Redis.
pub mod worker;

/// What a shopper and an operator can do: the admission gate, the id generator, the life of an
/// order, the catalogue, the audit.
pub mod sale;

/// Locks, sound and famous for how they fail, and the resource's side of them.
pub mod lock;

/// Redis: connections, keys, and the Lua scripts with their typed wrappers.
pub mod redis;

/// Postgres: the pool and the schema.
pub mod postgres;

/// Who somebody is: signed user tokens, the operator's token.
pub mod auth;

/// Slips: short signed statements for one user and one sale, such as "it is your turn".
pub mod slip;

/// Logs, metrics, traces.
pub mod telemetry;

/// Settings: flags, environment, `.env`.
pub mod config;

/// Private Postgres and Redis as child processes, for a first minute without set-up.
pub mod embedded;

/// Places where a test makes the program fail; nothing in an ordinary build.
pub mod fail_point;

/// The words of the sale: identifiers, a sale, an order, the outcomes of a purchase.
pub mod domain;

/// Lines on stdout and stderr.
pub mod terminal;
