// The storm of `flash-sale judge`, sent by k6 to any server that has an adapter. It judges nothing:
// it leaves the history of every request and what is stored in a file.
//
//   k6 run loadtest/judge.js                       this program (RATE_LIMIT=off, ADMIN_TOKEN)
//   k6 run -e ADAPTER=crates/judge/adapters/contract.json -e BASE_URL=http://127.0.0.1:9000 loadtest/judge.js
//   flash-sale judge --history loadtest/out/judge.jsonl
//
// Everything happens in setup(), wave by wave with http.batch, because what setup() returns is the
// one thing that k6 hands from the script to the summary, and only the summary can write a file. A
// wave begins when the one before has ended, so "before" in the history is before on the server,
// too.

import http from 'k6/http';
import { sleep } from 'k6';
import { found, requestOf } from './lib/adapter.js';
import { at, bodyOf, isSkipped, meaningOf, textOf } from './lib/answers.js';
import { BASE_URL, OUT_DIR, SHORT, mistakes, wholeNumber } from './lib/settings.js';

const STOCK = wholeNumber('STOCK', SHORT ? 20 : 100);
const BUYERS = wholeNumber('BUYERS', SHORT ? 60 : 2000);
const CONCURRENCY = wholeNumber('CONCURRENCY', SHORT ? 20 : 100);
const RETRIES = wholeNumber('RETRIES', 5, 0);
const SETTLE = wholeNumber('SETTLE', 5);
const MOST_PAGES = 2000;
/** Seconds after which what is stored must not change any more. */
const LONGEST_REST = 60 + SETTLE;
const fromHere = (file) => (file.startsWith('/') || !__ENV.PWD ? file : `${__ENV.PWD}/${file}`);
const adapter = JSON.parse(open(__ENV.ADAPTER ? fromHere(__ENV.ADAPTER) : '../examples/adapters/flash-sale.json'));
const KEYED = JSON.stringify(adapter.order.request).includes('{key}');

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
  (adapter.setup || []).forEach((call, i) => {
    Object.assign(shared, captured(call, one(requestOf(BASE_URL, call, shared)), `setup[${i}]`));
  });
  startsEmpty(shared);
  const buyers = Array.from({ length: BUYERS }, (_, number) => buyer(number, shared));
  if (new Set(buyers.map(({ user }) => String(user))).size < BUYERS) throw new Error('two buyers have one name');
  const storm = { began: Date.now(), last: 0, requests: [], shared };

  // Every fifth buyer clicks twice, every other of them with the same key.
  const asks = buyers.flatMap((who, i) => {
    const ask = { who, key: `k6-${storm.began}-${i}` };
    return i % 5 > 0 ? [ask] : [ask, i % 2 ? { who, key: `${ask.key}-2` } : ask];
  });
  for (let sent = 0; sent < asks.length; sent += CONCURRENCY) send(storm, asks.slice(sent, sent + CONCURRENCY));
  const winners = KEYED ? storm.requests.filter(isSold).slice(0, 10) : [];
  send(storm, winners.map(({ user, key }) => ({ who: named(buyers, user), key })));

  try {
    return { requests: storm.requests, stored: atRest(storm, buyers) };
  } catch (error) {
    // Without it the history is undecided.
    console.warn(`what is stored is left out: ${error.message}`);
    return { requests: storm.requests };
  }
}

/** What is stored in the end. */
function atRest(storm, buyers) {
  let end = settled(storm, buyers);
  // While units are left, buyers who have none ask again: a few together, and then the last of them
  // alone and at rest.
  for (let round = 0; round < 20 && missing(storm, end, buyers).length > 0; round += 1) {
    const before = end.orders.length;
    const few = missing(storm, end, buyers).slice(0, 16);
    send(storm, few.map((who, i) => ({ who, key: `k6-${storm.began}-again-${round}-${i}` })), 'again');
    end = readable(storm.shared);
    if (end.orders.length === before) break;
  }
  end = settled(storm, buyers);
  const asked = [];
  for (let waiting = missing(storm, end, buyers); ; waiting = missing(storm, end, buyers)) {
    const who = waiting.find((own) => !asked.includes(own));
    if (!who || waiting.filter((own) => asked.includes(own)).length >= 3) break;
    asked.push(who);
    send(storm, [{ who, key: `k6-${storm.began}-last-${asked.length}` }], 'last_call');
  }
  return settled(storm, buyers);
}

