// What the load scripts share: talking to a flash-sale server, finding buyers, counting winners and losers apart,
// and asking the server afterwards whether all of it was correct.
//
// Runs on k6 1.x and 2.x, and imports nothing from the network.

import http from 'k6/http';
import exec from 'k6/execution';
import { sleep } from 'k6';
import { SharedArray } from 'k6/data';
import { Counter, Gauge, Trend } from 'k6/metrics';

export const BASE_URL = (__ENV.BASE_URL || 'http://127.0.0.1:8080').replace(/\/+$/, '');
export const SHORT = __ENV.SHORT === '1';
const ADMIN_TOKEN = __ENV.ADMIN_TOKEN || '';
const TOKENS_FILE = __ENV.TOKENS_FILE || '';

// --- metrics ---------------------------------------------------------------------------------------------------------

// One counter for each way a purchase can end. Together they add up to the attempts.
const endings = {
  won: new Counter('flash_won'),
  sold_out: new Counter('flash_sold_out'),
  already_ordered: new Counter('flash_already_ordered'),
  closed: new Counter('flash_closed'), // not open yet, paused, ended
  rate_limited: new Counter('flash_rate_limited'),
  unavailable: new Counter('flash_unavailable'), // 503: the gate is closed or the backlog is full; no stock was taken
  unexpected: new Counter('flash_unexpected'), // no answer, 5xx, or an answer that API.md does not know
};
// A refusal is much cheaper than a sale. In one average the thousands who lose would hide the ten who win.
const wonTime = new Trend('flash_won_ms', true);
const lostTime = new Trend('flash_lost_ms', true);

const promises = new Counter('flash_promises'); // what was checked
const broken = new Counter('flash_promises_broken'); // what did not hold
const auditLive = new Gauge('flash_audit_live');
const auditOversold = new Gauge('flash_audit_oversold');

/** Belongs into every script's thresholds. A promise broken in teardown fails the run too: k6 judges thresholds last. */
export const alwaysTrue = {
  flash_promises_broken: ['count==0'],
  flash_unexpected: ['count==0'],
};

/** Counts and reports one thing that has to hold. The run goes on, so that one failure does not hide the others. */
export function promise(holds, text) {
  promises.add(1);
  broken.add(holds ? 0 : 1);
  if (!holds) console.error(`BROKEN: ${text}`);
  return Boolean(holds);
}

/** Ends the whole run with a reason that a person can act on. */
export function giveUp(reason) {
  // Counted as well, so that the summary of a run that was given up half-way cannot say PASSED.
  broken.add(1);
  exec.test.abort(reason);
}

/** Runs a part of the script. k6 logs an exception and goes on as if all were well; here it breaks a promise. */
export function guarded(part) {
  try {
    part();
  } catch (error) {
    promise(false, `the script could go on; instead: ${error.stack || error}`);
  }
}

// --- requests --------------------------------------------------------------------------------------------------------

// Refusals are ordinary answers in a flash sale; only a 5xx or no answer at all counts as failed in k6's own metrics.
http.setResponseCallback(http.expectedStatuses({ min: 200, max: 499 }));

/**
 * One request. `name` groups the URLs of one route in k6's own metrics; without it every order id is a metric of its own.
 * Answers `{status, body, error, headers, timings, data, code}`: `data` is the parsed body or null, `code` the problem's
 * code or ''. (A copy, because k6's own response takes no new fields.)
 */
export function call(method, path, { token, body, headers, name } = {}) {
  // Opening a session also sets a cookie, which k6 would send from then on: then nobody would be without a token.
  http.cookieJar().clear(BASE_URL);
  const text = body === undefined ? null : typeof body === 'string' ? body : JSON.stringify(body);
  const response = http.request(method, `${BASE_URL}${path}`, text, {
    headers: {
      ...(token ? { Authorization: `Bearer ${token}` } : {}),
      ...(text === null ? {} : { 'Content-Type': 'application/json' }),
      ...headers,
    },
    tags: { name: name || `${method} ${path}` },
    redirects: 0,
    timeout: '15s',
  });
  return understood(response);
}

function understood(response) {
  let data = null;
  try {
    data = JSON.parse(response.body);
  } catch (_) {
    // Not JSON: a page, the metrics, or nothing.
  }
  const { status, body, error, headers, timings } = response;
  return { status, body: body || '', error, headers, timings, data, code: (data && data.code) || '' };
}

/** The same with the admin token, and with the usual mistakes explained. */
export function admin(method, path, body, name) {
  const response = call(method, `/api/v1/admin${path}`, { token: ADMIN_TOKEN, body, name: name && `${method} ${name}` });
  if (response.status === 401) giveUp('The server does not accept this ADMIN_TOKEN.');
  if (response.status === 404 && response.code !== 'sale_not_found') {
    giveUp('The server has no admin routes: it was started without an ADMIN_TOKEN.');
  }
  return response;
}

