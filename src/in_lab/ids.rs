//! The lesson on order numbers: their layout, leasing, a lost counter, a wrong clock. It runs the
//! real generator below a key prefix of its own. For the wrong clock it loads the leasing function
//! once more, with the time reduced, since a server's clock cannot be set from here.

use crate::admission::ids::{IdError, IdGenerator, decode, made_at};
use crate::domain::OrderId;
use crate::fail_point::FailPoints;
use crate::redis::keys::IdLane;
use crate::redis::library::Library;
use crate::redis::{Redis, functions};
use lab::order_numbers::{IdsBody, SectionBody};
use lab::selling::PurchaseError;
use lab::strategy::{Language, Words};
use serde_json::{Value as Json, json};
use sqlx::PgPool;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use time::OffsetDateTime;

/// Numbers that are taken for a measurement.
const MEASURED: usize = 400;
/// Numbers that an admission queue takes at once, about.
const BATCH: usize = 50;
/// The time limit of one command: on a busy machine, one of a thousand may be slow.
const RESPONSE: Duration = Duration::from_secs(10);
/// The age of the floor when the clock steps back: more than the step.
const RUNNING_FOR: time::Duration = time::Duration::hours(2);

impl From<IdError> for PurchaseError {
    fn from(error: IdError) -> Self {
        match error {
            IdError::Redis(error) => Self::Redis(error),
            IdError::Postgres(error) => Self::Postgres(error),
            other => Self::Other(other.to_string()),
        }
    }
}