/** What was there before would be taken for something that this storm has done. */
function startsEmpty(shared) {
  for (let waited = 0; ; waited += 0.25) {
    const { orders, remaining } = readable(shared);
    if (orders.length === 0 && [undefined, STOCK].includes(remaining)) return;
    if (waited >= 5) throw new Error(`after the setup ${orders.length} orders are stored, and ${remaining} units remain`);
    sleep(0.25);
  }
}

function one({ method, url, body, params }) {
  const response = http.request(method, url, body, params);
  if (response.status < 200 || response.status > 299) {
    throw new Error(`${method} ${url} answered ${response.status} ${response.body || response.error}`);
  }
  return response;
}

function captured(call, response, member) {
  const captures = Object.entries(call.capture || {}).map(([name, place]) => [name, found(place, response)]);
  captures.forEach(([name, value]) => textOf(value, `${member}.capture.${name}`));
  return Object.fromEntries(captures);
}

function buyer(number, shared) {
  const own = { user: `u${number}`, number };
  (adapter.buyer || []).forEach((call, i) => {
    Object.assign(own, captured(call, one(requestOf(BASE_URL, call, { ...shared, ...own })), `buyer[${i}]`));
  });
  return own;
}

const named = (buyers, user) => buyers.find((own) => String(own.user) === user);
const isSold = ({ means }) => means === 'sold';

