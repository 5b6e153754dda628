// The lab's pure modules: what is raced, how a race stands, what is taken along from it, and how a
// lesson is walked through.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, it } from 'node:test';
import { changed } from '../../static/js/lab/diff.js';
import { lines, tokens } from '../../static/js/lab/highlight.js';
import { locksOf } from '../../static/js/lab/locks-of.js';
import { badges } from '../../static/js/lab/promise.js';
import { SQUARES, after, causes, lane, outcome, polyline, scale, tone } from '../../static/js/lab/race.js';
import { RUN } from '../../static/js/lab/recorded.js';
import races from '../../static/js/lab/races.js';
import { COLUMNS, csv, json, pack, row, unpack } from '../../static/js/lab/results.js';
import { OWN, arenaBody, bounded, comparison, defaults, fromDemonstration, fromQuery, heats, isFair, isHere, judgementBody, laneParts, laneSetup, merged, optionsOf, serverOf, stormBody, toQuery } from '../../static/js/lab/setup.js';
import { actAt, arrow, dwellMs, keyed, lasts, lease, meaning, moment, prices, shortened, timeline, violation, within } from '../../static/js/lab/timeline.js';
import { buyerNumber, GAP, LINES, MOMENTS, onSale, SCENES, walk } from '../../static/js/lab/why-steps.js';

