//! What most tests use.

// Not every test binary uses all of it.
#![allow(unused_imports)]

pub use super::app::{
    ADMIN_TOKEN, Ask, Entrance, Options, Reply, Shopper, TEST_TIMEOUT, TestApp, all_at_once, ask,
    assert_has, client, eventually, must_accept,
};
pub use super::load::{Rush, Told, Winner};
pub use super::load::{all_order, all_told, all_written, assert_shed, crowd};
pub use super::processes::signal;
pub use super::program::{Home, Program, SECRET, settings_of};
pub use super::proxy::{Address, Fault, Proxy, free_port};
pub use super::{Database, Servers, redis_connection};
pub use flash_sale::auth::TokenSigner;
pub use flash_sale::domain::{OrderId, OrderStatus, PurchaseResult, SaleId, UserId};
pub use flash_sale::redis::Keys;
pub use futures_util::future::join_all;
pub use nix::sys::signal::Signal;
pub use redis::AsyncCommands;
pub use redis::aio::MultiplexedConnection;
pub use reqwest::{Method, StatusCode};
pub use serde_json::{Value, json};
pub use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
pub use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
pub use std::fs;
pub use std::path::{Path, PathBuf};
pub use std::sync::atomic::Ordering::Relaxed;
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
pub use std::sync::{Arc, Mutex};
pub use std::time::{Duration, Instant};
pub use time::OffsetDateTime;
