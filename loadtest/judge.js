// The storm of `flash-sale judge`, sent by k6 to any server that has an adapter. It judges nothing: it leaves the history of
// every request and what is stored in a file.
//
//   k6 run loadtest/judge.js                       this program (RATE_LIMIT=off, ADMIN_TOKEN)
//   k6 run -e ADAPTER=crates/judge/adapters/contract.json -e BASE_URL=http://127.0.0.1:9000 loadtest/judge.js
//   flash-sale judge --history loadtest/out/judge.jsonl
//
// Everything happens in setup(), wave by wave with http.batch, because what setup() returns is the one thing that k6 hands
// from the script to the summary, and only the summary can write a file. A wave begins when the one before has ended, so
// "before" in the history is before on the server, too.

import http from 'k6/http';
import { sleep } from 'k6';
import { at, bodyOf, isSkipped, meaningOf, requestOf } from './lib/adapter.js';
import { BASE_URL, OUT_DIR, SHORT, mistakes, wholeNumber } from './lib/settings.js';

const STOCK = wholeNumber('STOCK', SHORT ? 20 : 100);
const BUYERS = wholeNumber('BUYERS', SHORT ? 60 : 2000);
const CONCURRENCY = wholeNumber('CONCURRENCY', SHORT ? 20 : 100);
const RETRIES = wholeNumber('RETRIES', 5, 0);
const SETTLE = wholeNumber('SETTLE', 5);
const fromHere = (file) => (file.startsWith('/') || !__ENV.PWD ? file : `${__ENV.PWD}/${file}`);
const adapter = JSON.parse(open(__ENV.ADAPTER ? fromHere(__ENV.ADAPTER) : '../examples/adapters/flash-sale.json'));

export const options = {
  setupTimeout: '30m',
  vus: 1,
  iterations: 1,
  batch: CONCURRENCY,
  batchPerHost: CONCURRENCY,
};

export default function () {}

export function setup() {
  if (mistakes.length > 0) throw new Error(mistakes.join(' '));
  const shared = { stock: STOCK };
  for (const call of adapter.setup || []) Object.assign(shared, captured(call, one(requestOf(BASE_URL, call, shared))));
  const before = stored(shared);
  if (before.orders.length > 0) throw new Error(`after the setup ${before.orders.length} orders are stored`);
  const buyers = Array.from({ length: BUYERS }, (_, number) => buyer(number, shared));
  const storm = { began: Date.now(), requests: [], shared };

  // Every fifth buyer clicks twice, every other of them with the same key.
  const asks = buyers.flatMap((who, i) => {
    const ask = { who, key: `k6-${storm.began}-${i}` };
    return i % 5 > 0 ? [ask] : [ask, i % 2 ? { who, key: `${ask.key}-2` } : ask];
  });
  for (let sent = 0; sent < asks.length; sent += CONCURRENCY) patiently(storm, asks.slice(sent, sent + CONCURRENCY));
  patiently(storm, storm.requests.filter(isSold).slice(0, 10).map(({ user, key }) => ({ who: named(buyers, user), key })));

  let end = settled(storm, buyers);
  // While units are left, buyers who have none ask again: a few together, and then the last of them alone and at rest.
  for (let round = 0; round < 20 && missing(storm, end, buyers).length > 0; round += 1) {
    const before = end.orders.length;
    const few = missing(storm, end, buyers).slice(0, 16);
    patiently(storm, few.map((who, i) => ({ who, key: `k6-${storm.began}-again-${round}-${i}` })), 'again');
    end = stored(shared);
    if (end.orders.length === before) break;
  }
  end = settled(storm, buyers);
  missing(storm, end, buyers).slice(0, 3).forEach((who, i) => {
    if (left(storm, end) > 0) patiently(storm, [{ who, key: `k6-${storm.began}-last-${i}` }], 'last_call');
  });
  return { requests: storm.requests, stored: settled(storm, buyers) };
}

function one({ method, url, body, params }) {
  const response = http.request(method, url, body, params);
  if (response.status < 200 || response.status > 299) {
    throw new Error(`${method} ${url} answered ${response.status} ${response.body || response.error}`);
  }
  return response;
}

function captured(call, response) {
  const body = bodyOf(response);
  return Object.fromEntries(Object.entries(call.capture || {}).map(([name, pointer]) => [name, at(pointer, body)]));
}

