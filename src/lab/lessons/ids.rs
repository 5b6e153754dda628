//! The lesson on order numbers: what is in one, what leasing blocks saves, and what happens to the counter
//! and to the clock. Real runs of the real generator, below a key prefix of their own; where the clock is
//! put back, the script that leases reads it through [`Turned`].

use super::Trouble;
use crate::{
    domain::OrderId,
    fail_point::FailPoints,
    lab::strategy::{Language, Words},
    redis::{
        Redis, functions,
        keys::IdLane,
        library::{LIBRARY, Library},
    },
    sale::ids::{IdError, IdGenerator, decode, made_at},
};
use redis::{Arg, Cmd, Pipeline, RedisFuture, Value, aio::ConnectionLike};
use serde::Serialize;
use serde_json::{Value as Json, json};
use sqlx::PgPool;
use std::{collections::HashSet, sync::Arc, time::Instant};
use time::OffsetDateTime;
use utoipa::ToSchema;

/// How many numbers are taken for a measurement.
const MEASURED: usize = 400;
/// How many orders a gate asks for at once, about.
const BATCH: usize = 50;
/// The Redis whose clock is put back, which is further than it will be put back.
const RUNNING_FOR: time::Duration = time::Duration::hours(2);

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = IdLesson)]
pub struct IdsBody {
    pub sections: Vec<SectionBody>,
}

/// Words, and a table or code if there is something to show.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = IdSection)]
pub struct SectionBody {
    pub title: &'static str,
    pub text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub columns: Option<Vec<&'static str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<Vec<Vec<Json>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
}

impl From<IdError> for Trouble {
    fn from(error: IdError) -> Self {
        match error {
            IdError::Redis(error) => Self::Redis(error),
            IdError::Postgres(error) => Self::Postgres(error),
            other => Self::NotAsWritten(other.to_string()),
        }
    }
}

/// One generator on a prefix of this run alone.
struct Bench {
    redis: Arc<Redis>,
    postgres: PgPool,
}

impl Bench {
    fn generator(&self) -> IdGenerator {
        IdGenerator::new(
            self.redis.clone(),
            (&self.postgres).into(),
            FailPoints::default(),
        )
    }

    async fn take(&self, generator: &IdGenerator, count: usize) -> Result<Vec<OrderId>, Trouble> {
        let mut ids = Vec::with_capacity(count);
        let mut connection = self.redis.pooled().await?;
        generator.take(&mut connection, count, &mut ids).await?;
        Ok(ids)
    }

    async fn delete(&self, keys: &[String]) -> Result<(), Trouble> {
        let mut connection = self.redis.pooled().await?;
        redis::cmd("DEL")
            .arg(keys)
            .exec_async(&mut connection)
            .await?;
        Ok(())
    }

    /// Today's counter and the clock. Around midnight, also those of its neighbours.
    fn keys(&self) -> Vec<String> {
        let today = time::OffsetDateTime::now_utc().date();
        let days = [today.previous_day(), Some(today), today.next_day()];
        let counters = days
            .into_iter()
            .flatten()
            .map(|day| self.redis.keys.id_counter(IdLane::Whole, day));
        counters
            .chain([self.redis.keys.id_clock(IdLane::Whole)])
            .collect()
    }
}

/// Runs everything; takes some hundred milliseconds.
pub async fn lesson(
    postgres: &PgPool,
    redis_url: &str,
    prefix: &str,
    language: Language,
) -> Result<IdsBody, Trouble> {
    let prefix = format!("{prefix}lab:ids:{}:", uuid::Uuid::new_v4().simple());
    let bench = |prefix: &str| -> Result<Bench, Trouble> {
        Ok(Bench {
            redis: Arc::new(Redis::new(redis_url, prefix)?),
            postgres: postgres.clone(),
        })
    };
    let (bench, turned) = (bench(&prefix)?, bench(&format!("{prefix}turned:"))?);
    let told = sections(&bench, &turned, language).await;
    for bench in [bench, turned] {
        if let Err(error) = bench.delete(&bench.keys()).await {
            tracing::debug!(%error, "the keys of a lesson stay");
        }
    }
    Ok(IdsBody { sections: told? })
}

