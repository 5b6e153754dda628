//! B13: paid, and expired: the webhook of a payment comes late, and the sweeper does not wait.

use super::prelude::*;
use locks::wire::Sql;

pub async fn play(stage: Stage) -> Result {
    scene(&stage, "read-then-write", Webhook::reads_then_writes).await?;
    scene(&stage, "money-gone", Webhook::forgets_the_loser).await?;
    scene(&stage, "refund-twice", Webhook::refunds).await?;
    scene(&stage, "refund-once", Webhook::refunds_once).await
}

/// The same for every handler: the sweeper and the next buyer come before it writes.
async fn scene<H>(stage: &Stage, act: &str, handler: fn(Webhook) -> H) -> Result
where
    H: Future<Output = Result<(), sqlx::Error>> + Send + 'static,
{
    let [webhook, sweeper, bob] = stage.act(act, ["webhook", "sweeper", "bob"]).await?;
    stage.begins_with(ORDERED).await?;
    let delivered = || webhook.does(handler(Webhook::of(&webhook, stage)));
    let mut delivery = delivered();
    if act == "read-then-write" {
        delivery.next("read").await?;
    }
    webhook.stands().await?;
    if stage.options().is("webhook", "in-time") {
        delivery.rest_named(named("pay-in-time", "refund")).await??;
        sells_again(stage, &sweeper, &bob).await?;
    } else {
        sells_again(stage, &sweeper, &bob).await?;
        if act.starts_with("refund") {
            delivery.next("pay-late").await?;
            delivery.next("look").await?;
            webhook.next().loses_reply("refund").await?;
            let _unanswered = delivery.end().await?;
        } else {
            delivery.rest_named(named("pay-late", "refund")).await??;
        }
    }
    if act.starts_with("refund") {
        delivered().rest_named(named("pay-again", "refund-again")).await??;
    }
    stage.ends(stage.shop().is_oversold().await? || stage.shop().owes().await?)
}

async fn sells_again(stage: &Stage, sweeper: &Client, bob: &Client) -> Result {
    for (client, statement, step) in [(sweeper, EXPIRE, "expire"), (bob, BUY, "buy")] {
        let (sql, play) = (client.sql(), stage.shop().play.clone());
        let doing = client.does(async move { sql.run(statement, (&play,)).await });
        let doing = doing.with_outcome(|rows| matches!(rows, Ok(0)).then_some("none"));
        doing.last(step).await??;
    }
    Ok(())
}

fn named(pay: &'static str, refund: &'static str) -> impl Fn(&str) -> &'static str + Send {
    move |sent| match sent.split(' ').next() {
        Some("UPDATE") => pay,
        Some("SELECT") => "look",
        _ => refund,
    }
}

/// A delivery of the webhook: Alice has paid.
struct Webhook {
    shop: Sql,
    provider: Sql,
    play: String,
}

impl Webhook {
    fn of(client: &Client, stage: &Stage) -> Self {
        let (shop, provider) = (client.sql(), client.sql().to("provider"));
        Self { shop, provider, play: stage.shop().play.clone() }
    }

    async fn status(&self) -> Result<String, sqlx::Error> {
        let row: Option<(String,)> = self.shop.row(STATUS, (&self.play,)).await?;
        Ok(row.map_or_else(String::new, |(status,)| status))
    }

    /// The failing variant: a check, and then a write.
    async fn reads_then_writes(self) -> Result<(), sqlx::Error> {
        if self.status().await? == "pending_payment" {
            //= FLAW Since the check the sweeper may have put the unit on sale again.
            self.shop.run(PAY, (&self.play,)).await?;
        }
        Ok(())
    }

    /// One winner; and nobody thinks of the loser.
    async fn forgets_the_loser(self) -> Result<(), sqlx::Error> {
        //= FLAW No row was changed: the order is closed, and its money stays here.
        self.shop.run(PAY_IF_PENDING, (&self.play,)).await?;
        Ok(())
    }

    async fn refunds(self) -> Result<(), sqlx::Error> {
        let won = self.shop.run(PAY_IF_PENDING, (&self.play,)).await? == 1;
        if !won && self.status().await? != "paid" {
            //= FLAW Nothing tells this request from the same one, sent again.
            self.provider.run(REFUND, (&self.play,)).await?;
        }
        Ok(())
    }

    /// The cure.
    async fn refunds_once(self) -> Result<(), sqlx::Error> {
        //= CURE Paying and expiring ask for the same status: one of them changes the row.
        let won = self.shop.run(PAY_IF_PENDING, (&self.play,)).await? == 1;
        // Closed; or paid by an earlier delivery. Neither changes any more.
        if !won && self.status().await? != "paid" {
            //= CURE The charge's id is the key: sent again, it is still one refund.
            self.provider.run(REFUND_ONCE, (&self.play,)).await?;
        }
        Ok(())
    }
}

/// Alice has the only phone, and paid when her time was over. Nobody here knows yet.
const ORDERED: &str = "
    WITH taken AS (UPDATE lab.plays SET stock = 0 WHERE id = $1)
    INSERT INTO lab.play_orders (play, buyer, status, pay_by)
    VALUES ($1, 'alice', 'pending_payment', now())";
const STATUS: &str = "SELECT status FROM lab.play_orders WHERE play = $1 AND buyer = 'alice'";
const PAY: &str = "UPDATE lab.play_orders SET status = 'paid' WHERE play = $1 AND buyer = 'alice'";
const PAY_IF_PENDING: &str = "UPDATE lab.play_orders SET status = 'paid'
    WHERE play = $1 AND buyer = 'alice' AND status = 'pending_payment'";
const EXPIRE: &str = "
    WITH expired AS (
        UPDATE lab.play_orders SET status = 'expired'
        WHERE play = $1 AND status = 'pending_payment' AND pay_by <= now() RETURNING play)
    UPDATE lab.plays SET stock = stock + 1 FROM expired WHERE id = play";
const BUY: &str = "
    WITH taken AS (UPDATE lab.plays SET stock = stock - 1 WHERE id = $1 AND stock > 0 RETURNING id)
    INSERT INTO lab.play_orders (play, buyer) SELECT id, 'bob' FROM taken";
const REFUND: &str = "INSERT INTO lab.play_refunds (play) VALUES ($1)";
const REFUND_ONCE: &str = "INSERT INTO lab.play_refunds (play, key) VALUES ($1, 'refund-charge-1')
    ON CONFLICT (play, key) DO NOTHING";

pub const LESSON: Lesson = Lesson {
    number: 13,
    id: "b13",
    needs: &[],
    options: &[choice("webhook", &["late", "in-time"])],
    cast: &[
        client("webhook"),
        client("sweeper"),
        BOB,
        SHOP,
        Actor { id: "provider", part: Part::Resource },
    ],
    acts: &[
        failure("read-then-write", &[mark(file!(), "(PAY, ")]),
        flaw_of_the_cure("money-gone", &[mark(file!(), "(PAY_IF_PENDING, ")]),
        flaw_of_the_cure("refund-twice", &[mark(file!(), "(REFUND, ")]),
        cure("refund-once", &[mark(file!(), "(PAY_IF_PENDING, "), mark(file!(), "(REFUND_ONCE, ")]),
    ],
};
