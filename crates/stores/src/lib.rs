//! Shared by all clients of Postgres and Redis: droppable transactions, migrations, and whether an
//! error is transient.

pub mod migrations;
pub mod postgres;
pub mod redis;
pub mod sql;
