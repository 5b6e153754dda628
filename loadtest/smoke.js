// The whole surface once, by three shoppers and an operator: the quickest answer to "does this
// server work?".
//
//   k6 run -e ADMIN_TOKEN=… loadtest/smoke.js
//
// It makes sales of its own and closes them again. Every line of `expect` is a promise; one broken
// promise fails the run.

import { openSession } from './lib/buyers.js';
import { act, buy, followOrder, readSale } from './lib/flash.js';
import { auditWhenQuiet, closeSale, createSale } from './lib/operator.js';
import { always, alwaysTrue, guarded, promise } from './lib/promises.js';
import { summary } from './lib/report.js';
import { admin, call, serverOrGiveUp, waitFor } from './lib/requests.js';

export const options = {
  ...always,
  vus: 1,
  iterations: 1,
  thresholds: { ...alwaysTrue },
};

const SALE = '/api/v1/sales/{id}';
const ORDER = '/api/v1/orders/{id}';

/** The answer must have this status and, if it is a refusal, this code. */
function expect(what, response, status, code = '') {
  promise(
    response.status === status && response.code === code,
    `${what}: expected ${status} ${code}, got ${response.status} ${response.body || response.error}`,
  );
  return response;
}

/** Bad input must be refused with some 4xx and a code, never with a 500. */
function expectRefused(what, response) {
  promise(
    response.status >= 400 && response.status < 500 && response.code,
    `${what}: expected a 4xx with a code, got ${response.status} ${response.body || response.error}`,
  );
}

/** The answer to buy() must be this refusal. */
function expectEnding(what, attempt, code) {
  expect(what, attempt.response, 409, code);
  return attempt.response.data || {};
}

export function setup() {
  serverOrGiveUp();
}

export default function () {
  guarded(visitEverything);
}

function visitEverything() {
  around();
  const [ann, ben, eve] = ['Ann', 'Ben', 'Eve'].map(openSession);
  sessions(ann);
  const sale = createSale({ title: 'Smoke (k6)', stock: 4, payment_timeout_secs: 300 });
  catalogue(sale);
  const paid = buyAndPay(sale, ann, eve);
  buyAndCancel(sale, ben);
  refusals(sale, eve, paid);
  operating(sale, eve);
  windows(eve);

  const audit = auditWhenQuiet(sale.id);
  if (audit) promise(audit.paid === 1 && audit.cancelled === 1, 'the audit counts one paid and one cancelled order');
}

function around() {
  expect('liveness', call('GET', '/healthz'), 200);
  expect('OpenAPI', call('GET', '/openapi.json'), 200);
  if (__ENV.METRICS === 'off') return;
  const metrics = expect('metrics', call('GET', '/metrics'), 200);
  promise(metrics.body.includes('flash_sale_'), '/metrics has the metrics of the sale');
}

function sessions(ann) {
  const me = expect('who am I', call('GET', '/api/v1/session', { token: ann.token }), 200);
  promise(me.data && me.data.user_id === ann.user_id, 'the session is the one that was opened');
  expect('no token', call('GET', '/api/v1/session'), 401, 'unauthenticated');
  expect('a forged token', call('GET', '/api/v1/session', { token: `${ann.token}x` }), 401, 'unauthenticated');
  expectRefused('a session with an unknown member', call('POST', '/api/v1/session', { body: { name: 'X', role: 'admin' } }));
}

function catalogue(sale) {
  const list = expect('the catalogue', call('GET', '/api/v1/sales'), 200);
  const sales = (list.data && list.data.sales) || [];
  promise(sales.some(({ id }) => id === sale.id), 'the new sale is in the catalogue');
  const shown = expect('the sale', readSale(sale.id), 200).data || {};
  promise(shown.state === 'open' && shown.remaining === sale.stock, 'the new sale is open, and all of it is there');
}

function buyAndPay(sale, ann, eve) {
  const attempt = buy(ann.token, sale.id);
  expect('a purchase', attempt.response, 202);
  const id = attempt.order_id;
  promise((attempt.response.headers.Location || '').includes(id), 'a purchase says where its order is');
  const order = followOrder(ann.token, id, ({ status }) => status !== 'queued') || {};
  promise(order.status === 'pending_payment', `the order waits for payment; it is ${order.status}`);

  const again = expectEnding('a second purchase by the same user', buy(ann.token, sale.id), 'already_ordered');
  promise(again.order_id === id, 'the refusal names the first order');
  const pay = (token) => act('pay', token, id);
  expect("paying someone else's order", pay(eve.token), 404, 'order_not_found');
  const paid = expect('paying', pay(ann.token), 200);
  promise(paid.data && paid.data.status === 'paid' && paid.data.paid_at, 'a paid order is paid and says when');
  expect('paying again', pay(ann.token), 200);
  expect('cancelling a paid order', act('cancel', ann.token, id), 409, 'not_cancellable');

  const mine = expect('my orders', call('GET', '/api/v1/orders', { token: ann.token }), 200);
  promise(mine.data && mine.data.orders.length === 1 && mine.data.orders[0].order_id === id, 'my orders are mine');
  return id;
}