/// Chooses the language of a text.
type Say<'a> = &'a (dyn Fn(&'static str, &'static str) -> &'static str + Sync);

/// A cell of a table. Numbers are text: ids exceed the numbers of JavaScript.
fn cell(value: impl ToString) -> Json {
    json!(value.to_string())
}

fn section(
    title: &'static str,
    text: impl Into<String>,
    columns: &[&'static str],
    rows: Vec<Vec<Json>>,
) -> SectionBody {
    SectionBody {
        title,
        text: text.into(),
        columns: Some(columns.to_vec()),
        rows: Some(rows),
        code: None,
    }
}

/// A row for an id: when it was taken, its second, its sequence number, and the id.
fn row_of(when: impl ToString, id: OrderId) -> Vec<Json> {
    let (second, number) = decode(id);
    vec![cell(when), cell(second), cell(number), cell(id)]
}

/// Inserts how many ids were taken, and how many are distinct.
fn counted(text: &str, ids: &[OrderId]) -> String {
    let distinct = ids.iter().collect::<HashSet<_>>().len();
    let text = text.replace("{count}", &ids.len().to_string());
    text.replace("{distinct}", &distinct.to_string())
}

/// The stores, below a prefix of this run.
struct Bench {
    redis: Arc<Redis>,
    postgres: PgPool,
}

impl Bench {
    fn generator(&self) -> IdGenerator {
        let points = FailPoints::default();
        IdGenerator::new(self.redis.clone(), (&self.postgres).into(), points)
    }

    async fn take(
        &self,
        generator: &IdGenerator,
        count: usize,
    ) -> Result<Vec<OrderId>, PurchaseError> {
        let mut ids = Vec::with_capacity(count);
        let mut connection = self.redis.pooled().await?;
        generator.take(&mut connection, count, &mut ids).await?;
        Ok(ids)
    }

    async fn delete(&self, keys: &[String]) -> Result<(), PurchaseError> {
        let mut connection = self.redis.pooled().await?;
        let delete = redis::cmd("DEL").arg(keys).to_owned();
        Ok(delete.exec_async(&mut connection).await?)
    }

    /// The clock and the counters of today and its neighbours, for a run around midnight.
    fn keys(&self) -> Vec<String> {
        let (keys, today) = (&self.redis.keys, OffsetDateTime::now_utc().date());
        let days = [today.previous_day(), Some(today), today.next_day()];
        let counter = |day| keys.id_counter(IdLane::Whole, day);
        let counters = days.into_iter().flatten().map(counter);
        counters.chain([keys.id_clock(IdLane::Whole)]).collect()
    }
}

/// Runs everything; takes some hundred milliseconds.
pub async fn lesson(
    postgres: &PgPool,
    redis_url: &str,
    prefix: &str,
    language: Language,
) -> Result<IdsBody, PurchaseError> {
    let bench = |prefix: &str| -> Result<Bench, PurchaseError> {
        let redis = Redis::with_timeout(redis_url, prefix, RESPONSE)?;
        Ok(Bench { redis: Arc::new(redis), postgres: postgres.clone() })
    };
    let (bench, turned) = (bench(prefix)?, bench(&format!("{prefix}turned:"))?);
    let sections = sections(&bench, &turned, language).await;
    for bench in [bench, turned] {
        if let Err(error) = bench.delete(&bench.keys()).await {
            tracing::debug!(%error, "the keys of a lesson stay");
        }
    }
    Ok(IdsBody { sections: sections? })
}

async fn sections(
    bench: &Bench,
    turned: &Bench,
    language: Language,
) -> Result<Vec<SectionBody>, PurchaseError> {
    let say = &|en, zh| Words::new(en, zh).say(language);
    // The first lease sets a floor in Postgres, which is not to be measured.
    let first = bench.take(&bench.generator(), 1).await?;
    let id = *first.first().ok_or_else(|| PurchaseError::Other("no id".to_owned()))?;
    Ok(vec![
        layout(id, say),
        measured(bench, say).await?,
        two_instances(bench, say).await?,
        lost_counter(bench, say).await?,
        clock_step(turned, say).await?,
        json_numbers(id, say),
    ])
}

fn layout(id: OrderId, say: Say<'_>) -> SectionBody {
    let (second, sequence) = decode(id);
    let bits = format!("{:064b}", id.get());
    let made = made_at(id).format(&time::format_description::well_known::Rfc3339);
    let made = made.unwrap_or_else(|_| second.to_string());
    let row = |part, bits: &str, value: String| vec![json!(part), json!(bits), json!(value)];
    let section = section(
        say("What is in an order number", "订单号里有什么"),
        say(
            "64 bits: a zero (so that it is never negative), 31 bits of seconds since 2025-01-01 \
             UTC, 32 bits of a number that a Redis counter gave out that day. This one was made \
             for you just now. From 《秒杀》 (course notes): the counter, one a day, also tells how \
             many numbers a day took.",
            "共 64 位：最高位 0（保证不为负），31 位是自 2025-01-01 UTC 起的秒数，32 位是当天由 Redis 计数器发出的序号。下面这个是刚刚为你生成的。思路\
             来自课程笔记《秒杀》：每天一个计数器，还能顺便统计当天发了多少号。",
        ),
        &[say("part", "部分"), say("bits", "位"), say("value", "值")],
        vec![
            row(say("the whole", "整个订单号"), "64", id.to_string()),
            row(say("sign", "符号"), &bits[..1], "0".to_owned()),
            row(say("second", "秒"), &bits[1..32], made),
            row(say("number of the day", "当天序号"), &bits[32..], sequence.to_string()),
        ],
    );
    SectionBody {
        code: Some("Some(OrderId::from_i64(seconds << 32 | i64::from(sequence)))"),
        ..section
    }
}

async fn measured(bench: &Bench, say: Say<'_>) -> Result<SectionBody, PurchaseError> {
    // One INCR an id, as the course notes have it.
    let mut connection = bench.redis.pooled().await?;
    let counter = format!("{}incr", bench.redis.keys.id_clock(IdLane::Whole));
    let increment = redis::cmd("INCR").arg(&counter).to_owned();
    let began = Instant::now();
    for _ in 0..MEASURED {
        increment.exec_async(&mut connection).await?;
    }
    let each = began.elapsed();
    bench.delete(&[counter]).await?;
    let generator = bench.generator();
    let began = Instant::now();
    let mut ids = Vec::with_capacity(MEASURED);
    while ids.len() < MEASURED {
        generator.take(&mut connection, BATCH, &mut ids).await?;
    }
    let leased = began.elapsed();
    // Leases double while they run out: 64, 128, …
    let round_trips = (1u32..).find(|leases| 64 * ((1 << leases) - 1) >= MEASURED);
    let row = |way, took: Duration, round_trips: usize| {
        let per_number = took.as_secs_f64().max(1e-9) / MEASURED as f64;
        let (micros, per_second) = (per_number * 1e6, 1.0 / per_number);
        let (micros, per_second) = (format!("{micros:.2}"), format!("{per_second:.0}"));
        vec![json!(way), json!(micros), json!(per_second), cell(round_trips)]
    };
    Ok(section(
        say("One INCR a number, or a block at a time", "每个号一次 INCR，还是一次租一段"),
        say(
            "Times measured just now on this machine, 400 numbers each way; the round trips are \
             computed: one for each INCR, and for leases as many as blocks of 64, 128, … it takes \
             to make 400. An instance leases a block with one INCRBY and hands its numbers out \
             from memory, for a second at most; blocks double while they run out and shrink while \
             they are wasted.",
            "耗时是刚刚在这台机器上实测的，两种方式各取 400 个号；往返次数是计算出来的：每次 INCR 一次，租用则是 64、128……逐段加到 400 所需的段数。实例用一次 \
             INCRBY 租下一段，在内存里分发，最多用一秒；用完得快就加倍，用不完就减半。",
        ),
        &[
            say("way", "方式"),
            say("µs a number", "每个号 µs"),
            say("numbers a second", "每秒号数"),
            say("round trips (computed)", "往返次数（计算值）"),
        ],
        vec![
            row("INCR", each, MEASURED),
            row(say("leased blocks", "租用号段"), leased, round_trips.unwrap_or(0) as usize),
        ],
    ))
}

async fn two_instances(bench: &Bench, say: Say<'_>) -> Result<SectionBody, PurchaseError> {
    let (one, two) = (bench.generator(), bench.generator());
    let (mut rows, mut all) = (Vec::new(), Vec::new());
    for (name, generator) in [("A", &one), ("B", &two), ("A", &one), ("B", &two)] {
        let ids = bench.take(generator, 40).await?;
        if let (Some(first), Some(last)) = (ids.first(), ids.last()) {
            rows.push(vec![json!(name), cell(decode(*first).1), cell(decode(*last).1)]);
        }
        all.extend(ids);
    }
    let text = say(
        "Two instances lease from the same counter, in turns. Their blocks never overlap: INCRBY \
         gives each its own. Numbers that an instance leased and did not use are skipped, never \
         given out again. Of {count} ids, {distinct} were different.",
        "两个实例轮流从同一个计数器租号段。号段绝不重叠：每次 INCRBY 得到的都是自己的一段。租了没用完的号会被跳过，绝不重发。{count} 个订单号中，不同的有 \
         {distinct} 个。",
    );
    let columns = [
        say("instance", "实例"),
        say("first number", "第一个序号"),
        say("last number", "最后一个序号"),
    ];
    let title = say("Two instances", "两个实例");
    Ok(section(title, counted(text, &all), &columns, rows))
}

/// The columns of [`row_of`].
fn columns(first: &'static str, say: Say<'_>) -> [&'static str; 4] {
    let second = say("Unix second", "Unix 秒");
    [first, second, say("number", "序号"), say("id", "订单号")]
}

async fn lost_counter(bench: &Bench, say: Say<'_>) -> Result<SectionBody, PurchaseError> {
    let generator = bench.generator();
    let before = bench.take(&generator, 3).await?;
    bench.delete(&bench.keys()).await?;
    generator.discard_leases().await;
    let after = bench.take(&generator, 3).await?;
    let row = |when| move |id: &OrderId| row_of(when, *id);
    let mut rows: Vec<_> = before.iter().map(row(say("before", "丢失前"))).collect();
    rows.extend(after.iter().map(row(say("after", "丢失后"))));
    let repeated = after.iter().filter(|id| before.contains(id)).count();
    let text = say(
        "The counter was deleted just now, as a Redis does that lost its data. It counts from one \
         again, so the numbers of the day repeat. The ids do not: the function that leases sees \
         that the counter is gone and gives nothing out until Postgres has named a floor, a second \
         later than any that was ever given. Repeated ids: {repeated}.",
        "刚刚删掉了计数器，就像 Redis 丢了数据。它会从 1 重新计数，于是当天的序号会重复。但订单号不会：租号函数发现计数器没了，就不发号，直到 Postgres 给出一个下限，即比\
         以往任何一秒都晚的一秒。重复的订单号：{repeated} 个。",
    );
    let text = text.replace("{repeated}", &repeated.to_string());
    let columns = columns(say("when", "时刻"), say);
    let title = say("A lost counter", "计数器丢失");
    Ok(section(title, text, &columns, rows))
}

/// How the function that leases reads the clock.
const READS_THE_CLOCK: &str = "tonumber(redis.call('TIME')[1])";

/// Takes two ids with the clock put back by so many seconds.
async fn take_turned(bench: &Bench, back: i64) -> Result<Vec<OrderId>, PurchaseError> {
    let reads = format!("({READS_THE_CLOCK} - {back})");
    let name = format!("back_{}", uuid::Uuid::new_v4().simple());
    let library = Library::variant(&name, READS_THE_CLOCK, &reads);
    let delete = redis::cmd("FUNCTION").arg("DELETE").arg(library.name()).to_owned();
    let ids = bench.take(&bench.generator().with(library), 2).await?;
    delete.exec_async(&mut bench.redis.pooled().await?).await?;
    Ok(ids)
}

async fn clock_step(bench: &Bench, say: Say<'_>) -> Result<SectionBody, PurchaseError> {
    let (keys, lane) = (&bench.redis.keys, IdLane::Whole);
    let mut connection = bench.redis.pooled().await?;
    // The floor of a Redis that was approved a while ago.
    let floor = OffsetDateTime::now_utc() - RUNNING_FOR;
    let (day, second) = (floor.date(), floor.unix_timestamp());
    functions::floor_ids(&mut connection, keys, lane, day, second).await?;
    let (mut rows, mut all) = (Vec::new(), Vec::new());
    let mut take = async |back: i64, after: &str| {
        let ids = take_turned(bench, back).await?;
        rows.extend(ids.iter().map(|id| row_of(format!("-{back} s{after}"), *id)));
        all.extend(ids);
        Ok::<_, PurchaseError>(())
    };
    for back in [0, 1, 60, 3_600] {
        take(back, "").await?;
    }
    // As after a restart: this process has no floor.
    let restart = redis::cmd("HDEL").arg(keys.id_clock(lane)).arg("approved").to_owned();
    restart.exec_async(&mut connection).await?;
    take(3_600, say(", after a restart", "，重启之后")).await?;
    let text = say(
        "Run just now with the clock put back before each lease: the generator and its Lua \
         function are the real ones, only what the function reads as Redis' time is wrong. \
         Generators that take a time and a counter which starts anew every millisecond repeat \
         themselves then. Here the counter goes on for the whole day, whatever the second: an \
         earlier second meets a number that no id of the day has. Only the order suffers. And the \
         clock never goes back behind the floor that Postgres gives out for every new Redis \
         process: in the last rows, after a restart, the same wrong clock changes nothing. Of \
         {count} ids, {distinct} were different.",
        "刚刚实跑：每次租号之前把时钟往回拨；生成器和 Lua 函数都是真的，只有函数读到的 Redis 时间是错的。有的生成器用“时间 + 每毫秒清零的计数”，这时就会重号。这里的计数器整\
         天不清零，与秒无关：更早的秒配上的是当天从未用过的序号。受影响的只是先后顺序。而且时钟不会退到下限之前：每个新的 Redis 进程都会从 Postgres 得到一个下限；最后几行是\
         重启之后，同样的错误时钟不再有任何影响。{count} 个订单号中，不同的有 {distinct} 个。",
    );
    let columns = columns(say("clock", "时钟"), say);
    let title = say("A clock that is put back", "时钟回拨");
    Ok(section(title, counted(text, &all), &columns, rows))
}

fn json_numbers(id: OrderId, say: Say<'_>) -> SectionBody {
    // The first whole number that a double rounds.
    const EDGE: i64 = (1 << 53) + 1;
    #[expect(clippy::cast_precision_loss, reason = "the loss is what is shown")]
    #[expect(clippy::cast_possible_truncation, reason = "the loss is what is shown")]
    let as_double = |number: i64| (number as f64) as i64;
    let row = |number: i64| {
        let read = as_double(number);
        vec![cell(number), cell(read), cell(read - number)]
    };
    let section = section(
        say("Why JSON needs strings", "为什么 JSON 里要用字符串"),
        say(
            "JavaScript reads every JSON number as a double: 53 bits. An order number has 63. So \
             the API writes ids as strings; as a number, the browser would ask for somebody else's \
             order.",
            "JavaScript 把所有 JSON 数字都当作双精度浮点数：只有 53 位。订单号有 63 位。所以 API 用字符串表示编号；若用数字，浏览器可能会去查别人的订单。",
        ),
        &[
            say("the id", "订单号"),
            say("what JavaScript makes of it", "JavaScript 读到的"),
            say("off by", "相差"),
        ],
        [EDGE, id.get(), id.get() | 1, id.get() + 2].map(row).to_vec(),
    );
    SectionBody {
        code: Some("JSON.parse('{\"order_id\": 9007199254740993}').order_id // 9007199254740992"),
        ..section
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_function_that_leases_reads_the_clock_where_it_is_turned() {
        let source = include_str!("../redis/library/ids.lua");
        assert_eq!(source.matches(READS_THE_CLOCK).count(), 1);
        assert_eq!(source.matches("'TIME'").count(), 1);
    }
}