describe('what is raced', () => {
  it('comes from the address and goes back into it', () => {
    const query = 's=naive,row-lock&in_turn=1&stock=50&duplicates=0&o.lease_ms=200';
    const setup = fromQuery(query);
    assert.deepEqual([setup.strategies, setup.together, setup.stock, setup.duplicates, setup.options], [['naive', 'row-lock'], false, 50, 0, { lease_ms: '200' }]);
    assert.equal(toQuery(setup), query);
    assert.equal(toQuery(defaults()), '');
  });

  it('an address that was tampered with does no harm', () => {
    const setup = fromQuery('s=naive,naive,<b>,../x&stock=1e99&buyers=-4&nodes=abc&work_ms=&o.=1&o.x=' + 'y'.repeat(99));
    assert.deepEqual([setup.strategies, setup.stock, setup.buyers, setup.nodes, setup.work_ms, setup.options], [['naive'], 10_000, 1, 1, 0, {}]);
    assert.deepEqual([bounded('stock', '7.6'), bounded('stock', null)], [8, 100]);
  });

  const shared = [{ name: 'work_ms', default: 0 }, { name: 'pause_ms', default: 0, min: 0, max: 5000 }, { name: 'crash_at', default: 'never', values: ['never'] }, { name: 'restart_ms', default: 50, min: 0, max: 10_000 }];
  const strategy = { id: 'token-lock', crash_points: ['after the lock'], options: [{ name: 'lease_ms', default: 1000, min: 10, max: 5000 }, { name: 'retries', default: true }] };

  it('options are the strategy’s own and everybody’s; the fields of the form are left to the form', () => {
    assert.deepEqual(optionsOf(strategy, shared).map(({ name }) => name), ['lease_ms', 'retries', 'pause_ms', 'crash_at', 'restart_ms']);
    assert.deepEqual(optionsOf({}, shared).map(({ name }) => name), ['pause_ms'], 'nothing can crash');
    const [, , , crash] = optionsOf(strategy, shared);
    assert.deepEqual(merged(crash, { ...crash, values: ['never', 'elsewhere'] }).values, ['never', 'after the lock', 'elsewhere']);
    assert.equal(merged(undefined, crash), crash);
  });

  it('the server is told only what differs, in its own types', () => {
    const body = (options) => arenaBody({ ...defaults(), options }, strategy, shared);
    assert.deepEqual(body({}), { strategy: 'token-lock', stock: 100, nodes: 1, per_user_limit: 1, work_ms: 0 });
    assert.deepEqual(body({ lease_ms: '99999', retries: 'false', crash_at: 'after the lock', of_another: '1' }).options, { lease_ms: 5000, retries: false, crash_at: 'after the lock' });
    assert.equal(body({ lease_ms: '1000', retries: 'true', crash_at: 'a point of another strategy' }).options, undefined);
    assert.deepEqual(stormBody({ ...defaults(), buyers: 5, concurrency: 64, duplicates: 25 }), { buyers: 5, concurrency: 5, duplicate_share: 0.25 });
  });

  it('a demonstration is run as the server describes it', () => {
    const setup = fromDemonstration(strategy, { id: 'gap', teaches: '', stock: 1, nodes: 2, per_user_limit: 1, buyers: 20, concurrency: 8, duplicate_share: 0.5, options: { lease_ms: 50, work_ms: 20 } });
    assert.deepEqual([setup.strategies, setup.stock, setup.nodes, setup.duplicates, setup.work_ms, setup.options], [['token-lock:gap'], 1, 2, 50, 20, { lease_ms: '50' }]);
  });

  it('a lane of its own demonstration runs that, and the others the page’s setup', () => {
    const shown = { id: 'token-lock', demonstrations: [{ id: 'lease', teaches: '', stock: 1, nodes: 1, per_user_limit: 1, buyers: 2, concurrency: 2, duplicate_share: 0, options: { lease_ms: '100' } }] };
    assert.deepEqual(laneParts('token-lock:lease'), ['token-lock', 'lease']);
    const page = { ...defaults(), together: false, stock: 77 };
    const { stock, buyers, options, together } = laneSetup(page, 'token-lock:lease', shown);
    assert.deepEqual([stock, buyers, options, together], [1, 2, { lease_ms: '100' }, false]);
    assert.equal(laneSetup(page, 'token-lock', shown), page);
    assert.equal(laneSetup(page, 'token-lock:of-another-version', shown), page);
    assert.deepEqual(fromQuery('s=token-lock:lease,naive,a:b:c').strategies, ['token-lock:lease', 'naive']);
  });

  it('a server of one’s own is on this machine, stands in the address, and is raced as it is', () => {
    for (const [given, address] of [['127.0.0.1:9000', 'http://127.0.0.1:9000'], ['localhost:9000/shop/', 'http://localhost:9000/shop'], ['http://[::1]:9000', 'http://[::1]:9000']]) assert.equal(serverOf(given), address);
    for (const elsewhere of ['', 'https://127.0.0.1', '192.0.2.1:9000', 'localhost.evil.example', 'http://a@127.0.0.1', '127.0.0.1:9000/?a', 'javascript:alert(1)', ':', 'http://127.0.0.1:99999']) assert.equal(serverOf(elsewhere), '', elsewhere);
    assert.deepEqual(['localhost', '127.0.0.2', '[::1]', 'shop.example', '127.0.0.1.evil.example'].map(isHere), [true, true, true, false, false]);
    const query = 's=naive,own-server&server=http://127.0.0.1:9000&stock=50', setup = fromQuery(query);
    assert.deepEqual([setup.server, toQuery(setup), fromQuery('server=http://evil.example').server], ['http://127.0.0.1:9000', query, '']);
    const own = laneSetup({ ...setup, work_ms: 7, nodes: 3 }, OWN, { id: OWN });
    assert.deepEqual([own.nodes, own.work_ms, isFair(own, 1), optionsOf({ id: OWN }, shared)], [1, 0, true, []]);
    assert.deepEqual(judgementBody(own), { url: 'http://127.0.0.1:9000', stock: 50, buyers: 1000, concurrency: 64, duplicate_share: 0.1 });
  });

  it('speeds compare only alone and unforced', () => {
    const free = { ...defaults(), options: { interleave: 'off' } };
    assert.deepEqual([isFair(free, 1), isFair(free, 2), isFair(defaults(), 1)], [true, false, false]);
    const { real } = races.lab;
    assert.ok(isFair({ ...defaults(), ...real }, heats(real.strategies, real.together)[0].length), 'the preset that shows speeds');
    assert.equal(real.concurrency, 512, 'a crowd large enough to tell designs apart');
    const naive = { key: 'naive', setup: free }, own = { key: OWN, setup: free }, forced = { key: 'naive', setup: defaults() }, shown = { ...forced, show: {} };
    assert.deepEqual([[naive], [forced], [forced, shown]].map((lanes) => comparison(lanes, 1)), ['fair', 'forced', 'shown']);
    assert.equal(comparison([naive, naive], 2), 'together');
    for (const lanes of [[own], [naive, own], [own, forced], [own, shown]]) assert.deepEqual([comparison(lanes, 1), comparison(lanes, 2)], ['own', 'together'], 'another server is asked in another way');
  });

  it('no more run at once than there are connections', () => {
    assert.deepEqual(heats(['a', 'b', 'c', 'd', 'e'], true), [['a', 'b', 'c', 'd'], ['e']]);
    assert.deepEqual(heats(['a', 'b'], false), [['a'], ['b']]);
    assert.deepEqual(heats([], true), []);
  });
});

