// What the server's lab answers, small and by the API's document: for states of the pages that a
// real race does not bring about at will, such as no ZooKeeper, too many arenas, or a lab that is
// off.

const CODE = (body) => `// --- the purchase
impl Purchase for Lesson {
    /// One attempt: \`<b>\` is no markup here.
    async fn buy(&self, bench: &Bench, user: &str) -> Result<Outcome, Failure> {
        debug!(user, "one attempt");
        let mut tx = bench.sql.begin().await?;
${body}
        sqlx::query("INSERT INTO lab.orders (arena, user_id) VALUES ($1, $2)").bind(user).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(Outcome::Sold)
    }
}
`;
const NAIVE = CODE(`        let stock: i64 = tx.read("SELECT stock FROM lab.stock WHERE arena = $1").await?;
        bench.interleaving_point("read the stock").await; // another buyer may come in here
        if stock < 1 { return Ok(Outcome::SoldOut); }
        tx.write("UPDATE lab.stock SET stock = $2 WHERE arena = $1", stock - 1).await?;`);
const GUARDED = CODE(`        let taken = tx.write("UPDATE lab.stock SET stock = stock - 1 WHERE arena = $1 AND stock > 0").await?;
        if taken == 0 { return Ok(Outcome::SoldOut); }`);

/**
 * An excerpt as the server cuts it: the mark's own line is `marked_line`, the next one is what it
 * marks.
 */
const mark = (kind, words, code, file = 'crates/lab/src/strategies/naive.rs', first_line = 40) => ({ kind, words, file, first_line, marked_line: first_line + 3, code });
const FLAWED = (say) => [
  mark('flaw', say('Nothing keeps the next buyer from reading the same number.', '没有什么能阻止下一个买家读到同一个数。'), 'async fn buy() {\n    let mut tx = begin().await?;\n    // look\n    //= FLAW\n    let stock = tx.read("SELECT stock").await?;\n    if stock < 1 { return Ok(SoldOut); }\n    work().await;\n    // write\n}\n'),
  mark('flaw', say('It writes what it read before the others wrote.', '写回的是别人写之前读到的数。'), 'a();\nb();\nc();\n//= FLAW\ntx.write("UPDATE lab.stock SET stock = $2", stock - 1).await?;\n'),
];
const CURED = (say) => [mark('cure', say('Check and write in one step.', '判断与扣减一步完成。'), 'x();\ny();\nz();\n--= CURE\nUPDATE lab.stock SET stock = stock - 1 WHERE stock > 0\n', 'crates/lab/src/strategies/conditional_update.rs')];

const NEVER = { oversells: 'never', undersells: 'never', duplicates: 'never' };
const BROKEN = { oversells: 'expected', undersells: 'never', duplicates: 'possible' };