function buyAndCancel(sale, ben) {
  const first = buy(ben.token, sale.id, { key: 'smoke-1' });
  expect('a purchase with an Idempotency-Key', first.response, 202);
  const replay = buy(ben.token, sale.id, { key: 'smoke-1' });
  expect('the same again', replay.response, 202);
  promise(replay.order_id === first.order_id, 'the same key gives the same order');
  promise(replay.response.headers['Idempotent-Replayed'] === 'true', 'and says that it is a replay');

  followOrder(ben.token, first.order_id, ({ status }) => status !== 'queued');
  const cancel = () => act('cancel', ben.token, first.order_id);
  const cancelled = expect('cancelling', cancel(), 200);
  promise(cancelled.data && cancelled.data.status === 'cancelled', 'a cancelled order is cancelled');
  expect('cancelling again', cancel(), 200);
  expect('paying a cancelled order', act('pay', ben.token, first.order_id), 409, 'not_payable');

  // Of four units one is paid, and the cancelled one has to come back.
  let remaining;
  waitFor(() => {
    const shown = readSale(sale.id).data;
    remaining = shown && shown.remaining;
    return remaining === 3;
  });
  promise(remaining === 3, `the cancelled unit is for sale again within 10 s (${remaining} of 3 are)`);
}

function refusals(sale, eve, annsOrder) {
  const order = (path, options) => call('GET', `/api/v1/orders/${path}`, { name: `GET ${ORDER}`, ...options });
  expect("someone else's order", order(annsOrder, { token: eve.token }), 404, 'order_not_found');
  expect('an order without a token', order(annsOrder), 401, 'unauthenticated');
  expectRefused('a malformed order id', order('12ab', { token: eve.token }));
  expect('an unknown sale', call('GET', '/api/v1/sales/9223372036854775807', { name: `GET ${SALE}` }), 404, 'sale_not_found');
  expectRefused('a malformed sale id', call('GET', '/api/v1/sales/12ab', { name: `GET ${SALE}` }));

  const orders = (options) =>
    call('POST', `/api/v1/sales/${sale.id}/orders`, { name: `POST ${SALE}/orders`, ...options });
  expect('buying without a token', orders({}), 401, 'unauthenticated');
  const longKey = { 'Idempotency-Key': 'k'.repeat(65) };
  expect('an Idempotency-Key that is too long', orders({ token: eve.token, headers: longKey }), 422, 'invalid');

  expectRefused('negative stock', admin('POST', '/sales', { title: 'Bad', price_cents: 1, stock: -1 }));
  expectRefused('a title that is a number', admin('POST', '/sales', { title: 7, price_cents: 1, stock: 1 }));
  expectRefused('a body that is too large', admin('POST', '/sales', { title: 'x'.repeat(20000), price_cents: 1, stock: 1 }));
  const backwards = { opens_at: '2030-01-02T00:00:00Z', closes_at: '2030-01-01T00:00:00Z' };
  expectRefused(
    'a sale that closes before it opens',
    admin('POST', '/sales', { title: 'Bad', price_cents: 1, stock: 1, ...backwards }),
  );
  expect(
    'a wrong admin token',
    call('POST', '/api/v1/admin/sales', { token: 'wrong', body: { title: 'X', price_cents: 1, stock: 1 } }),
    401,
    'unauthenticated',
  );
}

function operating(sale, eve) {
  const operate = (verb, body) =>
    admin('POST', `/sales/${sale.id}/${verb}`, body, `/api/v1/admin/sales/{id}/${verb}`);
  const paused = expect('pausing', operate('pause'), 200);
  promise(paused.data && paused.data.state === 'paused', 'a paused sale says so');
  expectEnding('buying while paused', buy(eve.token, sale.id), 'paused');
  expect('resuming', operate('resume'), 200);
  expect('adding stock', operate('stock', { add: 2 }), 200);
  expect('taking away more than remains', operate('stock', { add: -100 }), 409, 'not_enough_remaining');
  expect('buying after resuming', buy(eve.token, sale.id).response, 202);
  expect('closing', closeSale(sale.id), 200);
  expectEnding('buying after the end', buy(eve.token, sale.id), 'ended');
}

function windows(eve) {
  const hour = 3600 * 1000;
  const later = createSale({
    title: 'Smoke, later (k6)',
    stock: 1,
    opens_at: new Date(Date.now() + hour).toISOString(),
    closes_at: new Date(Date.now() + 2 * hour).toISOString(),
  });
  const early = buy(eve.token, later.id);
  const refusal = expectEnding('buying too early', early, 'not_open');
  promise(refusal.opens_at && early.response.headers['Retry-After'], 'the refusal says when to come back');
  closeSale(later.id);

  const last = createSale({ title: 'Smoke, the last one (k6)', stock: 1, payment_timeout_secs: 300 });
  expect('the last unit', buy(eve.token, last.id).response, 202);
  expectEnding('one more', buy(openSession('Max').token, last.id), 'sold_out');
  auditWhenQuiet(last.id);
  closeSale(last.id);
}

export function handleSummary(data) {
  return summary('smoke', data);
}