describe('a race', () => {
  const told = (...events) => events.reduce((state, [name, news]) => after(state, name, news), lane('naive', 10));

  it('turns red the moment that more is sold than there is, and not before', () => {
    const full = told(['progress', { attempts: 10, sold: 10, of: 40 }]);
    assert.deepEqual([full.status, full.oversold, tone(full)], ['running', 0, '']);
    const over = after(full, 'progress', { attempts: 11, sold: 11, oversold: 0 });
    assert.deepEqual([over.oversold, tone(over)], [1, 'bad']);
  });

  it('ends with the verdict, and nothing that comes late changes it', () => {
    const done = told(['progress', { attempts: 40, sold: 9 }], ['verdict', { attempts: 40, sold: 9, undersold: 1, duplicates: 0 }], ['progress', { attempts: 41, sold: 12 }]);
    assert.deepEqual([done.status, done.sold, tone(done)], ['done', 9, 'warn']);
    assert.equal(told(['verdict', { sold: 10 }]).status, 'done');
    assert.equal(tone(told(['verdict', { sold: 10, duplicates: 2 }])), 'bad');
    assert.equal(tone(told(['verdict', { sold: 10, lost: 1 }])), 'bad');
    assert.equal(tone(told(['verdict', { sold: 10, undersold: 0 }])), 'good');
    assert.deepEqual(told(['of a later server', { sold: 99 }]), lane('naive', 10));
  });

  it('events out of order do not turn it back', () => assert.equal(told(['progress', { attempts: 30, sold: 8 }], ['progress', { attempts: 20, sold: 5 }]).sold, 8));

  it('a unit is a square, all lanes are on one scale, and there is air beyond the stock', () => {
    const to = scale([{ sold: 10, stock: 10 }, { sold: 30, stock: 10 }]);
    assert.deepEqual([to.per, to.count], [1, 30]);
    assert.deepEqual(to.row({ sold: 30, stock: 10 }), { stock: 10, sold: 10, over: 20 });
    assert.deepEqual(to.row({ sold: 3, stock: 10 }), { stock: 10, sold: 3, over: 0 });
    assert.ok(scale([{ sold: 0, stock: 10 }]).count > 10);
    const many = scale([{ sold: 101, stock: 100 }, { sold: 645, stock: 100 }]);
    assert.ok(many.per > 1 && many.count <= SQUARES);
    assert.equal(many.row({ sold: 101, stock: 100 }).over, 1, 'one too many is a square, too');
    const { stock, over } = many.row({ sold: 645, stock: 100 });
    assert.ok(stock + over <= many.count);
    assert.equal(scale([]).count, 1);
  });

  it('has one outcome, the worst, whatever was predicted', () => {
    const told = (more) => outcome({ sold: 10, stock: 10, ...more });
    assert.deepEqual(told({ oversold: 3, duplicates: 1, kept_promise: true }), { kind: 'oversold', n: 3, tone: 'bad' });
    assert.deepEqual([told({ duplicates: 9 }), told({ lost: 1 }), told({ undersold: 2 })].map(({ kind, tone: one }) => [kind, one]), [['duplicates', 'bad'], ['lost', 'bad'], ['undersold', 'warn']]);
    assert.deepEqual(told({ sold: 0, undersold: 0, failed: 40 }), { kind: 'nothing', n: 40, tone: 'warn' });
    assert.deepEqual([told({}).kind, outcome({ sold: 1, stock: 5 }).kind], ['exact', 'sound']);
    assert.deepEqual([told({ broken: 2, undersold: 1 }), told({ verdict: 'undecided' })], [{ kind: 'broken', n: 2, tone: 'bad' }, { kind: 'undecided', n: 1, tone: 'warn' }]);
  });

  it('was caused by the line of its demonstration, or of those that show what happened', () => {
    const demonstrations = [{ shows: 'duplicates', mark: 2 }, { shows: 'oversells', mark: 1 }, { shows: 'notes', mark: 0 }, { shows: 'oversells', mark: 0, options: { pause_ms: '9' } }, {}];
    const told = (show, kind, options) => causes({ marks: ['a', 'b', 'c'], demonstrations }, show, kind, options);
    assert.deepEqual([told(null, 'oversold'), told(null, 'oversold', { pause_ms: 8 }), told(null, 'oversold', { pause_ms: 9 })], [['b'], ['b'], ['b', 'a']], 'only what this run’s options can have done');
    assert.deepEqual([told(null, 'duplicates'), told(demonstrations[1], 'duplicates'), told(null, 'exact'), told(demonstrations[4], 'lost'), causes({}, null, 'lost')], [['c'], ['b'], [], [], []]);
  });

  it('curves stay within their box, and need two points', () => {
    assert.equal(polyline([{ at: 0, rate: 5 }], 'rate'), '');
    assert.equal(polyline([{ at: 0, rate: 0 }, { at: 50, rate: 10 }, { at: 100, rate: 5 }], 'rate'), '0,29 50,1 100,15');
    assert.equal(polyline([{ at: 0, p99: null }, { at: 1, p99: null }], 'p99'), '');
  });

  it('promises become badges, the worst first', () => {
    assert.deepEqual(badges({ oversells: 'never', undersells: 'never', duplicates: 'never' }), [{ tone: 'good', key: 'lab.harm.none' }]);
    assert.deepEqual(badges({ oversells: 'possible', duplicates: 'expected', undersells: 'expected' }).map(({ tone: one, key }) => `${one} ${key}`),
      ['bad lab.harm.duplicates_expected', 'warn lab.harm.undersells_expected', 'warn lab.harm.oversells_possible']);
  });
});

