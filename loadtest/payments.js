// Money under load: thousands of orders are paid on the provider's page, 5 % of it goes wrong, and
// in the end the books agree to the cent.
//
//   k6 run loadtest/payments.js                      3,000 orders, 100 people at a time
//   k6 run -e SHORT=1 loadtest/payments.js           300 orders, 20 people at a time
//
// The server has to pay with a sandbox, and this script has to know it: PAYMENT_URL and PAYMENT_KEY
// as the server has them. Of 200 orders one is left unpaid, one is declined first, one is paid in
// the last moment, and two have webhooks that are late. Ten are paid at once, by a call; of its
// answers a tenth is lost. Half a percent each of all webhooks is lost, sent twice or overtaken,
// and of all charges declined. The run fails unless everybody who was told that they have paid has,
// the books agree once nothing is under way, and no order is paid that nobody was told of.

import exec from 'k6/execution';
import { sleep } from 'k6';
import { Counter, Gauge, Trend } from 'k6/metrics';
import { buyer, findBuyers } from './lib/buyers.js';
import { act, buy, call, followOrder } from './lib/flash.js';
import { allOrders, createSale, judge, nothingLost } from './lib/operator.js';
import { always, alwaysTrue, guarded, promise } from './lib/promises.js';
import { click, setFaults, visitPage } from './lib/provider.js';
import { summary } from './lib/report.js';
import { admin, serverNow, serverOrGiveUp, waitFor } from './lib/requests.js';
import { SHORT, wholeNumber } from './lib/settings.js';

const ORDERS = wholeNumber('ORDERS', SHORT ? 300 : 3000);
const PEOPLE = wholeNumber('PEOPLE', SHORT ? 20 : 100);
const PAYMENT_TIMEOUT = wholeNumber('PAYMENT_TIMEOUT', 5); // seconds: a webhook that is lost is made up for too late
const TIME_LIMIT = SHORT ? 60 : 600; // seconds until everybody has to be done
const QUIET = 90; // seconds within which all money has to be where it belongs
const PRICE = 1999;
const FAULTS = { webhook_lose: 0.005, webhook_double: 0.005, webhook_reorder: 0.005, decline: 0.005, charge_and_no_answer: 0.1 };
const LATE_WEBHOOKS = { ...FAULTS, webhook_delay_ms: 2000 };

const paid = new Counter('flash_paid');
const declined = new Counter('flash_declined');
const tooLate = new Counter('flash_too_late');
const left = new Counter('flash_left');
const toldTime = new Trend('flash_told_ms', true);
// Up with everybody who was told that they have paid, down by what is paid in the end: in number,
// and by a checksum of which.
const toldMinusPaid = new Counter('flash_told_minus_paid');
const toldMinusPaidSum = new Counter('flash_told_minus_paid_sum');
const money = Object.fromEntries(['captured', 'refunded', 'paid'].map((name) => [name, new Gauge(`flash_books_${name}`)]));

export const options = {
  ...always,
  scenarios: {
    shoppers: { executor: 'shared-iterations', vus: PEOPLE, iterations: ORDERS, maxDuration: `${TIME_LIMIT}s`, exec: 'shopper' },
  },
  thresholds: {
    ...alwaysTrue,
    ...nothingLost,
    flash_paid: [`count>=${Math.floor(ORDERS * 0.9)}`],
    flash_told_minus_paid: ['count==0'],
    flash_told_minus_paid_sum: ['count==0'],
  },
};

export function setup() {
  serverOrGiveUp();
  setFaults({}); // gives up where there is no sandbox, before there is a sale
  const buyers = findBuyers(ORDERS);
  const sale = createSale({ title: 'Payments (k6)', stock: ORDERS, price_cents: PRICE, payment_timeout_secs: PAYMENT_TIMEOUT });
  // Last: k6 runs no teardown, which mends the sandbox, after a setup that gave up.
  setFaults(FAULTS);
  return { buyers, saleId: sale.id };
}

export function shopper({ buyers, saleId }) {
  guarded(() => {
    const who = exec.scenario.iterationInTest, mood = who % 200;
    if (mood === 3) setFaults(LATE_WEBHOOKS);
    if (mood === 5) setFaults(FAULTS);
    const token = buyer(buyers, who);
    const { ending, order_id: id } = buy(token, saleId);
    if (!promise(ending === 'won', `there is a unit for everybody (${ending})`)) return;
    const order = followOrder(token, id, ({ status }) => status !== 'queued');
    if (mood % 20 === 10) payAtOnce(token, id);
    else payOnThePage(token, order, mood);
  });
}

