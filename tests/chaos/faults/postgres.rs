//! Faults of Postgres: death, standstill, refusal, failover, slow commits, failed transactions.

use super::*;
use crate::support::postgres_servers::{make_synchronous, options_of, promote, standby_of};

pub async fn kill(stage: &mut Stage<'_>) -> Result {
    stage.wait(300..1_200).await;
    stage.cluster.postgres.kill();
    stage.strikes.kills += 1;
    stage.cluster.until_postgres_is_back().await?;
    stage.healed(None)
}

pub async fn stop(stage: &mut Stage<'_>, millis: Range<u64>) -> Result {
    stage.wait(200..700).await;
    let postmaster = stage.cluster.postgres.pid().ok_or("postgres is being restarted")?;
    signal(&[postmaster], Signal::SIGSTOP);
    processes::stand_still(stage, &family(postmaster), millis).await;
    stage.healed(None)
}

pub async fn refuse(stage: &mut Stage<'_>) -> Result {
    stage.wait(200..700).await;
    stage.cluster.refuse_postgres(true).await;
    stage.wait(300..2_500).await;
    stage.cluster.refuse_postgres(false).await;
    stage.healed(None)
}

pub const SLOW_COMMITS: &str = "
    CREATE FUNCTION chaos() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM nextval('chaos_fired'); PERFORM pg_sleep(0.02 + random() * 0.2); RETURN NULL;
    END $$;
    CREATE CONSTRAINT TRIGGER chaos AFTER UPDATE ON sales
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION chaos();";

pub const FAILURES: &str = "
    CREATE FUNCTION chaos() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF random() < 0.1 THEN
            PERFORM nextval('chaos_fired');
            RAISE EXCEPTION 'made up by the test'
                USING ERRCODE = CASE WHEN random() < 0.5 THEN '40001' ELSE '40P01' END;
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER chaos AFTER INSERT OR UPDATE ON orders
        FOR EACH STATEMENT EXECUTE FUNCTION chaos();";

/// Plants a trigger. A sequence counts outside any transaction, so also those that fail.
pub async fn plant(stage: &mut Stage<'_>, trigger: &'static str) -> Result {
    let mut connection = stage.cluster.postgres().await?;
    connection.execute("CREATE SEQUENCE chaos_fired").await?;
    connection.execute(trigger).await?;
    Ok(())
}

pub async fn remove_trigger(stage: &mut Stage<'_>) -> Result {
    let mut connection = stage.cluster.postgres().await?;
    let drop = "DROP TRIGGER IF EXISTS chaos ON sales; DROP TRIGGER IF EXISTS chaos ON orders;";
    connection.execute(drop).await?;
    let fired = sqlx::query_as("SELECT last_value, is_called FROM chaos_fired");
    let (fired, is_called): (i64, bool) = fired.fetch_one(&mut connection).await?;
    stage.note(format!("the trigger fired {fired} times"));
    if !is_called {
        stage.miss("the trigger never fired");
    }
    Ok(())
}

pub async fn fail_over(stage: &mut Stage<'_>) -> Result {
    let number = stage.strikes.count + 1;
    let folder = stage.cluster.folder.0.join(format!("p{number}"));
    let standby = standby_of(&stage.cluster.postgres, &folder).await?;
    make_synchronous(&stage.cluster.postgres).await?;
    stage.wait(200..800).await;
    let primary = std::mem::replace(&mut stage.cluster.postgres, standby);
    primary.kill();
    primary.stop().await;
    stage.strikes.kills += 1;
    let standby = &stage.cluster.postgres;
    promote(standby).await?;
    *locked(&stage.cluster.primary) = options_of(standby.address());
    for proxy in &stage.cluster.postgres_proxies {
        proxy.lead_to(Address::of_postgres(standby.address()));
    }
    stage.healed(None)?;
    stage.wait(200..600).await;
    Ok(())
}