describe('results', () => {
  const verdict = {
    strategy: 'naive', stock: 10, attempts: 40, sold: 13, oversold: 3, undersold: 0, duplicates: 0, lost: 0, contended: 0, failed: 0, throughput_per_s: 812.4567,
    latency_ms: { p50: 1.2345, p95: 2, p99: 3, max: 4 }, winners_ms: { p50: 1, p95: 2, p99: 3, max: 4 }, losers_ms: { p50: 1, p95: 2, p99: 3, max: 4 },
    round_trips: { redis: 0, postgres: 4, zookeeper: 0 }, kept_promise: true, explanation: 'Words, "quoted".',
  };
  const rows = [row(verdict, { ...defaults(), options: {} }, 1, 2), row({ ...verdict, strategy: 'row-lock', kept_promise: false }, defaults(), 2, 1)];

  it('CSV has a line for each row and a name for each column', () => {
    const [head, first, , end] = csv(rows).split('\r\n');
    assert.equal(head.split(',').length, COLUMNS.length);
    assert.equal(first.split(',').length, COLUMNS.length);
    assert.ok(first.startsWith('1,naive,10,1,1000,64,10,0,2,40,13,3,0,'));
    assert.equal(end, '');
  });

  it('CSV quotes what would break a line, and defuses what a spreadsheet would calculate', () => {
    const [, line] = csv([{ ...rows[0], strategy: '=cmd|"x"\n' }]).split(/\r\n(?!$)/);
    assert.ok(line.startsWith('1,"\'=cmd|""x""\n",10'));
    assert.ok(csv([{ strategy: 'x', oversold: -1 }]).includes(',-1,'), 'a number is no formula');
    assert.ok(csv([{ strategy: 'x' }]).endsWith(',\r\n'));
  });

  it('JSON keeps everything', () => assert.deepEqual(JSON.parse(json(rows)).results[0].explanation, verdict.explanation));

  it('a link carries the figures', () => {
    const link = pack(rows);
    assert.match(link, /^[\w-]+$/);
    const [first, second] = unpack(link);
    assert.deepEqual([first.strategy, first.sold, first.oversold, first.throughput_per_s, first.latency_ms.p50, first.round_trips.postgres, first.kept_promise], ['naive', 13, 3, 812, 1.2, 4, true]);
    assert.equal(second.kept_promise, false);
    assert.deepEqual([first.fair, first.demonstration, unpack(pack([{ ...rows[0], demonstration: 'lease', fair: true }]))[0].demonstration], [false, '', 'lease']);
    assert.deepEqual(unpack(pack([{ ...rows[0], demonstration: '<b>' }])), []);
    assert.equal(pack(unpack(link)), link);
    const [mine] = unpack(pack([{ ...rows[0], strategy: OWN, oversold: 0, broken: 1, sold: 10 }]));
    assert.equal(outcome(mine).kind, 'broken', 'what is wrong otherwise does not turn green in a link');
    const old = JSON.parse(atob(link.replaceAll('-', '+').replaceAll('_', '/'))).map((values) => values.slice(0, -1));
    assert.equal(unpack(btoa(JSON.stringify(old)))[0].sold, 13, 'a link of before there was that column');
  });

  it('a broken link is a link without results', () => {
    for (const text of ['', '?', 'AAAA', pack(rows).slice(0, -5), btoa('{"a":1}'), btoa('[null,[1,"<b>"],7]')]) assert.deepEqual(unpack(text), [], text);
    const [one] = unpack(btoa(JSON.stringify([[1, 'naive', 'ten', {}]])));
    assert.deepEqual([one.stock, one.nodes, one.kept_promise], [null, null, null]);
  });
});

