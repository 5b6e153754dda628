//! `serializable`: the naive purchase, and the database promises that it went as if alone.

use crate::prelude::*;

pub struct Node;

pub async fn open(_: &Bench) -> Result<Node> {
    Ok(Node)
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        //= FLAW without retries buyers are turned away for nothing
        bench.retrying(bench.whole("retries"), || attempt(bench, buyer)).await
    }
}

async fn attempt(bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
    const BEGIN: &str = "BEGIN ISOLATION LEVEL SERIALIZABLE";
    let naive = async |tx: &mut Sql| read_check_write(bench, tx, buyer).await;
    //= CURE Postgres aborts with 40001 what no serial order could have produced
    match bench.in_transaction_with(BEGIN, naive).await {
        Err(error) if error.is("40001") => {
            bench.note(NOT_SERIALIZABLE);
            Ok(Outcome::Contended)
        }
        outcome => outcome,
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "serializable",
    promise: Promise::everywhere(Harms::UNSOLD),
    options: &[retries(10_000)],
    demonstrations: &[
        show("no-retries", Undersells, SMALL.buyers(6).options(&[("retries", "0")])).at(1),
        show("ended", Notes(NOT_SERIALIZABLE), SMALL).at(2),
        show("double-click", Holds, DOUBLE_CLICK.nodes(2)).at(2),
    ],
    ..DATABASE_STRATEGY
};

const NOT_SERIALIZABLE: &str = "40001 could not serialize";
