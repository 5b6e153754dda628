//! The lab: over thirty ways to sell a scarce thing, on the same stock, with the same load.
//!
//! In reading order:
//!
//! | file | what |
//! |---|---|
//! | [`service`], [`error`] | the lab of one process: [`Lab`]; why it refuses: [`LabError`] |
//! | [`strategy`] | the properties of a strategy: [`Strategy`] |
//! | [`strategies`] | all of them, one file each, and the registry |
//! | [`texts`], [`marks`] | its words in both languages; the lines that are marked in its source |
//! | [`purchase`], [`prelude`] | code that strategies share |
//! | [`seller`] | the work of one node of a strategy |
//! | [`bench`], [`shorthand`], [`under_lock`], [`sql`] | a strategy's test bench |
//! | [`interleaving`] | how an interleaving is forced; the purchases that collided |
//! | [`losses`] | a Redis restarted without its data, a ZooKeeper session that lapses |
//! | [`between`] | a crash or an interleaving point between two commands of a lock |
//! | [`consumer`] | a queue in Redis and its one consumer |
//! | [`early_bird`] | how ABA is forced |
//! | [`message_consumer`] | the consumer of `transactional-message` |
//! | [`arena`] | one stock that one strategy sells, its nodes, their crashes |
//! | [`storm`] | the server's own load |
//! | [`judgement`], [`loopback`] | the judge on a visitor's own server; its addresses |
//! | [`tally`], [`verdict`] | counts of each process, and the verdict from Postgres' rows |
//! | [`conformance`] | the cases of every strategy, and contradictions to its promise |
//! | [`trial`] | an arena, a storm and a verdict, and nothing left behind |
//! | [`catalogue`] | every strategy in words |
//! | [`report`] | some runs as a page to be shown in class |
//! | [`limits`] | how much of everything there may be |
//! | [`lock_comparison`], [`lock_costs`] | all locks side by side, and what they cost here |
//! | [`order_numbers`] | the lesson on ids, which the shop plays |
//! | [`options`] | the knobs and their ranges |
//! | [`servers`] | the servers that the lab works on |
//! | [`real_shop`] | the lab's interface to the shop |
//! | [`schema`] | its tables in Postgres |
//!
//! An arena cannot touch a real sale: its rows are in the schema `lab`, its keys below `lab:{id}:`,
//! its connections are the lab's own.

pub mod arena;
pub mod bench;
pub mod between;
pub mod catalogue;
pub mod command;
pub mod conformance;
pub mod consumer;
pub mod definition;
pub mod early_bird;
pub mod error;
pub mod http;
pub mod interleaving;
pub mod judgement;
pub mod lessons;
pub mod limits;
pub mod lock_comparison;
pub mod lock_costs;
pub mod lock_sources;
pub mod loopback;
pub mod losses;
pub mod marks;
pub mod message_consumer;
pub mod options;
pub mod order_numbers;
pub mod prelude;
pub mod purchase;
pub mod real_shop;
pub mod report;
pub mod schema;
pub mod seller;
pub mod selling;
pub mod servers;
pub mod service;
pub mod shorthand;
pub mod sql;
pub mod storm;
pub mod storm_state;
pub mod strategies;
pub mod strategy;
pub mod tally;
pub mod templates;
pub mod terminal;
pub mod texts;
pub mod trial;
pub mod under_lock;
pub mod verdict;

pub use definition::Wanted;
pub use error::LabError;
pub use limits::{
    LONGEST_LIFE, MOST_ARENAS, MOST_ARENAS_OF_ADDRESS, MOST_NODES, MOST_PER_USER, MOST_STOCK,
    MOST_STORMS, MOST_STORMS_OF_ADDRESS,
};
pub use service::{Lab, is_arena_id};
pub use strategies::STRATEGIES;
pub use strategy::Strategy;
pub use trial::Trial;