describe('the highlighter', () => {
  const SOURCE = `//! What it is. "no string"
#[derive(Debug)]
pub async fn buy<'a>(bench: &'a Bench) -> Result<u64, Failure> {
    let mark = 'x'; let text = "a \\" // no comment"; let raw = r#"SELECT "x""#;
    bench.interleaving_point("read").await?; /* two
    lines */ println!("{mark}"); Ok(0x1f + 1_000)
}
`;
  const kindOf = (piece, source = SOURCE, file) => tokens(source, file).find(([, text]) => text.includes(piece))?.[0];

  it('loses no character', () => {
    for (const text of [SOURCE, '', '"open', "'", '/* open', 'r#"open', '字 "文" //注', '<script>alert(1)</script>']) assert.equal(tokens(text).map(([, piece]) => piece).join(''), text);
  });

  it('tells apart what looks alike', () => {
    for (const [piece, kind] of [['What it is', 'comment'], ['derive', 'attr'], ['async', 'keyword'], ["'a", 'life'], ['Bench', 'type'], ["'x'", 'string'], ['no comment', 'string'], ['SELECT', 'string'], ['interleaving_point', 'call'], ['println!', 'macro'], ['two\n', 'comment'], ['0x1f', 'number'], ['1_000', 'number']]) {
      assert.equal(kindOf(piece), kind, piece);
    }
    assert.equal(kindOf('redis', "local v = redis.call('GET', KEYS[1]) -- look", 'x.lua'), '');
    assert.equal(kindOf('look', "local v = redis.call('GET', KEYS[1]) -- look", 'x.lua'), 'comment');
    assert.equal(kindOf('FOR', 'SELECT 1 FOR UPDATE', 'x.sql'), 'keyword');
  });

  it('cuts at line ends what spans lines', () => {
    const found = lines(SOURCE);
    assert.equal(found.length, SOURCE.split('\n').length - 1);
    assert.deepEqual(found.map((pieces) => pieces.map(([, piece]) => piece).join('')), SOURCE.trimEnd().split('\n'));
    assert.equal(found[5][0][0], 'comment');
  });
});

it('two sources differ in the lines that only one has', () => {
  const [left, right] = changed(['a', '  b', 'c', ''], ['a', 'x', 'b', 'c', 'd']);
  assert.deepEqual([[...left], [...right]], [[], [1, 4]], 'indentation and empty lines are no difference');
  assert.deepEqual(changed(['a'], ['b']).map((set) => [...set]), [[0], [0]]);
  assert.deepEqual(changed([], []).map((set) => set.size), [0, 0]);
});

