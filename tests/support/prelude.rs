//! What most tests use.

// Not every test binary uses all of it.
#![allow(unused_imports)]

pub use super::app::{
    ADMIN_TOKEN, Options, TEST_TIMEOUT, TestApp, all_at_once, eventually, must_accept, new_sale,
    services_without_tasks,
};
pub use super::launch::{entries, poll, tail};
pub use super::load::{Rush, Told, Winner};
pub use super::load::{all_order, all_told, all_written, assert_shed, crowd};
pub use super::people::{Ask, Entrance, Events, Reply, Shopper, ask, assert_has, client};
pub use super::people::{in_secs, time_of, until_told, with};
pub use super::processes::signal;
pub use super::program::{Home, Program, SECRET, settings_of};
pub use super::proxy::{Address, Fault, Proxy, free_port};
pub use super::random::Random;
pub use super::routes::Route;
pub use super::{Database, Servers, locked, redis_connection, serve_each};
pub use flash_sale::auth::TokenSigner;
pub use flash_sale::domain::{OrderId, OrderStatus, PurchaseResult, SaleId, UserId};
pub use flash_sale::redis::Keys;
pub use flash_sale::{error::ServiceError, services::Services};
pub use futures_util::{StreamExt, future::join_all, stream};
pub use nix::sys::signal::Signal;
pub use redis::AsyncCommands;
pub use redis::{aio::MultiplexedConnection, streams::StreamRangeReply};
pub use reqwest::{Method, StatusCode};
pub use serde_json::{Value, json};
pub use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, postgres::PgConnectOptions};
pub use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
pub use std::net::{Ipv4Addr, SocketAddr};
pub use std::path::{Path, PathBuf};
pub use std::process::{Child, Command, Stdio};
pub use std::sync::atomic::Ordering::Relaxed;
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
pub use std::sync::{Arc, Mutex};
pub use std::time::{Duration, Instant};
pub use std::{fs, ops::Range};
pub use time::{OffsetDateTime, format_description::well_known::Rfc3339};
pub use tokio::io::{AsyncReadExt, AsyncWriteExt};
pub use tokio::net::{TcpListener, TcpStream};
pub use tokio::task::{JoinHandle, JoinSet};