async fn sections(
    bench: &Bench,
    turned: &Bench,
    language: Language,
) -> Result<Vec<SectionBody>, Trouble> {
    let say = |en: &'static str, zh: &'static str| Words::new(en, zh).say(language);
    let generator = bench.generator();
    // The first lease of a prefix sets a floor, which costs Postgres a write: not part of the measurement.
    let first = bench.take(&generator, 1).await?;
    let Some(&id) = first.first() else {
        return Err(Trouble::NotAsWritten("no id".to_owned()));
    };
    Ok(vec![
        layout(id, say),
        measured(bench, say).await?,
        two_instances(bench, say).await?,
        lost_counter(bench, say).await?,
        clock_step(turned, say).await?,
        json_numbers(id, say),
    ])
}

fn layout(id: OrderId, say: impl Fn(&'static str, &'static str) -> &'static str) -> SectionBody {
    let (second, sequence) = decode(id);
    let bits = format!("{:064b}", id.get());
    let made = made_at(id).format(&time::format_description::well_known::Rfc3339);
    SectionBody {
        title: say("What is in an order number", "订单号里有什么"),
        text: say(
            "64 bits: a zero (so that it is never negative), 31 bits of seconds since 2025-01-01 UTC, 32 bits of a number that a Redis counter gave out that day. This one was made for you just now. From 《秒杀》 (course notes): the counter, one a day, also tells how many numbers a day took.",
            "共 64 位：最高位 0（保证不为负），31 位是自 2025-01-01 UTC 起的秒数，32 位是当天由 Redis 计数器发出的序号。下面这个是刚刚为你生成的。思路来自课程笔记《秒杀》：每天一个计数器，还能顺便统计当天发了多少号。",
        )
        .to_owned(),
        columns: Some(vec![say("part", "部分"), say("bits", "位"), say("value", "值")]),
        rows: Some(vec![
            vec![json!(say("the whole", "整个订单号")), json!("64"), json!(id.get().to_string())],
            vec![json!(say("sign", "符号")), json!(&bits[..1]), json!("0")],
            vec![json!(say("second", "秒")), json!(&bits[1..32]), json!(made.unwrap_or_else(|_| second.to_string()))],
            vec![json!(say("number of the day", "当天序号")), json!(&bits[32..]), json!(sequence.to_string())],
        ]),
        code: Some("Some(OrderId::from_i64(seconds << 32 | i64::from(sequence)))"),
    }
}