describe('a lesson', () => {
  const event = (actor, more = {}) => ({ actor, step: 's', say: 'What happens.', key_state: {}, believers: [], overlap: false, ...more });
  const play = {
    title: 'T', actors: [{ id: 'a' }, { id: 'b' }, { id: 'redis' }],
    acts: [{ id: 'x', kind: 'failure', first: 0, last: 2 }, { id: 'y', kind: 'cure', first: 3, last: 4 }],
    events: [event('a', { to: 'redis', key_state: { lock: { value: '1', ttl_ms: 200, owner: 'a' } }, believers: ['a'] }), event('redis', { key_state: { lock: null }, believers: ['a'] }),
      event('b', { to: 'redis', key_state: { lock: { value: '1', ttl_ms: 200, owner: 'b' } }, believers: ['a', 'b'], overlap: true }), event('a', { to: 'a', key_state: { lock: { value: '2', ttl_ms: null, owner: 'a' } } }), event('nobody')],
  };
  const line = timeline(play);

  it('is walked through by keys, from act to act, and never off the stage', () => {
    assert.deepEqual(['ArrowRight', 'ArrowLeft', 'Home', 'End', 'PageDown', 'PageUp', 'x'].map((key) => keyed(line, 1, key)), [2, 0, 0, 4, 3, 0, null]);
    assert.deepEqual([keyed(line, 4, 'ArrowRight'), keyed(line, 0, 'ArrowLeft'), keyed(line, 4, 'PageDown'), keyed(line, 4, 'PageUp'), keyed(line, 3, 'PageUp')], [4, 0, 4, 3, 0]);
    assert.deepEqual([within(line, -3), within(line, 99), within(line, 'x'), within(line, '2')], [0, 4, 0, 2]);
    assert.deepEqual([actAt(line, 2), actAt(line, 3)], [0, 1]);
  });

  it('knows the moment at which an act breaks: two hold the lock, or the last step but for an unlock', () => {
    assert.deepEqual([violation(line, 0), violation(line, 1)], [2, null]);
    assert.deepEqual([0, 1, 2].map((step) => moment(line, step).breaks), [false, false, true]);
    const lock = { lock: { value: '1', ttl_ms: 9, owner: 'a' } }, free = { lock: { value: null } };
    const ends = (broken, ...states) => violation(timeline({ actors: [], events: states.map((key_state) => event('a', { key_state })), acts: [{ id: 'x', first: 0, last: states.length - 1, verdict: { broken } }] }), 0);
    assert.deepEqual([ends(false, lock), ends(true, lock, lock), ends(true, lock, lock, free), ends(true, {}, {}), ends(true, lock)], [null, 1, 1, 1, 0]);
    const queue = { ...lock, 'lock-2': { value: 'czxid 0x2', owner: 'b' } };
    assert.equal(ends(true, lock, queue, queue, lock, lock), 2, 'whoever gives up leaves the queue after the moment');
    assert.equal(moment(line, 2).overlap, true);
    assert.equal(moment(line, 2).ends, true);
  });

  it('shows what changed, within an act', () => {
    const changes = [0, 1, 2, 3].map((step) => moment(line, step).keys.map(({ value, changed: different }) => [value, different])[0]);
    assert.deepEqual(changes, [['1', true], [null, true], ['1', true], ['2', true]]);
    const same = timeline({ ...play, events: [play.events[0], play.events[0]], acts: [] });
    assert.equal(moment(same, 1).keys[0].changed, false);
  });

  it('says what a reply means, and leaves alone what it does not know', () => {
    const told = (command, reply, key_state = {}) => meaning(event('a', { to: 'redis', detail: { command, reply }, key_state }), (id) => id.toUpperCase(), (key, params = {}) => `${key} ${Object.values(params)}`.trim());
    const shop = { 'phones in stock': { value: '1' }, orders: { value: '2' } };
    assert.equal(told('SELECT stock FROM x', 'stock → 0', shop), 'lesson.means.stock 0', 'what was read, whatever is there now');
    assert.equal(told('INSERT INTO lab.fenced x', '1 row(s)', { ...shop, phone: { value: 'sold to b (token 2)' } }), 'lesson.keyed.phone → sold to b (token 2)');
    assert.equal(told('INSERT INTO lab.play_refunds x', '1 row(s)', { ...shop, refunds: { value: '2' } }), 'lesson.keyed.refunds → 2');
    assert.equal(told('WITH sold AS (UPDATE x)', '1 row(s)', shop), 'lesson.means.wrote 1,2');
    assert.equal(told('INSERT INTO x', '0 row(s)', shop), 'lesson.means.refused');
    assert.equal(told('SET lock a-1 NX GET PX 9', '(nil)', { lock: { value: 'a-1', owner: 'a' } }), 'lesson.means.free A');
    assert.equal(told('SET lock a-1 NX GET PX 9', '"b-1"', { 'redis lock': { value: 'b-1', owner: 'b' } }), 'lesson.means.taken B');
    assert.equal(told('EVALSHA counting_acquire.lua 1 lock a-1 3000', '(nil)', { lock: { value: 'a-1 2', owner: 'a' } }), 'lesson.means.has A', 'free or not: it may have counted before');
    assert.equal(told('EVALSHA token_acquire.lua 2 lock lock:fence a-1 3000', '[(integer) 1, (integer) 34]', { lock: { value: 'a-1', owner: 'a' } }), 'lesson.means.numbered A,34');
    assert.equal(told('EVALSHA reentrant_acquire.lua 2 lock lock:fence a a-1 300', '[(integer) 0, (integer) 280, (integer) 0]', { lock: { value: 'b', owner: 'b' } }), 'lesson.means.taken B');
    assert.deepEqual(['(integer) 1', '0'].map((reply) => told('DEL lock', reply)), ['lesson.means.deleted', 'lesson.means.not_deleted']);
    assert.deepEqual(['(integer) 1', '(integer) 0'].map((reply) => told('EVALSHA counting_release.lua 1 lock a-1 3000', reply)), ['lesson.means.left 1', 'lesson.means.deleted'], 'what is left of the count');
    assert.deepEqual(['[(integer) 1, (integer) 0]', '[(integer) 1, (integer) 2]', '[(integer) 0, (integer) 1]'].map((reply) => told('EVALSHA reentrant_release.lua 2 lock lock:freed a a-1', reply)), ['lesson.means.deleted', 'lesson.means.left 2', 'lesson.means.not_deleted']);
    assert.equal(told('PTTL lock', '(integer) -1'), '(integer) -1');
    const unheard = event('a', { to: 'redis', detail: { command: 'SET lock a-1 NX PX 9', reply: '(reply lost: OK)', heard: false }, key_state: { lock: { value: 'a-1', owner: 'a' } } });
    assert.equal(meaning(unheard, (id) => id, (key) => key), '(reply lost: OK)', 'nobody was told that it is free');
    assert.equal(told('PTTL lock'), null);
  });

  it('measures what is left of a lease against the most that its owner had, on each server', () => {
    const at = (ttl_ms, owner = 'a', name = 'lock') => event('a', { key_state: { [name]: { value: '1', ttl_ms, owner } } });
    const leased = timeline({ actors: [], events: [at(200), at(50), at(100, 'b'), at(null), event('a'), at(9, 'a', 'redis-2 lock')], acts: [] });
    assert.deepEqual([0, 1, 2, 3].map((step) => lease(leased, step)?.part), [1, 0.25, 1, 1]);
    assert.deepEqual(lease(timeline({ actors: [], events: [at(0)], acts: [] }), 0), { owner: 'a', part: 0, left: 0 });
    assert.deepEqual([lease(leased, 3).left, lease(leased, 4), lease(leased, 5, 'redis-1'), lease(leased, 5, 'redis-2').left], ['ever', null, null, 9]);
    const holder = event('a', { key_state: { '_c_0-lock-0000000009': { value: 'czxid 0x9', owner: 'b' }, '_c_1-lock-0000000002': { value: 'czxid 0x2', owner: 'a' } } });
    const stamp = event('a', { key_state: { 'lock:phone': { value: '1798123456789', owner: 'a' } } });
    const others = timeline({ actors: [], events: [holder, stamp], acts: [] });
    assert.deepEqual([lease(others, 0), lease(others, 1)], [{ owner: 'a', part: 1, left: 'session' }, null], 'a session ends it, or the clock of whoever reads the value');
    assert.deepEqual([['orders', '1'], ['lock', null], ['lock', 'x'], ['lock', '1798123456789'], ['lock', 'x', 0]].map(([name, value, ttl_ms = null]) => lasts(name, { value, ttl_ms })), [null, null, 'ever', 'value', 0]);
  });

  it('counts what each act sent', () => {
    const sent = timeline({ ...play, events: play.events.map((one, index) => ({ ...one, t_ms: index * 10, detail: one.to ? { command: 'GET x' } : {} })) });
    assert.deepEqual(prices(sent).map(({ sent: to, ms }) => [to, ms]), [[[['redis', 2]], 20], [[['a', 1]], 10]]);
  });

  it('knows which locks an act runs, by the files of its code', () => {
    const ran = (file) => event('a', { line: { file, line: 1 } });
    const run = timeline({ actors: [], events: [ran('crates/locks/src/set_px_no_owner.rs'), ran('crates/locks/src/token.rs'), ran('crates/lab/src/lessons/shop.rs')], acts: [{ id: 'x', first: 0, last: 0 }, { id: 'y', first: 1, last: 2, marks: [{ file: 'crates/locks/src/redlock.rs' }] }] });
    const locks = ['set-px-no-owner', 'token-lock', 'redlock', 'reentrant-lock'].map((id) => ({ id }));
    assert.deepEqual(run.acts.map((act) => locksOf(run, act, locks).map(({ id }) => id)), [['set-px-no-owner'], ['token-lock', 'redlock']]);
  });

  it('cuts words to their room', () => assert.deepEqual([shortened('abcdef', 6), shortened('abcdefg', 6), shortened('两个人都', 6)], ['abcdef', 'abcde…', '两个…']));

  it('arrows go between two lanes that there are', () => assert.deepEqual([0, 1, 3, 4].map((step) => arrow(line, line.events[step])), [[0, 2], null, null, null]));

  it('a play without acts is one act, and one without steps none', () => {
    assert.deepEqual(timeline({ ...play, acts: [] }).acts.map(({ first, last }) => [first, last]), [[0, 4]]);
    assert.deepEqual(timeline({ ...play, acts: [...play.acts, { id: 'never', first: null, last: null }] }).acts.length, 2, 'an act that did not come is none');
    assert.equal(timeline({}).last, -1);
  });

  it('stands as long as there is to read, and faster when asked', () => {
    assert.ok(dwellMs(event('a', { say: 'x'.repeat(100) }), 1) > dwellMs(event('a'), 1));
    assert.equal(dwellMs(event('a'), 2), dwellMs(event('a'), 1) / 2);
    assert.ok(dwellMs(event('a', { say: '两个人都以为自己持有这把锁'.repeat(3) }), 1) > 4000);
    assert.ok(dwellMs(event('a', { say: 'x'.repeat(9999) }), 1) <= 9000);
  });
});

