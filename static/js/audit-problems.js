// What an audit finds broken, in Chinese: the server tells it in English. No DOM.

const KNOWN = [
  [/^I1 broken: (\d+) live orders on a stock of (\d+)$/, 'I1 被破坏：$1 笔有效订单，库存只有 $2 件'],
  [/^I2 broken: (\d+) users hold more live orders than the sale allows$/, 'I2 被破坏：$1 位买家的有效订单超过限购'],
  [/^I4 broken in postgres: the counter says (-?\d+) taken, (\d+) orders are live$/, 'I4 在 Postgres 中被破坏：计数器说卖出 $1 件，有效订单 $2 笔'],
  [/^I1 broken in redis: (-?\d+) units remain$/, 'I1 在 Redis 中被破坏：剩余 $1 件'],
  [/^I3 broken: (-?\d+) orders are counted as waiting, but the log holds (\d+)$/, 'I3 被破坏：记着 $1 笔订单在等待写入，日志里却有 $2 笔'],
  [/^redis has epoch (\S+), postgres epoch (\S+)$/, 'Redis 在第 $1 纪元，Postgres 在第 $2 纪元'],
  [/^I4 broken in redis: a stock of (-?\d+) is not (-?\d+) remaining \+ (\d+) held$/, 'I4 在 Redis 中被破坏：库存 $1 不等于剩余 $2 加持有 $3'],
  [/^I4 broken: redis knows a stock of (-?\d+), postgres of (-?\d+)$/, 'I4 被破坏：Redis 记的库存是 $1，Postgres 记的是 $2'],
  [/^I4 broken: (-?\d+) remain in redis, but (\d+) in stock - (\d+) live orders is (-?\d+)$/, 'I4 被破坏：Redis 里剩余 $1 件，而库存 $2 减有效订单 $3 是 $4'],
  [/^I3 broken: accepted orders that are neither live in postgres nor waiting: (.*)$/, 'I3 被破坏：已接受的订单既不在 Postgres 里，也不在等待：$1'],
  [/^I3 broken: live orders in postgres that redis never accepted: (.*)$/, 'I3 被破坏：Postgres 里有 Redis 从未接受过的有效订单：$1'],
];

/** The same in Chinese; null for what a later server may say. */
export function inChinese(problem) {
  const [pattern, words] = KNOWN.find(([known]) => known.test(problem)) ?? [];
  return pattern ? problem.replace(pattern, words).replace(/ \(for example (.*)\)$/, '（例如 $1）') : null;
}