async fn measured(
    bench: &Bench,
    say: impl Fn(&'static str, &'static str) -> &'static str,
) -> Result<SectionBody, Trouble> {
    // One INCR an id, as the course notes have it.
    let mut connection = bench.redis.pooled().await?;
    let counter = format!("{}incr", bench.redis.keys.id_clock(IdLane::Whole));
    let began = Instant::now();
    for _ in 0..MEASURED {
        let _: i64 = redis::cmd("INCR")
            .arg(&counter)
            .query_async(&mut connection)
            .await?;
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
    let per =
        |total: std::time::Duration| format!("{:.2}", total.as_secs_f64() * 1e6 / MEASURED as f64);
    let per_second = |total: std::time::Duration| {
        format!("{:.0}", MEASURED as f64 / total.as_secs_f64().max(1e-9))
    };
    // Leases double while they run out: 64, 128, …
    let round_trips = (0..).scan(0_usize, |sum, n| {
        let before = *sum;
        *sum += 64 << n;
        (before < MEASURED).then_some(())
    });
    Ok(SectionBody {
        title: say("One INCR a number, or a block at a time", "每个号一次 INCR，还是一次租一段"),
        text: say(
            "Times measured just now on this machine, 400 numbers each way; the round trips are computed: one for each INCR, and for leases as many as blocks of 64, 128, … it takes to make 400. An instance leases a block with one INCRBY and hands its numbers out from memory, for a second at most; blocks double while they run out and shrink while they are wasted.",
            "耗时是刚刚在这台机器上实测的，两种方式各取 400 个号；往返次数是计算出来的：每次 INCR 一次，租用则是 64、128……逐段加到 400 所需的段数。实例用一次 INCRBY 租下一段，在内存里分发，最多用一秒；用完得快就加倍，用不完就减半。",
        )
        .to_owned(),
        columns: Some(vec![say("way", "方式"), say("µs a number", "每个号 µs"), say("numbers a second", "每秒号数"), say("round trips (computed)", "往返次数（计算值）")]),
        rows: Some(vec![
            vec![json!("INCR"), json!(per(each)), json!(per_second(each)), json!(MEASURED.to_string())],
            vec![json!(say("leased blocks", "租用号段")), json!(per(leased)), json!(per_second(leased)), json!(round_trips.count().to_string())],
        ]),
        code: None,
    })
}

async fn two_instances(
    bench: &Bench,
    say: impl Fn(&'static str, &'static str) -> &'static str,
) -> Result<SectionBody, Trouble> {
    let (one, two) = (bench.generator(), bench.generator());
    let mut rows = Vec::new();
    let mut all = HashSet::new();
    let mut count = 0;
    for (name, generator) in [("A", &one), ("B", &two), ("A", &one), ("B", &two)] {
        let ids = bench.take(generator, 40).await?;
        count += ids.len();
        if let (Some(first), Some(last)) = (ids.first(), ids.last()) {
            rows.push(vec![
                json!(name),
                json!(decode(*first).1.to_string()),
                json!(decode(*last).1.to_string()),
            ]);
        }
        all.extend(ids);
    }
    let text = say(
        "Two instances lease from the same counter, in turns. Their blocks never overlap: INCRBY gives each its own. Numbers that an instance leased and did not use are skipped, never given out again. Of {count} ids, {distinct} were different.",
        "两个实例轮流从同一个计数器租号段。号段绝不重叠：每次 INCRBY 得到的都是自己的一段。租了没用完的号会被跳过，绝不重发。{count} 个订单号中，不同的有 {distinct} 个。",
    );
    Ok(SectionBody {
        title: say("Two instances", "两个实例"),
        text: text
            .replace("{count}", &count.to_string())
            .replace("{distinct}", &all.len().to_string()),
        columns: Some(vec![
            say("instance", "实例"),
            say("first number", "第一个序号"),
            say("last number", "最后一个序号"),
        ]),
        rows: Some(rows),
        code: None,
    })
}

async fn lost_counter(
    bench: &Bench,
    say: impl Fn(&'static str, &'static str) -> &'static str,
) -> Result<SectionBody, Trouble> {
    let generator = bench.generator();
    let before = bench.take(&generator, 3).await?;
    bench.delete(&bench.keys()).await?;
    generator.discard_leases().await;
    let after = bench.take(&generator, 3).await?;
    let rows = |when: &'static str, ids: &[OrderId]| -> Vec<Vec<Json>> {
        let row = |id: &OrderId| {
            let (second, number) = decode(*id);
            vec![
                json!(when),
                json!(second.to_string()),
                json!(number.to_string()),
                json!(id.get().to_string()),
            ]
        };
        ids.iter().map(row).collect()
    };
    let mut table = rows(say("before", "丢失前"), &before);
    table.extend(rows(say("after", "丢失后"), &after));
    let repeated = after.iter().filter(|id| before.contains(id)).count();
    let text = say(
        "The counter was deleted just now, as a Redis does that lost its data. It counts from one again, so the numbers of the day repeat. The ids do not: the function that leases sees that the counter is gone and gives nothing out until Postgres has named a floor, a second later than any that was ever given. Repeated ids: {repeated}.",
        "刚刚删掉了计数器，就像 Redis 丢了数据。它会从 1 重新计数，于是当天的序号会重复。但订单号不会：租号函数发现计数器没了，就不发号，直到 Postgres 给出一个下限，即比以往任何一秒都晚的一秒。重复的订单号：{repeated} 个。",
    );
    Ok(SectionBody {
        title: say("A lost counter", "计数器丢失"),
        text: text.replace("{repeated}", &repeated.to_string()),
        columns: Some(vec![
            say("when", "时刻"),
            say("Unix second", "Unix 秒"),
            say("number", "序号"),
            say("id", "订单号"),
        ]),
        rows: Some(table),
        code: None,
    })
}