/** Ends the run unless the server is there and ready. The first thing in every setup(). */
export function serverOrGiveUp() {
  const response = call('GET', '/readyz');
  if (response.status === 0) giveUp(`No server at ${BASE_URL} (${response.error}). Start one with: make run`);
  if (response.status !== 200) giveUp(`${BASE_URL} is not ready: ${response.status} ${response.body}`);
  if (!ADMIN_TOKEN) {
    giveUp('ADMIN_TOKEN is not set. The server prints it when it first starts embedded; give the same one to k6.');
  }
}

// --- buyers ----------------------------------------------------------------------------------------------------------

// `open` looks beside the script, but a person who writes TOKENS_FILE=tokens.json means the folder they are in.
const fromHere = (file) => (file.startsWith('/') || !__ENV.PWD ? file : `${__ENV.PWD}/${file}`);

// Shared by all VUs: a million tokens are held once. Errors are kept as a value, because this runs before setup().
const fileTokens = new SharedArray('tokens', () => {
  if (!TOKENS_FILE) return [];
  let rows;
  try {
    rows = JSON.parse(open(fromHere(TOKENS_FILE)));
  } catch (error) {
    return [{ error: `TOKENS_FILE=${TOKENS_FILE} cannot be read: ${error}` }];
  }
  if (!Array.isArray(rows) || rows.length === 0 || !rows.every((row) => row && typeof row.token === 'string')) {
    return [{ error: `TOKENS_FILE=${TOKENS_FILE} is not what "flash-sale tokens --out" writes: [{"user_id","token"},…]` }];
  }
  return rows.map((row) => row.token);
});

/** Opens a session for one new shopper. */
export function openSession(name) {
  const response = call('POST', '/api/v1/session', { body: { name } });
  if (response.status !== 201) giveUpOnSession(response);
  return response.data;
}

function giveUpOnSession(response) {
  if (response.status === 429) {
    giveUp(
      'The server limits how many sessions one address may open. Start it with RATE_LIMIT=off, or write tokens ' +
        'with "flash-sale tokens --users 100000 --out tokens.json" and pass TOKENS_FILE=tokens.json.',
    );
  }
  giveUp(`POST /api/v1/session answered ${response.status} ${response.body || response.error}`);
}

/**
 * Makes sure of `count` different shoppers: those of TOKENS_FILE, else it opens sessions. Call it in setup() and hand the
 * result to `buyer`.
 */
export function findBuyers(count) {
  if (TOKENS_FILE) {
    if (fileTokens[0].error) giveUp(fileTokens[0].error);
    if (fileTokens.length < count) giveUp(`TOKENS_FILE has ${fileTokens.length} tokens, and ${count} buyers are needed.`);
    const response = call('GET', '/api/v1/session', { token: fileTokens[0] });
    if (response.status === 401) {
      giveUp('The server does not accept the tokens of TOKENS_FILE: they have expired, or its TOKEN_SECRET is another.');
    }
    return { opened: null };
  }
  const opened = [];
  while (opened.length < count) {
    const wave = Math.min(50, count - opened.length);
    const requests = Array.from({ length: wave }, (_, i) => ({
      method: 'POST',
      url: `${BASE_URL}/api/v1/session`,
      body: JSON.stringify({ name: `Load ${opened.length + i + 1}` }),
      params: { headers: { 'Content-Type': 'application/json' }, tags: { name: 'POST /api/v1/session' } },
    }));
    for (const response of http.batch(requests)) {
      if (response.status !== 201) giveUpOnSession(response);
      opened.push(understood(response).data.token);
    }
  }
  return { opened };
}

/** The token of buyer number `index`, which counts from 0. */
export function buyer(buyers, index) {
  return buyers.opened ? buyers.opened[index] : fileTokens[index];
}

// --- sales and purchases ---------------------------------------------------------------------------------------------

/** Creates a sale of its own for this run, open from now on. */
export function createSale(fields) {
  const response = admin('POST', '/sales', { currency: 'EUR', price_cents: 9900, ...fields }, '/api/v1/admin/sales');
  if (response.status !== 201) giveUp(`The sale could not be created: ${response.status} ${response.body || response.error}`);
  return response.data;
}

// The codes of API.md, by how they count.
const ENDING_OF_CODE = {
  sold_out: 'sold_out',
  already_ordered: 'already_ordered',
  not_open: 'closed',
  paused: 'closed',
  ended: 'closed',
  rate_limited: 'rate_limited',
  unavailable: 'unavailable',
};

let complained = false; // one detailed complaint from each VU is enough; the counters have the rest

/** One attempt to buy. Counts and times it, and answers `{ending, code, order_id, response}`. */
export function buy(token, saleId, { key } = {}) {
  const response = call('POST', `/api/v1/sales/${saleId}/orders`, {
    token,
    headers: key ? { 'Idempotency-Key': key } : {},
    name: 'POST /api/v1/sales/{id}/orders',
  });
  const order_id = response.data && response.data.order_id;
  const won = response.status === 202 && order_id;
  const ending = won ? 'won' : (response.status >= 400 && ENDING_OF_CODE[response.code]) || 'unexpected';
  endings[ending].add(1);
  (won ? wonTime : lostTime).add(response.timings.duration);
  if (ending === 'unexpected' && !complained) {
    complained = true;
    console.error(`an order was answered ${response.status} ${response.body || response.error}`);
  }
  return { ending, code: response.code, order_id, response };
}