/** Sends all of these at once, and again what has no answer yet. */
function send(storm, asks, phase = 'storm') {
  let open = asks;
  for (let attempt = 0; open.length > 0 && attempt <= RETRIES; attempt += 1) {
    if (attempt > 0) sleep(0.02 * 2 ** Math.min(attempt, 5));
    // The clock may have been set back.
    const start = Math.max(storm.last, Date.now() - storm.began);
    storm.last = start;
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
  const seen = new Set();
  for (let [path, last, pages] = [request.path, undefined, 1]; ; path = next, pages += 1) {
    if (pages > MOST_PAGES) throw new Error(`${path}: more than ${MOST_PAGES} pages`);
    const rows = at(rowsAt, bodyOf(one(requestOf(BASE_URL, request, { ...shared, last }, path))));
    if (!Array.isArray(rows)) throw new Error(`adapter: orders.rows: no list at "${rowsAt}"`);
    const row = (one) => ({
      order_id: textOf(at(idAt, one), 'orders.order_id'),
      user: textOf(at(userAt, one), 'orders.user'),
    });
    const page = rows.filter((one) => !isSkipped(skip, one)).map(row);
    if (page.length > 0 && seen.has(JSON.stringify(page[0]))) {
      throw new Error(`next_page repeats order ${page[0].order_id}: it must begin after {last}`);
    }
    for (const row of page) {
      orders.push(row);
      seen.add(JSON.stringify(row));
    }
    last = rows.length > 0 ? at(idAt, rows[rows.length - 1]) : undefined;
    if (!next || last === undefined) break;
  }
  // A listing may have any order, and two of them are compared.
  const key = ({ order_id: id, user }) => JSON.stringify([id, user]);
  orders.sort((one, other) => (key(one) < key(other) ? -1 : 1));
  return { orders, ...remains(shared) };
}

/** The same, also if it cannot be read for a while. */
function readable(shared) {
  for (let waited = 0; ; waited += 0.25) {
    try {
      return stored(shared);
    } catch (error) {
      if (waited >= SETTLE) throw error;
      sleep(0.25);
    }
  }
}

function remains(shared) {
  const { remaining } = adapter;
  if (!remaining) return {};
  const { method, url, body, params } = requestOf(BASE_URL, remaining.request, shared);
  const response = http.request(method, url, body, params);
  if (response.status === 404 && remaining.optional) return {};
  const units = at(remaining.at, bodyOf(response));
  const number = Number(units);
  const isCount = ['string', 'number'].includes(typeof units) && String(units).trim() !== '' && Number.isInteger(number);
  if (response.status < 200 || response.status > 299 || !isCount) {
    throw new Error(`adapter: remaining.at: ${url} answered ${response.status} without a whole number at "${remaining.at}"`);
  }
  return { remaining: number };
}

/**
 * Who was told of which orders; an answer without an id counts only where no other answer has one.
 */
function told(storm) {
  const sold = storm.requests.filter(isSold);
  const named = new Set(sold.filter(({ order_id: id }) => id !== undefined).map(({ user }) => user));
  const orders = sold.filter(({ user, order_id: id }) => id !== undefined || !named.has(user));
  return new Set(orders.map(({ user, order_id: id }) => (id === undefined ? user : `${user} ${id}`)));
}

const left = (storm, { orders }) => STOCK - Math.max(orders.length, told(storm).size);

/** The buyers who have nothing, while units are left. */
function missing(storm, end, buyers) {
  if (left(storm, end) <= 0) return [];
  const served = new Set([...end.orders, ...storm.requests.filter(isSold)].map(({ user }) => user));
  return buyers.filter((own) => !served.has(String(own.user)));
}

/**
 * What is stored once it is all that was told of and stays so, or once nothing has changed for a
 * while.
 */
function settled(storm, buyers) {
  let [end, quiet] = [readable(storm.shared), 0];
  // A server may still be working on what it has not answered, put off or only accepted.
  const mayWork = ({ means, status }) =>
    ['lost', 'unexpected', 'come_again'].includes(means) || (means === 'sold' && status === 202);
  const least = Math.min(SETTLE, storm.requests.some(mayWork) ? 2 : 0.5);
  const known = told(storm);
  const isRight = () => {
    const ids = new Set(end.orders.flatMap(({ user, order_id: id }) => [user, `${user} ${id}`]));
    const isTold = ({ user, order_id: id }) => known.has(user) || known.has(`${user} ${id}`);
    const isCounted = end.remaining === undefined || end.remaining === STOCK - end.orders.length;
    const isStored = [...known].every((order) => ids.has(order)) && end.orders.every(isTold);
    return isCounted && isStored && missing(storm, end, buyers).length === 0;
  };
  const began = Date.now();
  while (quiet < SETTLE && (quiet < least || !isRight())) {
    if (Date.now() - began > LONGEST_REST * 1000) throw new Error('stored orders were still changing');
    sleep(0.25);
    const next = readable(storm.shared);
    quiet = JSON.stringify(next) === JSON.stringify(end) ? quiet + 0.25 : 0;
    end = next;
  }
  return end;
}

export function handleSummary({ setup_data: data }) {
  if (!data) return { stdout: 'judge: no history: the setup failed\n' };
  const run = { server: BASE_URL, stock: STOCK, per_user: adapter.per_user || 1, keyed: KEYED };
  const { requests, stored: end } = data;
  const lines = [{ run }, ...requests.map((request) => ({ request })), ...(end ? [{ stored: end }] : [])];
  const file = `${OUT_DIR}/judge.jsonl`;
  const rows = end ? `${end.orders.length} stored orders` : 'stored orders unknown';
  const said = `judge: ${requests.length} requests, ${rows}; now: flash-sale judge --history ${file}\n`;
  return { [file]: lines.map((line) => `${JSON.stringify(line)}\n`).join(''), stdout: said };
}