async fn clock_step(
    bench: &Bench,
    say: impl Fn(&'static str, &'static str) -> &'static str,
) -> Result<SectionBody, Trouble> {
    let keys = &bench.redis.keys;
    let mut connection = bench.redis.pooled().await?;
    // As in a Redis that has run for a while: the floor is where it was when that one was approved.
    let floor = OffsetDateTime::now_utc() - RUNNING_FOR;
    functions::floor_ids(
        &mut connection,
        keys,
        IdLane::Whole,
        floor.date(),
        floor.unix_timestamp(),
    )
    .await?;
    let generator = bench.generator();
    let mut rows = Vec::new();
    let mut all = HashSet::new();
    let mut count = 0;
    let mut take = async |back: i64, after: &str| {
        // A lease keeps its second for as long as it is used, a second at most.
        generator.discard_leases().await;
        let mut ids = Vec::new();
        let mut turned = Turned::load(&mut connection, back).await?;
        generator.take(&mut turned, 2, &mut ids).await?;
        turned.unload().await?;
        for id in &ids {
            let (second, number) = decode(*id);
            rows.push(vec![
                json!(format!("-{back} s{after}")),
                json!(second.to_string()),
                json!(number.to_string()),
                json!(id.get().to_string()),
            ]);
        }
        count += ids.len();
        all.extend(ids);
        Ok::<_, Trouble>(())
    };
    for back in [0, 1, 60, 3_600] {
        take(back, "").await?;
    }
    // What a restart makes of it: the process is not the one that was given the floor.
    redis::cmd("HDEL")
        .arg(keys.id_clock(IdLane::Whole))
        .arg("approved")
        .exec_async(&mut bench.redis.pooled().await?)
        .await?;
    take(3_600, say(", after a restart", "，重启之后")).await?;
    let text = say(
        "Run just now with the clock put back before each lease: the generator and its Lua function are the real ones, only what the function reads as Redis' time is wrong. Generators that take a time and a counter which starts anew every millisecond repeat themselves then. Here the counter goes on for the whole day, whatever the second: an earlier second meets a number that no id of the day has. Only the order suffers. And the clock never goes back behind the floor that Postgres gives out for every new Redis process: in the last rows, after a restart, the same wrong clock changes nothing. Of {count} ids, {distinct} were different.",
        "刚刚实跑：每次租号之前把时钟往回拨；生成器和 Lua 函数都是真的，只有函数读到的 Redis 时间是错的。有的生成器用“时间 + 每毫秒清零的计数”，这时就会重号。这里的计数器整天不清零，与秒无关：更早的秒配上的是当天从未用过的序号。受影响的只是先后顺序。而且时钟不会退到下限之前：每个新的 Redis 进程都会从 Postgres 得到一个下限；最后几行是重启之后，同样的错误时钟不再有任何影响。{count} 个订单号中，不同的有 {distinct} 个。",
    );
    Ok(SectionBody {
        title: say("A clock that is put back", "时钟回拨"),
        text: text
            .replace("{count}", &count.to_string())
            .replace("{distinct}", &all.len().to_string()),
        columns: Some(vec![
            say("clock", "时钟"),
            say("Unix second", "Unix 秒"),
            say("number", "序号"),
            say("id", "订单号"),
        ]),
        rows: Some(rows),
        code: None,
    })
}

