//! Shared by all clients of Postgres and Redis: the pool, droppable transactions, migrations, and
//! whether an error is transient.

pub mod migrations;
pub mod pool;
pub mod postgres;
pub mod redis;
pub mod sql;