function buyer(number, shared) {
  const own = { user: `u${number}`, number };
  for (const call of adapter.buyer || []) {
    // A session may set a cookie, which would be everybody's.
    http.cookieJar().clear(BASE_URL);
    Object.assign(own, captured(call, one(requestOf(BASE_URL, call, { ...shared, ...own }))));
  }
  http.cookieJar().clear(BASE_URL);
  return own;
}

const named = (buyers, user) => buyers.find((own) => String(own.user) === user);
const isSold = ({ means }) => means === 'sold';

/** Sends all of these at once, and again what has no answer yet. */
function patiently(storm, asks, phase = 'storm') {
  let open = asks;
  for (let attempt = 0; open.length > 0 && attempt <= RETRIES; attempt += 1) {
    if (attempt > 0) sleep(0.02 * 2 ** Math.min(attempt, 5));
    const start = Date.now() - storm.began;
    const responses = http.batch(
      open.map(({ who, key }) => requestOf(BASE_URL, adapter.order.request, { ...storm.shared, ...who, key })),
    );
    const heard = responses.map((response) => meaningOf(adapter.order, response));
    heard.forEach((meaning, i) => {
      const { blocked = 0, duration = 0 } = responses[i].timings;
      storm.requests.push({
        user: String(open[i].who.user),
        key: open[i].key,
        phase,
        start_us: start * 1000,
        end_us: Math.round((start + blocked + duration) * 1000),
        ...(responses[i].status > 0 ? { status: responses[i].status } : {}),
        ...meaning,
      });
    });
    open = open.filter((_, i) => ['lost', 'come_again'].includes(heard[i].means));
  }
}

/** What the server has stored, page by page, and what remains. */
function stored(shared) {
  const { request, next_page: next, rows: rowsAt, order_id: idAt, user: userAt, skip } = adapter.orders;
  const orders = [];
  const seen = {};
  for (let [path, last] = [request.path, undefined]; ; path = next) {
    const rows = at(rowsAt, bodyOf(one(requestOf(BASE_URL, request, { ...shared, last }, path))));
    for (const row of rows.filter((row) => !isSkipped(skip, row))) {
      orders.push({ order_id: String(at(idAt, row)), user: String(at(userAt, row)) });
    }
    last = rows.length > 0 ? at(idAt, rows[rows.length - 1]) : undefined;
    if (!next || last === undefined || seen[last]) break;
    seen[last] = true;
  }
  return { orders, ...remains(shared) };
}

function remains(shared) {
  const { remaining } = adapter;
  if (!remaining) return {};
  const { method, url, body, params } = requestOf(BASE_URL, remaining.request, shared);
  const response = http.request(method, url, body, params);
  return response.status === 404 && remaining.optional ? {} : { remaining: Number(at(remaining.at, bodyOf(response))) };
}

const told = (storm) => new Set(storm.requests.filter(isSold).map(({ user, order_id: id }) => `${user} ${id}`));
const left = (storm, { orders }) => STOCK - Math.max(orders.length, told(storm).size);

/** The buyers who have nothing, while units are left. */
function missing(storm, end, buyers) {
  if (left(storm, end) <= 0) return [];
  const served = new Set([...end.orders, ...storm.requests.filter(isSold)].map(({ user }) => user));
  return buyers.filter((own) => !served.has(String(own.user)));
}

/** What is stored once all that was told of is there, or once nothing has changed for a while. */
function settled(storm, buyers) {
  let [end, quiet] = [stored(storm.shared), 0];
  const isRight = () => {
    const ids = new Set(end.orders.map(({ user, order_id: id }) => `${user} ${id}`));
    const isCounted = end.remaining === undefined || end.remaining === STOCK - end.orders.length;
    return isCounted && [...told(storm)].every((order) => ids.has(order)) && missing(storm, end, buyers).length === 0;
  };
  while (quiet < SETTLE && !isRight()) {
    sleep(0.25);
    const next = stored(storm.shared);
    quiet = JSON.stringify(next) === JSON.stringify(end) ? quiet + 0.25 : 0;
    end = next;
  }
  return end;
}

export function handleSummary({ setup_data: data }) {
  if (!data) return { stdout: 'judge: no history: the setup failed\n' };
  const run = { server: BASE_URL, stock: STOCK, per_user: adapter.per_user || 1 };
  const lines = [{ run }, ...data.requests.map((request) => ({ request })), { stored: data.stored }];
  const file = `${OUT_DIR}/judge.jsonl`;
  const said = `judge: ${data.requests.length} requests, ${data.stored.orders.length} stored orders; now: flash-sale judge --history ${file}\n`;
  return { [file]: lines.map((line) => `${JSON.stringify(line)}\n`).join(''), stdout: said };
}
