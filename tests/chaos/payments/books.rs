//! What the provider lists, what Postgres holds, and what the program makes of both.

use super::*;
use crate::support::checkers::money::{Charge, LedgerRow};

pub const FILE: &str = "books.jsonl";
const REFUND: &str = "\"entry\":\"refund\"";

pub async fn read(cluster: &Cluster) -> Result<Money> {
    let mut postgres = cluster.postgres().await?;
    let ledger = "SELECT order_id, amount_cents, state::text, charge_id FROM payments";
    let ledger: Vec<(i64, i64, String, Option<String>)> =
        sqlx::query_as(ledger).fetch_all(&mut postgres).await?;
    let row = |(order, cents, state, charge)| LedgerRow { order, cents, state, charge };
    let orders = "SELECT id, status, price_cents FROM orders";
    let orders: Vec<(i64, OrderStatus, i64)> =
        sqlx::query_as(orders).fetch_all(&mut postgres).await?;
    Ok(Money {
        charges: charges(cluster.instances[PROVIDER].address).await?,
        ledger: ledger.into_iter().map(row).collect(),
        orders: orders.into_iter().map(|(id, status, price)| (id, (status, price))).collect(),
        ..Money::default()
    })
}

async fn charges(provider: SocketAddr) -> Result<BTreeMap<String, Charge>> {
    let (client, mut charges, mut after) = (client(), BTreeMap::<_, Charge>::new(), 0);
    loop {
        let url = format!("http://{provider}/v1/transactions?after={after}");
        let page = ask(&client, "GET", url).bearer(KEY).send().await?.body;
        let Some(page) = page["transactions"].as_array().filter(|page| !page.is_empty()) else {
            return Ok(charges);
        };
        for one in page {
            let text = |member: &str| one[member].as_str().unwrap_or_default().to_owned();
            let cents = one["amount_cents"].as_i64().ok_or("a transaction without an amount")?;
            if one["type"] == "refund" {
                charges.entry(text("charge")).or_default().refunds.push(cents);
            } else {
                // "{shop}-{order}-{attempt}"
                let order = text("reference").rsplit('-').nth(1).ok_or("no reference")?.parse()?;
                charges.insert(text("id"), Charge { order, cents, refunds: Vec::new() });
            }
        }
        after += page.len();
    }
}

/// Money that is on its way back, or was captured and is not noted; empty: nothing.
pub fn under_way(money: &Money) -> String {
    let ledger = || money.ledger.iter();
    let refunding = ledger().filter(|row| row.state == "refunding").count();
    let known: HashSet<&String> = ledger().filter_map(|row| row.charge.as_ref()).collect();
    let unnoted = money.charges.keys().filter(|id| !known.contains(id)).count();
    match (refunding, unnoted) {
        (0, 0) => String::new(),
        _ => format!("{refunding} refunds under way, {unnoted} charges not noted"),
    }
}

pub async fn shows_captured(world: &World, order: i64, user: u32) -> Result<bool> {
    let url = format!("http://{}/api/v1/orders/{order}", world.addresses[0]);
    let read = ask(&client(), "GET", url).bearer(&world.token(user)).send().await?;
    Ok(read.body["payment"] == "captured")
}

/// A planted bug: the provider, which is down for that, has refunded a charge twice.
pub async fn refund_again(cluster: &mut Cluster) -> Result {
    let file = cluster.folder.0.join(FILE);
    let there_is_one = poll::<_, Error>(Duration::from_secs(60), 50, async || {
        Ok(fs::read_to_string(&file)?.contains(REFUND).then_some(()))
    });
    there_is_one.await?.ok_or("nothing was refunded")?;
    let provider = &mut cluster.instances[PROVIDER];
    provider.kill();
    let mut lines = fs::read_to_string(&file)?;
    lines.truncate(lines.rfind('\n').map_or(0, |end| end + 1));
    let first = lines.lines().find(|line| line.contains(REFUND)).ok_or("it is gone")?;
    let mut again: Value = serde_json::from_str(first)?;
    (again["key"], again["event"]) = (json!("again"), json!("evt_again"));
    again["refund"]["id"] = json!("re_again");
    fs::write(&file, format!("{lines}{again}\n"))?;
    provider.start(&[])
}
