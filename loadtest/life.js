// The whole life of a sale: bought, then paid, cancelled or left to expire; what comes back is sold
// again, until all is paid.
//
//   k6 run loadtest/life.js                          200 units, 500 people at a time, some minutes at the most
//   k6 run -e SHORT=1 loadtest/life.js               10 units, 60 people
//
// Of ten people who get a unit six pay, two cancel, and two forget to pay. Those who find it sold
// out stay and try again. When every unit is paid, the operator ends the sale and everybody goes
// home. The run fails unless all units are paid in the end, each once, and every order ended as its
// buyer was told.

import exec from 'k6/execution';
import { sleep } from 'k6';
import { Counter, Trend } from 'k6/metrics';
import { buyer, findBuyers } from './lib/buyers.js';
import { actWhenWritten, buy, followOrder } from './lib/flash.js';
import { closeSale, createSale, judge, nothingLost, readAudit } from './lib/operator.js';
import { always, alwaysTrue, guarded, promise } from './lib/promises.js';
import { summary } from './lib/report.js';
import { serverOrGiveUp, waitFor } from './lib/requests.js';
import { SHORT, wholeNumber } from './lib/settings.js';

const UNITS = wholeNumber('UNITS', SHORT ? 10 : 200);
// Six of ten pay, so two people for each unit are enough; more, and there is a crowd to sell the
// returned ones to.
const PEOPLE = wholeNumber('PEOPLE', SHORT ? 60 : 500, UNITS * 2);
const PAYMENT_TIMEOUT = wholeNumber('PAYMENT_TIMEOUT', SHORT ? 1 : 5); // seconds
const TIME_LIMIT = SHORT ? 20 : 300; // seconds until the operator gives up

// What became of those who got a unit, as they saw it.
const paid = new Counter('flash_paid');
const cancelled = new Counter('flash_cancelled');
const expired = new Counter('flash_expired');
const payTime = new Trend('flash_pay_ms', true);
// Up with every order that its buyer saw end without a payment, and in the end down by the audit's
// count.
const endedDifferently = new Counter('flash_ended_differently');

export const options = {
  ...always,
  scenarios: {
    people: {
      executor: 'per-vu-iterations', // everybody comes once and stays to the end, so all of them are there at the same time
      vus: PEOPLE,
      iterations: 1,
      maxDuration: `${TIME_LIMIT + 30}s`,
      exec: 'person',
    },
    operator: { executor: 'per-vu-iterations', vus: 1, iterations: 1, maxDuration: `${TIME_LIMIT + 30}s`, exec: 'operator' },
  },
  thresholds: {
    ...alwaysTrue,
    ...nothingLost,
    flash_paid: [`count==${UNITS}`],
    flash_ended_differently: ['count==0'],
  },
};

export function setup() {
  serverOrGiveUp();
  const buyers = findBuyers(PEOPLE);
  const sale = createSale({ title: 'Whole life (k6)', stock: UNITS, payment_timeout_secs: PAYMENT_TIMEOUT });
  return { buyers, saleId: sale.id };
}

export function person({ buyers, saleId }) {
  guarded(() => {
    const who = exec.scenario.iterationInTest;
    const token = buyer(buyers, who);
    let attempt = buy(token, saleId);
    while (attempt.code === 'sold_out') {
      sleep(0.3 + Math.random() * 0.4);
      attempt = buy(token, saleId);
    }
    if (attempt.ending === 'won') decide(who % 10, token, attempt.order_id);
  });
}

function decide(mood, token, orderId) {
  if (mood < 6) pay(token, orderId);
  else if (mood < 8) cancel(token, orderId);
  else forget(token, orderId);
}

function pay(token, orderId) {
  const answer = actWhenWritten('pay', token, orderId);
  if (answer.status === 200) {
    paid.add(1);
    payTime.add(answer.timings.duration);
  } else if (answer.code === 'not_payable') {
    forget(token, orderId); // too late; the time to pay is short here
  } else {
    promise(false, `who has a unit can pay for it (${answer.status} ${answer.body || answer.error})`);
  }
}

function cancel(token, orderId) {
  const answer = actWhenWritten('cancel', token, orderId);
  if (answer.status === 200 && answer.data.status === 'cancelled') {
    cancelled.add(1);
    endedDifferently.add(1);
  } else if (answer.code === 'not_cancellable') {
    forget(token, orderId); // too late for this as well
  } else {
    promise(false, `who has not paid can cancel (${answer.status} ${answer.body || answer.error})`);
  }
}

function forget(token, orderId) {
  const order = followOrder(token, orderId, ({ status }) => status === 'expired', PAYMENT_TIMEOUT + 10) || {};
  promise(order.status === 'expired', `an order that nobody pays expires; this one is ${order.status}`);
  expired.add(1);
  endedDifferently.add(1);
}

export function operator({ saleId }) {
  guarded(() => {
    const isOver = () => {
      const audit = readAudit(saleId);
      return audit && audit.paid === UNITS;
    };
    promise(waitFor(isOver, TIME_LIMIT, 0.2), `all ${UNITS} units are paid within ${TIME_LIMIT} s`);
    closeSale(saleId);
  });
}

export function teardown(setupData) {
  judge(setupData, (audit) => {
    promise(audit.paid === UNITS, `all ${UNITS} units are paid; the audit counts ${audit.paid}`);
    promise(audit.pending_payment === 0, `no order is left over; ${audit.pending_payment} wait for payment`);
    endedDifferently.add(-(audit.cancelled + audit.expired));
  });
}

export function handleSummary(data) {
  return summary('life', data, { more });
}

function more(read) {
  const orders = read.count('flash_won');
  const ends = ['paid', 'cancelled', 'expired'].map((end) => `${read.count(`flash_${end}`)} ${end}`).join(', ');
  return [
    ['orders', `${orders}: ${ends}; ${orders - UNITS} of them for units that had come back`],
    ['paying', read.times('flash_pay_ms')],
  ];
}