/** Reads an order until `until(order)` or until the seconds are over; answers the last one read. */
export function followOrder(token, orderId, until, seconds = 10) {
  const deadline = Date.now() + seconds * 1000;
  for (;;) {
    const response = call('GET', `/api/v1/orders/${orderId}`, { token, name: 'GET /api/v1/orders/{id}' });
    if ((response.status === 200 && until(response.data)) || Date.now() > deadline) return response.data;
    sleep(0.05);
  }
}

/**
 * Asks the audit until nothing is on its way any more, and counts what it must say. Answers the last audit.
 * A backlog that does not drain within the seconds is itself a broken promise (invariant I10).
 */
export function auditWhenQuiet(saleId, seconds = 30) {
  const deadline = Date.now() + seconds * 1000;
  let audit = null;
  for (;;) {
    const response = admin('GET', `/sales/${saleId}/audit`, undefined, '/api/v1/admin/sales/{id}/audit');
    if (response.status === 200) audit = response.data;
    if ((audit && audit.quiescent) || Date.now() > deadline) break;
    sleep(0.2);
  }
  if (!promise(audit, `GET /api/v1/admin/sales/${saleId}/audit gave no audit within ${seconds} s`)) return null;
  auditLive.add(audit.live);
  auditOversold.add(audit.oversold);
  promise(audit.quiescent, `the sale is quiet within ${seconds} s of the last purchase (backlog ${audit.backlog})`);
  promise(audit.ok, `the audit is ok; it says: ${(audit.problems || []).join('; ') || 'nothing'}`);
  promise(audit.oversold === 0, `nothing is oversold (${audit.oversold})`);
  promise(audit.duplicate_users === 0, `nobody has more than their share (${audit.duplicate_users} have)`);
  promise(audit.conserved === true, `stock = remaining + held + paid, in Redis and in Postgres (${audit.conserved})`);
  return audit;
}

// --- the summary -----------------------------------------------------------------------------------------------------

function value(data, metric, key) {
  const found = data.metrics[metric];
  const values = found && (found.values || found);
  return (values && values[key]) || 0;
}

const milliseconds = (data, metric) =>
  ['med', 'p(95)', 'max'].map((key) => `${key} ${value(data, metric, key).toFixed(1)} ms`).join(', ');

/**
 * For handleSummary: a verdict that fits one screen, and everything as JSON in loadtest/out/ (or OUT_DIR).
 * `passed` repeats k6's own judgement, so what is printed and the exit code cannot differ.
 */
export function summary(name, data) {
  const failed = [];
  for (const [metric, { thresholds }] of Object.entries(data.metrics)) {
    for (const [rule, { ok }] of Object.entries(thresholds || {})) {
      if (!ok) failed.push(`${metric} ${rule}, but it is ${value(data, metric, 'count')}`);
    }
  }
  const counted = Object.keys(endings)
    .map((ending) => [ending.replace('_', ' '), value(data, `flash_${ending}`, 'count')])
    .filter(([, count]) => count > 0);
  const attempts = counted.reduce((sum, [, count]) => sum + count, 0);
  const checked = value(data, 'flash_promises', 'count');
  // A run that was given up in setup has met no threshold and kept no promise; it must not look like a success.
  const passed = failed.length === 0 && checked > 0;

  const lines = [
    '',
    `${passed ? 'PASSED' : 'FAILED'}  ${name}  (${BASE_URL})`,
    `  attempts  ${attempts}: ${counted.map(([ending, count]) => `${count} ${ending}`).join(', ') || 'none'}`,
  ];
  if (value(data, 'flash_won', 'count')) lines.push(`  winners   ${milliseconds(data, 'flash_won_ms')}`);
  if (attempts > value(data, 'flash_won', 'count')) lines.push(`  others    ${milliseconds(data, 'flash_lost_ms')}`);
  if (data.metrics.flash_audit_live) {
    lines.push(
      `  audit     ${value(data, 'flash_audit_live', 'value')} units sold, ` +
        `${value(data, 'flash_audit_oversold', 'value')} oversold`,
    );
  }
  lines.push(`  promises  ${Math.max(0, checked - value(data, 'flash_promises_broken', 'count'))} of ${checked} kept`);
  if (checked === 0) lines.push('  failed    nothing was checked; the reason is the error above or below');
  else for (const line of failed) lines.push(`  failed    ${line}`);
  lines.push('', '');

  const folder = __ENV.OUT_DIR || import.meta.resolve('../out').replace(/^file:\/\//, '');
  return { stdout: lines.join('\n'), [`${folder}/${name}.json`]: JSON.stringify({ name, passed, failed, ...data }, null, 2) };
}
