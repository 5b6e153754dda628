//! What the files of `strategies` have in common.

pub use crate::{
    options::{choice, lease_ms, redis_node_loss, retries, wait_ms, whole},
    purchase::read_check_write,
    selling::{Buyer, Opening, Outcome, Sell, Trouble, opening, ready},
    sql::Sql,
    stand::{Stand, new_order_id},
    strategy::{
        Demonstration, Expected, Family, Harm, Harms, Need, Never, OptionSpec, Possible, Promise,
        Scenario, Strategy, demonstration,
    },
};