it('the page for the projector is one story, forwards and backwards, and both look before either writes', () => {
  const seen = [];
  let at = { scene: 'start', moment: 0 };
  for (let n = 0; n < 20; n++) { seen.push(`${at.scene}${at.moment}`); at = walk(at, 1); }
  assert.deepEqual(seen.slice(0, 10), ['start0', 'raced0', 'stopped0', 'stopped1', 'stopped2', 'stopped3', 'stopped4', 'fixed0', 'again0', 'doors0']);
  assert.equal(at.scene, SCENES.at(-1));
  assert.deepEqual(walk({ scene: 'fixed', moment: 0 }, -1), { scene: 'stopped', moment: MOMENTS.length - 1 });
  assert.deepEqual(walk({ scene: 'start', moment: 0 }, -1), { scene: 'start', moment: 0 });
  assert.deepEqual(MOMENTS[GAP].map((line) => LINES[line]), ['read', 'read']);
  assert.ok(MOMENTS.every(([a, b], index) => index === 0 || (a >= MOMENTS[index - 1][0] && b >= MOMENTS[index - 1][1])), 'nobody runs back');
  assert.equal(buyerNumber('buyer-12'), '12');
});

it('what a shared link to /lab/why says is what the recorded race sold', () => {
  for (const language of ['en', 'zh']) {
    const [title] = readFileSync(new URL(`../../crates/lab/texts/${language}/why.md`, import.meta.url), 'utf8').split('\n');
    const { sold, oversold } = RUN.naive.verdict;
    assert.deepEqual(title.match(/\d+/g).map(Number), [sold, sold - oversold], title);
  }
});

it('the last door leads to a sale where something can still be bought', () => {
  const sales = ['ended', 'scheduled', 'open', 'open'].map((state, index) => ({ id: String(index), state }));
  assert.deepEqual([sales, sales.slice(0, 2), sales.slice(0, 1), []].map((found) => onSale(found)?.id), ['2', '1', undefined, undefined]);
});