const strategies = (say) => [
  ['naive', 1, 'Naive', '无保护', 'nothing', { ...BROKEN, across_nodes: BROKEN }, NAIVE],
  ['process-mutex', 2, 'Process mutex', '进程内互斥锁', 'in-process', { ...NEVER, across_nodes: BROKEN }, NAIVE.replace('let mut tx', 'let _guard = self.mutex.lock().await;\n        let mut tx')],
  ['conditional-update', 8, 'Conditional update', '条件更新', 'database', { ...NEVER, across_nodes: NEVER }, GUARDED],
  ['token-lock', 16, 'Token lock', '令牌锁', 'distributed-lock', { ...NEVER, oversells: 'possible', across_nodes: { ...NEVER, oversells: 'possible', undersells: 'possible' } }, NAIVE],
  ['zookeeper-lock', 19, 'ZooKeeper lock', 'ZooKeeper 锁', 'distributed-lock', { ...NEVER, across_nodes: NEVER }, NAIVE],
].map(([id, number, en, zh, family, promise, code]) => ({
  id, number, family, promise, code, title: say(en, zh), lead: say('Look, then take.', '先看，再拿。'), marks: (id === 'conditional-update' ? CURED : FLAWED)(say), needs: id === 'zookeeper-lock' ? ['zookeeper'] : [],
  idea: say('Read the stock, check it, write it back one less.', '读出库存，检查，减一写回。'),
  source: say('What every beginner writes.', '每个初学者都会这样写。'),
  fails: say('Two buyers read the same number before either has written.', '两个买家在写回之前读到了同一个数。'),
  break_it: say('Race it with two buyers at the same moment.', '让两个买家同时来。'),
  instead: say('A conditional update.', '条件更新。'),
  available: id === 'zookeeper-lock' ? { ok: false, why: say('no ZooKeeper runs here; install zookeeper and set ZOOKEEPER', '这里没有 ZooKeeper；请安装 zookeeper') } : { ok: true },
  options: id === 'token-lock' ? [{ name: 'lease_ms', teaches: say('How long the lock lives if nobody releases it.', '没有人释放时锁能活多久。'), default: 200, min: 10, max: 10000 }] : [],
  crash_points: id === 'token-lock' ? ['after the lock'] : [],
  demonstrations: ['naive', 'token-lock'].includes(id) ? [{ id: id === 'naive' ? 'double-click' : 'lease-over', teaches: say('Two buyers, one unit: both get it.', '两个买家，一件商品：都买到了。'), shows: 'duplicates', mark: 1, stock: 1, nodes: 1, per_user_limit: 1, buyers: 2, concurrency: 2, duplicate_share: 0, options: { interleave: 'on' } }] : [],
}));

const general = (say) => [
  { name: 'work_ms', teaches: say('How long the decision takes.', '判断要多久。'), default: 0, min: 0, max: 2000 },
  { name: 'interleave', teaches: say('Makes two buyers stand at the dangerous point at the same moment.', '强迫两个买家同时站在最危险的那一步。'), default: 'on', values: ['on', 'off'] },
  { name: 'pause_ms', teaches: say('The first holder stops for so long.', '第一个持有者停顿这么久。'), default: 0, min: 0, max: 5000 },
  { name: 'crash_at', teaches: say('Where a node dies.', '节点在哪里崩溃。'), default: 'never', values: ['never'] },
];

const latency = (p50) => ({ p50, p95: p50 * 2.5, p99: p50 * 4.1, max: p50 * 9 });
function verdict(strategy, stock, buyers, nodes, say) {
  const bad = strategy === 'naive' || (strategy === 'process-mutex' && nodes > 1);
  const sold = Math.min(buyers, stock) + (bad ? Math.ceil(stock * 0.37) : 0);
  return {
    strategy, stock, attempts: buyers, sold, oversold: Math.max(0, sold - stock), undersold: 0, duplicates: 0, lost: 0, contended: strategy === 'token-lock' ? 41 : 0, failed: 0,
    throughput_per_s: { naive: 812.4, 'process-mutex': 331, 'conditional-update': 1240.7 }[strategy] ?? 402.2, latency_ms: latency(bad ? 9.2 : 14.1), winners_ms: latency(22), losers_ms: latency(4.4),
    round_trips: { redis: strategy === 'token-lock' ? 2 : 0, postgres: bad ? 4 : 3, zookeeper: 0 }, notes: bad ? { 'stock below zero': 37 } : {}, quiet: true, kept_promise: true, collision: bad ? { place: 'the stock is read', buyers: ['buyer-12', 'buyer-47'], at_ms: 3.4, a: { buyer: 'buyer-12', node: 0, read: 7, began_ms: 1.2, sold_ms: 8.5, order_id: '4711' }, b: { buyer: 'buyer-47', node: 0, read: 7, began_ms: 2, sold_ms: 9.1, order_id: '4712' } } : null,
    explanation: bad ? say(`It sold ${sold - stock} units that do not exist: buyers read the same stock before either had written.`, `多卖了 ${sold - stock} 件：买家在写回之前读到了同一个库存。`)
      : say('It sold exactly what there was, and nobody twice.', '不多不少，没有人买到两次。'),
  };
}