/// A connection to a Redis whose clock was put back: the function that leases reads the time so many
/// seconds earlier, and everything else is as it is. (The clock of a server cannot be set from here.)
struct Turned<'c, C> {
    connection: &'c mut C,
    library: Library,
}

/// How that function reads the clock.
const READS_THE_CLOCK: &str = "tonumber(redis.call('TIME')[1])";

impl<'c, C: ConnectionLike> Turned<'c, C> {
    async fn load(connection: &'c mut C, back: i64) -> Result<Self, redis::RedisError> {
        let reads = format!("({READS_THE_CLOCK} - {back})");
        let name = format!("back_{}", uuid::Uuid::new_v4().simple());
        let library = Library::variant(&name, READS_THE_CLOCK, &reads);
        library.load(connection).await?;
        Ok(Self {
            connection,
            library,
        })
    }

    async fn unload(self) -> Result<(), redis::RedisError> {
        let mut delete = redis::cmd("FUNCTION");
        delete.arg("DELETE").arg(self.library.name());
        delete.exec_async(self.connection).await
    }
}

impl<C> Turned<'_, C> {
    /// The same call with the clock as it was turned; `None`: this one does not read it.
    fn turned(&self, command: &Cmd) -> Option<Cmd> {
        let mut arguments = command.args_iter().filter_map(|argument| match argument {
            Arg::Simple(bytes) => Some(bytes),
            _ => None,
        });
        let lease = LIBRARY.name_of("lease_ids");
        if arguments.next() != Some(b"FCALL") || arguments.next() != Some(lease.as_bytes()) {
            return None;
        }
        let mut call = redis::cmd("FCALL");
        call.arg(self.library.name_of("lease_ids"));
        arguments.for_each(|argument| {
            call.arg(argument);
        });
        Some(call)
    }
}

impl<C: ConnectionLike + Send> ConnectionLike for Turned<'_, C> {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        let turned = self.turned(command);
        Box::pin(async move {
            let command = turned.as_ref().unwrap_or(command);
            self.connection.req_packed_command(command).await
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        commands: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.connection.req_packed_commands(commands, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }
}

fn json_numbers(
    id: OrderId,
    say: impl Fn(&'static str, &'static str) -> &'static str,
) -> SectionBody {
    #[expect(clippy::cast_precision_loss, reason = "the loss is what is shown")]
    #[expect(clippy::cast_possible_truncation, reason = "the loss is what is shown")]
    let as_double = |number: i64| (number as f64) as i64;
    let row = |number: i64| {
        let read = as_double(number);
        vec![
            json!(number.to_string()),
            json!(read.to_string()),
            json!((read - number).to_string()),
        ]
    };
    // The first whole number that a double cannot tell from its neighbour.
    const EDGE: i64 = (1 << 53) + 1;
    SectionBody {
        title: say("Why JSON needs strings", "为什么 JSON 里要用字符串"),
        text: say(
            "JavaScript reads every JSON number as a double: 53 bits. An order number has 63. So the API writes ids as strings; as a number, the browser would ask for somebody else's order.",
            "JavaScript 把所有 JSON 数字都当作双精度浮点数：只有 53 位。订单号有 63 位。所以 API 用字符串表示编号；若用数字，浏览器可能会去查别人的订单。",
        )
        .to_owned(),
        columns: Some(vec![say("the id", "订单号"), say("what JavaScript makes of it", "JavaScript 读到的"), say("off by", "相差")]),
        rows: Some(vec![row(EDGE), row(id.get()), row(id.get() | 1), row(id.get() + 2)]),
        code: Some("JSON.parse('{\"order_id\": 9007199254740993}').order_id // 9007199254740992"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_function_that_leases_reads_the_clock_where_it_is_turned() {
        let source = include_str!("../../redis/library/ids.lua");
        assert_eq!(source.matches(READS_THE_CLOCK).count(), 1);
        assert_eq!(source.matches("'TIME'").count(), 1);
    }
}
