//! What the files of `strategies` have in common.

pub use crate::{
    marks::Source,
    options::{choice, lease_ms, redis_node_loss, redis_nodes_down, retries, wait_ms, whole},
    purchase::read_check_write,
    selling::{Buyer, Opening, Outcome, Sell, Trouble, opening, ready},
    sql::Sql,
    stand::{Stand, new_order_id},
    strategy::{
        Demonstration, Expected, Family, Harm, Harms, Need, Never, OptionSpec, Possible, Promise,
        Scenario, Strategy, demonstration,
    },
};
pub use locks::wire::LuaScript;