function progress(final, part) {
  return { attempts: Math.round(final.attempts * part), of: final.attempts, sold: Math.round(final.sold * Math.min(1, part * 1.6)), oversold: Math.max(0, Math.round(final.sold * Math.min(1, part * 1.6)) - final.stock),
    duplicates: 0, contended: 0, failed: 0, throughput_per_s: final.throughput_per_s * (0.7 + 0.4 * Math.sin(part * 9) ** 2), latency_ms: latency(8 + 6 * part), elapsed_ms: 2000 * part };
}

const lessons = (say) => [['b01', 1, 'A lock for ever', '永远打不开的锁'], ['b03', 3, 'A deletes the lock of B', 'A 删掉了 B 的锁'], ['b04', 4, 'The lease is over, the work is not', '租期到了，活没干完']].map(([id, number, en, zh]) => ({
  id, number, title: say(en, zh), failure: say('The work outlives the lease; the first holder then deletes the lock of the second, and a third walks in.', '活干得比租期久，第一个持有者删掉了第二个的锁，第三个就进来了。'),
  forced_how: say('A is paused until its key is gone.', '让 A 停住，直到它的键消失。'), cure: say('A unique token, compared and deleted in one script.', '唯一令牌，用一个脚本比较并删除。'),
  source: '《突击Redis重大事故现场》',
  options: [{ name: 'lease_ms', teaches: say('How long the lock lives.', '锁能活多久。'), default: 200, min: 50, max: 2000 }, { name: 'token', teaches: say('Whether each holder has a value of its own.', '每个持有者是否有自己的值。'), default: false }],
}));

