// The lab compared: every strategy of selling a stock gets the same storm, through the one endpoint
// that they share.
//
//   k6 run loadtest/lab.js                           2,000 attempts on 100 units for each strategy
//   k6 run -e SHORT=1 loadtest/lab.js                80 attempts on 20 units
//   k6 run -e STRATEGIES=lua-sync,naive -e NODES=3 loadtest/lab.js
//
// Some strategies are wrong on purpose, and overselling there is the lesson. So the run fails only
// if a strategy breaks what it promises (`never`), or if the server counts other sales than k6 was
// told of. The table has the rest.
//
// Everything happens in setup(): which strategies there are is known only at run time, and what
// setup() returns is the one thing that k6 hands from the script to the summary. The storm is sent
// with http.batch, one strategy after the other, so that one arena is there at a time and each has
// the machine to itself.

import { countEnding } from './lib/flash.js';
import { always, alwaysTrue, giveUp, guarded, promise } from './lib/promises.js';
import { summary } from './lib/report.js';
import { batch, call, serverOrGiveUp } from './lib/requests.js';
import { BASE_URL, SHORT, wholeNumber } from './lib/settings.js';

const STOCK = wholeNumber('STOCK', SHORT ? 20 : 100);
// Half as many again as there are units at the least, or a strategy could not show that it sells
// all and no more.
const ATTEMPTS = wholeNumber('ATTEMPTS', SHORT ? 80 : 2000, Math.ceil(STOCK * 1.5));
const CONCURRENCY = wholeNumber('CONCURRENCY', SHORT ? 40 : 100, 2);
const NODES = wholeNumber('NODES', 1);
const STRATEGIES = (__ENV.STRATEGIES || '').split(',').filter(Boolean);

const OFF = 'The lab is off on this server (start it with LAB=on): GET /api/v1/lab/strategies answers 404.';

export const options = {
  ...always,
  setupTimeout: '30m', // the storms
  vus: 1,
  iterations: 1,
  batch: CONCURRENCY,
  batchPerHost: CONCURRENCY,
  thresholds: { ...alwaysTrue },
};

export function setup() {
  serverOrGiveUp({ operator: false });
  const rows = [];
  for (const strategy of findStrategies()) guarded(() => rows.push(compare(strategy)));
  return { rows };
}

export default function () {}

/** The strategies that are asked for. */
function findStrategies() {
  const response = call('GET', '/api/v1/lab/strategies');
  if (response.status === 404) giveUp(OFF);
  const all = (response.data && response.data.strategies) || [];
  if (all.length === 0) giveUp(`GET /api/v1/lab/strategies answered ${response.status} ${response.body || response.error}`);
  const unknown = STRATEGIES.filter((id) => !all.some((strategy) => strategy.id === id));
  if (unknown.length > 0) {
    giveUp(`STRATEGIES has ${unknown.join(', ')}; this server knows ${all.map(({ id }) => id).join(', ')}.`);
  }
  return STRATEGIES.length > 0 ? all.filter(({ id }) => STRATEGIES.includes(id)) : all;
}

/** Storms one strategy in an arena of its own; answers its row of the table. */
function compare(strategy) {
  const { id, available } = strategy;
  if (!available.ok) return { id, why: available.why || 'not available here' };
  const body = { strategy: id, stock: STOCK, nodes: NODES, per_user_limit: 1 };
  const made = call('POST', '/api/v1/lab/arenas', { body });
  if (!promise(made.status === 201, `${id}: an arena can be made (${made.status} ${made.body || made.error})`)) {
    return { id, why: 'no arena' };
  }
  const arena = `/api/v1/lab/arenas/${made.data.arena_id}`;
  const told = storm(arena);
  const answer = call('GET', `${arena}/verdict`, { name: 'GET /api/v1/lab/arenas/{id}/verdict' });
  call('DELETE', arena, { name: 'DELETE /api/v1/lab/arenas/{id}' });
  const verdict = answer.status === 200 && answer.data;
  if (!promise(verdict, `${id}: the arena gives a verdict (${answer.status} ${answer.body})`)) return { id, why: 'no verdict' };
  hold(strategy, verdict, told);
  return { id, verdict };
}

/** One attempt in five is the second click of the user before, or nobody could be sold to twice. */
const userOf = (attempt) => `user-${Math.floor(attempt * 0.8)}`;

/** Sends all attempts, CONCURRENCY at a time. Answers how many ended in which way. */
function storm(arena) {
  const told = {};
  for (let sent = 0; sent < ATTEMPTS; sent += CONCURRENCY) {
    const wave = Array.from({ length: Math.min(CONCURRENCY, ATTEMPTS - sent) }, (_, i) => ({
      method: 'POST',
      url: `${BASE_URL}${arena}/orders`,
      body: JSON.stringify({ user: userOf(sent + i), node: (sent + i) % NODES }),
      params: {
        headers: { 'Content-Type': 'application/json' },
        tags: { name: 'POST /api/v1/lab/arenas/{id}/orders' },
        timeout: '60s',
      },
    }));
    for (const { data, timings } of batch(wave)) {
      const outcome = (data && data.outcome) || 'unexpected';
      told[outcome] = (told[outcome] || 0) + 1;
      countEnding(ENDINGS[outcome] || 'unexpected', timings.duration);
    }
  }
  return told;
}

// The lab's outcomes as the load scripts count them.
const ENDINGS = { sold: 'won', sold_out: 'sold_out', duplicate: 'already_ordered', contended: 'contended', failed: 'failed' };

/** A strategy may be as bad as it says, and not worse. */
function hold({ id, promise: promised }, verdict, told) {
  const counts = { oversells: verdict.oversold, undersells: verdict.undersold, duplicates: verdict.duplicates };
  const said = NODES > 1 ? promised.across_nodes : promised;
  for (const [what, count] of Object.entries(counts)) {
    if (said[what] === 'never') promise(count === 0, `${id} never ${what}; the verdict counts ${count}`);
  }
  promise(verdict.kept_promise !== false, `${id} keeps its promise; the server says: ${verdict.explanation}`);
  const sold = told.sold || 0;
  // A purchase that failed may have its order all the same: nobody knows until the rows are
  // counted.
  const most = sold + (told.failed || 0);
  promise(
    verdict.sold >= sold && verdict.sold <= most,
    `${id}: k6 was told "sold" ${sold} times and "failed" ${most - sold} times; the server says ${verdict.sold}`,
  );
}

// --- the table -----------------------------------------------------------------------------------

const COLUMNS = ['sold', 'oversold', 'undersold', 'duplicates', 'contended', 'failed'];

function table(rows) {
  const width = Math.max(...rows.map(({ id }) => id.length), 'strategy'.length);
  const cells = (first, others) => `${first.padEnd(width)} ${others.map((cell) => String(cell).padStart(11)).join('')}`;
  return [
    cells('strategy', [...COLUMNS, 'p99 ms', 'promise']),
    ...rows.map(({ id, why, verdict }) => {
      if (!verdict) return `${id.padEnd(width)}   not run: ${why}`;
      const counts = COLUMNS.map((column) => verdict[column]);
      return cells(id, [...counts, verdict.latency_ms.p99, verdict.kept_promise ? 'kept' : 'BROKEN']);
    }),
  ];
}

export function handleSummary(data) {
  const { rows = [] } = data.setup_data || {};
  const storm = `${ATTEMPTS} attempts on ${STOCK} units each, ${CONCURRENCY} at a time, ${NODES} node(s)`;
  const lines = rows.length > 0 ? [['storm', storm], ...table(rows).map((text) => ['', text])] : [];
  return summary('lab', data, { more: () => lines });
}