/** On the provider's page; after a decline on the next one. */
function payOnThePage(token, order, mood) {
  for (let page = 0; page < 5; page++) {
    const url = checkout(token, order.order_id);
    if (!url) break; // its time is over
    const seen = visitPage(url);
    if (seen.status === 410) break;
    promise(seen.status === 200 && seen.body.includes('SANDBOX'), `the page can be seen (${seen.status} ${seen.error || ''})`);
    if (mood === 2) sleep(Math.max(0, (Date.parse(order.pay_by) - serverNow()) / 1000 - 0.2));
    const button = ['leave', 'decline'][page === 0 ? mood : 2] || 'confirm';
    const began = Date.now();
    const clicked = click(url, button);
    if (clicked.status === 410) break;
    const back = clicked.headers.Location || '';
    promise(clicked.status === 303 && back.endsWith(`/orders?order=${order.order_id}`), `a click leads back (${clicked.status} ${back})`);
    if (button === 'leave') return left.add(1);
    if (hear(token, order.order_id, began)) return;
  }
  tooLate.add(1);
}

/** The address of the page; null where the order cannot be paid any more. */
function checkout(token, id) {
  let answer;
  waitFor(() => {
    answer = act('checkout', token, id);
    return answer.status !== 503;
  }, 30, 0.5);
  if (answer.code === 'not_payable') return null;
  promise(answer.status === 200, `there is a page to pay on (${answer.status} ${answer.body || answer.error})`);
  return answer.data && answer.data.url;
}

/** By a call. Its answer may be lost; then what came of it is told later. */
function payAtOnce(token, id) {
  for (let attempt = 0; attempt < 5; attempt++) {
    const began = Date.now();
    const { status, code, body, error } = act('pay', token, id);
    if (code === 'not_payable') break;
    const known = status === 200 || ['payment_declined', 'payment_pending', 'unavailable'].includes(code);
    promise(known, `paying is answered (${status} ${body || error})`);
    if (hear(token, id, began)) return;
  }
  tooLate.add(1);
}

/**
 * What the shopper's page comes to show: true when paid, or over; false when declined. It asks ever
 * more seldom.
 */
function hear(token, id, began) {
  let order = {};
  for (let pause = 0.05, waited = 0; waited < PAYMENT_TIMEOUT + 30; waited += pause, pause = Math.min(1, pause * 1.5)) {
    order = call('GET', `/api/v1/orders/${id}`, { token, name: 'GET /api/v1/orders/{id}' }).data || order;
    if (order.status === 'paid') {
      paid.add(1);
      toldTime.add(Date.now() - began);
      toldMinusPaid.add(1);
      toldMinusPaidSum.add(digits(id));
      return true;
    }
    if (order.status === 'pending_payment' && order.payment === 'declined') {
      declined.add(1);
      return false;
    }
    if (order.status === 'expired') {
      tooLate.add(1);
      return true;
    }
    sleep(pause);
  }
  return promise(false, `the shopper learns what became of the payment; order ${id} is ${order.status}, its payment ${order.payment}`) || true;
}

/** The last digits of an order's number. */
const digits = (id) => Number(id.slice(-6));

export function teardown(setupData) {
  if (!setupData) return;
  guarded(() => {
    setFaults({});
    compareBooks();
  });
  judge(setupData, () => {
    for (const { order_id: id, status } of allOrders(setupData.saleId)) {
      if (status !== 'paid') continue;
      toldMinusPaid.add(-1);
      toldMinusPaidSum.add(-digits(id));
    }
  });
}

/** Waits until no money is under way. The books are those of all sales of this server. */
function compareBooks() {
  let books = null;
  waitFor(() => {
    const { status, data } = admin('GET', '/books', undefined, '/api/v1/admin/books');
    books = status === 200 ? data : books;
    return status === 200 && data.quiescent;
  }, QUIET, 0.5);
  if (!promise(books, `GET /api/v1/admin/books gave no books within ${QUIET} s`)) return;
  for (const [name, gauge] of Object.entries(money)) gauge.add(books[`${name}_cents`]);
  promise(books.quiescent, `no money is under way ${QUIET} s after the last payment (${books.under_way} payments are)`);
  promise(books.provider, 'the provider keeps books, too');
  promise(books.ok, `the books agree; they say: ${books.drift.slice(0, 10).join('; ') || 'nothing'}`);
  promise(books.captured_cents - books.refunded_cents === books.paid_cents, 'what was captured and not refunded is what was paid');
}

export function handleSummary(data) {
  return summary('payments', data, { more });
}

function more(read) {
  const count = (name) => read.count(`flash_${name}`);
  const sums = Object.keys(money).map((name) => `${name} ${(read.gauge(`flash_books_${name}`) / 100).toFixed(2)}`);
  return [
    ['orders', `${count('paid')} paid, ${count('left')} left unpaid, ${count('too_late')} too late; ${count('declined')} times declined`],
    ['told', read.times('flash_told_ms')],
    ['books', `${sums.join(', ')}`],
  ];
}