const LOCK_RS = `//! SET NX PX, released by a plain DEL.
impl Lock for SetPxNoOwner {
    async fn acquire(&self, name: &str, wait: Duration) -> Result<Acquired<Held>, LockError> {
        let reply = self.line.send(&["SET", name, "locked", "NX", "PX", "200"]).await?;
        if reply.is_nil() { return Ok(Acquired::Contended { remaining: None }); }
        Ok(Acquired::Held(Held { name: name.to_owned() }))
    }
    /// The flaw: whoever holds the lock now, it is gone afterwards.
    async fn release(self) -> Result<Released, LockError> {
        self.line.send(&["DEL", &self.name]).await?;
        Ok(Released::Freed)
    }
}
`;
function play(id, say, options, more) {
  const at = (line) => ({ file: 'crates/locks/src/set_px_no_owner.rs', line });
  const held = (owner) => ({ 'lock:phone': { value: options.token ? `7f3a-${owner}` : 'locked', ttl_ms: 200, owner } });
  const gone = { 'lock:phone': { value: null, ttl_ms: null, owner: null } };
  const set = 'SET lock:phone locked NX PX 200';
  const events = [
    [0, 0, 'a', 'redis', 'acquire', { command: set, reply: 'OK' }, say('A takes the lock for 200 ms.', 'A 拿到锁，租期 200 毫秒。'), 4, held('a'), ['a']],
    [3, 0, 'a', null, 'pause', {}, say('A is paused: a long garbage collection, say.', 'A 停住了，比如一次很长的垃圾回收。'), null, held('a'), ['a']],
    [210, 0, 'redis', null, 'expired', {}, say('The lease is over. Redis forgets the key; A does not know.', '租期到了，Redis 忘掉了键，A 不知道。'), null, gone, ['a']],
    [214, 0, 'b', 'redis', 'acquire', { command: set, reply: 'OK' }, say('B takes the lock. Now two believe that they hold it.', 'B 拿到锁。现在两个人都以为自己持有它。'), 4, held('b'), ['a', 'b'], true],
    [240, 0, 'a', 'redis', 'release', { command: 'DEL lock:phone', reply: '1' }, say('A wakes up and deletes the lock, which is B’s.', 'A 醒来，删掉了锁，而那是 B 的。'), 10, gone, ['b']],
    [244, 0, 'a', 'stock', 'write', { command: 'UPDATE stock SET units = 9', reply: 'UPDATE 1' }, say('A writes what it had calculated long ago.', 'A 写下了它很久以前算好的数。'), null, gone, ['b']],
    [300, 1, 'a', 'redis', 'acquire', { command: 'SET lock:phone 7f3a NX PX 200', reply: '(reply lost: OK)' }, say('Again, with a token of its own.', '再来一次，这回有自己的令牌。'), 4, held('a'), ['a']],
    [520, 1, 'b', 'redis', 'acquire', { command: 'SET lock:phone 91bc NX PX 200', reply: 'OK' }, say('The lease of A is over; B takes the lock.', 'A 的租期到了，B 拿到锁。'), 4, held('b'), ['b']],
    [530, 1, 'a', 'redis', 'release', { command: 'EVALSHA release.lua lock:phone 7f3a', reply: '0' }, say('A’s token is not there any more: nothing is deleted, and A is told.', 'A 的令牌已不在：什么也没删，A 也知道了。'), 10, held('b'), ['b']],
  ].map(([t_ms, act, actor, to, step, detail, words, line, key_state, believers, overlap = false]) => ({ t_ms, act, actor, ...(to && { to }), ...(step === 'expired' && { staged: true }), step, detail, say: words, ...(line && { line: at(line) }), key_state, believers, overlap }));
  const broken = { held: false, broken: true, why: say('B’s lock was deleted by A.', 'B 的锁被 A 删掉了。') }, kept = { held: true, broken: false, why: say('Only its owner could delete it.', '只有主人能删掉它。') };
  return {
    lesson: id, repeats: 0, recorded: false, ...more, title: say('A deletes the lock of B', 'A 删掉了 B 的锁'),
    actors: [{ id: 'a', name: say('Client A', '客户 A'), kind: 'client' }, { id: 'b', name: say('Client B', '客户 B'), kind: 'client' }, { id: 'redis', name: 'Redis', kind: 'redis' }, { id: 'stock', name: say('The stock', '库存'), kind: 'resource' }],
    acts: [{ id: 'failure', title: say('DEL without asking', '不问主人就 DEL'), kind: 'failure', say: say('The value is the same for everybody.', '所有人的值都一样。'), first: 0, last: 5, verdict: broken, marks: FLAWED(say) },
      { id: 'cure', title: say('Compare and delete', '比较再删除'), kind: 'cure', say: say('The value says whose lock it is.', '值说明了锁是谁的。'), first: 6, last: 8, verdict: kept, marks: CURED(say) }],
    events, code: { 'crates/locks/src/set_px_no_owner.rs': LOCK_RS }, verdict: kept,
  };
}

function locks(say) {
  const cell = (holds, en, zh) => ({ holds, why: say(en, zh), test: 'locks::an_unlock_of_somebody_elses_lock_reported_as_success' });
  return {
    properties: [['mutual_exclusion', 'Mutual exclusion', '互斥'], ['no_deadlock', 'No deadlock after a crash', '崩溃后不死锁'], ['node_failure', 'Tolerates failed nodes', '容忍节点失效'], ['only_owner_unlocks', 'Only the owner unlocks', '解铃还须系铃人']]
      .map(([id, en, zh]) => ({ id, title: say(en, zh), explanation: say('What it means, in a sentence for beginners.', '用初学者能懂的一句话说明。') })),
    locks: [['set-px-no-owner', 'SET NX PX, plain DEL', 'no'], ['token', 'Token lock', 'yes'], ['redlock', 'Redlock', 'yes']].map(([id, title, owner]) => ({
      id, title, properties: { mutual_exclusion: cell('partly', 'While the work is shorter than the lease.', '当工作短于租期时。'), no_deadlock: cell('yes', 'The lease ends by itself.', '租期会自己结束。'),
        node_failure: cell(id === 'redlock' ? 'partly' : 'no', 'One Redis is one Redis.', '一个 Redis 就是一个 Redis。'), only_owner_unlocks: cell(owner, 'The value says who took it.', '值说明是谁拿的。') },
      round_trips: { acquire: 1, release: 1 }, cost_us: id === 'redlock' ? null : { p50: 84.2, p99: 412, samples: 500 }, use_when: say('The counter behind it decides anyway.', '后面的计数器本来就会决定。'), not_given: say('Fencing.', '隔离令牌。'),
    })),
    note_on_costs: say('Median of 500 rounds, the locks in turns.', '各种锁轮流测 500 轮的中位数。'),
    note_on_fencing: say('A lock is a belief. The resource has to refuse whoever comes with an older number.', '锁只是一种信念。资源必须拒绝带着旧号码来的人。'),
  };
}

const ids = (say) => ({ sections: [
  { title: say('One number, taken apart', '拆开一个号码'), text: say('Time, instance and counter stand in one 63-bit number.', '时间、实例与计数器放在一个 63 位的数里。'), columns: [say('part', '部分'), say('bits', '位数'), say('value', '值')], rows: [[say('time', '时间'), 41, 1234567], [say('counter', '计数器'), 22, 7]] },
  { title: say('Why JSON needs strings', '为什么 JSON 要用字符串'), text: say('Above 2^53 a number of JavaScript is rounded.', '超过 2^53，JavaScript 的数字会被舍入。'), code: 'let id: i64 = (seconds << 22) | counter;' },
] });

/**
 * Answers everything below /api/v1/lab for `page`. `how.refuse(method, path)` may answer with a
 * problem {status, code} first. What was asked is kept in the answer: [{method, path, query,
 * body}].
 */
export async function stubLab(page, how = {}) {
  const asked = [], arenas = new Map();
  await page.route('**/api/v1/lab/**', async (route) => {
    const request = route.request(), url = new URL(request.url()), method = request.method();
    const say = (en, zh) => (url.searchParams.get('lang') === 'zh' ? zh : en);
    const parts = url.pathname.replace('/api/v1/lab/', '').split('/'), body = request.postDataJSON() ?? {};
    asked.push({ method, path: url.pathname, query: Object.fromEntries(url.searchParams), body });
    const json = (answer, status = 200) => route.fulfill({ status, json: answer });
    const problem = how.refuse?.(method, url.pathname);
    if (problem) return route.fulfill({ status: problem.status, contentType: 'application/problem+json', headers: problem.headers, body: JSON.stringify(problem) });
    if (parts[0] === 'strategies') return json({ strategies: strategies(say), options: general(say) });
    if (parts[0] === 'lessons' && parts[2] === 'play') return json(play(parts[1], say, body.options ?? {}, how.play));
    if (parts[0] === 'lessons') return json({ lessons: lessons(say).map((one) => ({ ...one, ...how.lesson })) });
    if (parts[0] === 'locks') return json(locks(say));
    if (parts[0] === 'ids') return json(ids(say));
    if (parts[0] === 'report') return route.fulfill({ contentType: 'text/html', body: '<!doctype html><title>Report</title>' });
    if (method === 'POST' && parts.length === 1) {
      const arena_id = `arena-${arenas.size + 1}`;
      arenas.set(arena_id, body);
      return json({ arena_id, ...body }, 201);
    }
    const arena = arenas.get(parts[1]);
    if (method === 'DELETE') return route.fulfill({ status: 204 });
    if (parts[2] === 'storm') return json({}, 202);
    const final = verdict(arena.strategy, arena.stock, how.buyers ?? 1000, arena.nodes, say);
    if (parts[2] === 'verdict') return json(final);
    const line = (name, data) => `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
    const steps = how.unfinished ? [0.2, 0.5] : [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1];
    return route.fulfill({ contentType: 'text/event-stream', body: steps.map((part) => line('progress', progress(final, part))).join('') + (how.unfinished ? '' : line('verdict', final)) });
  });
  return asked;
}
