// An ordinary hour: many look, few buy.
//
//   k6 run loadtest/browse.js                        100 people browse for a minute, 5 a second buy
//   k6 run -e SHORT=1 loadtest/browse.js             20 people, 5 seconds
//
// Browsing is a closed model, because people read before they click; buying is an open one, because
// buyers keep coming. A page follows a sale by server-sent events. k6's core has no client for a
// stream that does not end (a request would only run into its timeout, without its body), so the
// lookers poll, which is what a page does where events are cut off. The events of an order do end,
// with the order; the buyers read those.
//
// The run fails if anybody is ever shown an impossible sale, or if the pages and the audit disagree
// in the end.

import exec from 'k6/execution';
import { sleep } from 'k6';
import { Trend } from 'k6/metrics';
import { steady } from './lib/arrivals.js';
import { buyer, findBuyers } from './lib/buyers.js';
import { actWhenWritten, buy, readSale } from './lib/flash.js';
import { createSale, judge, nothingLost } from './lib/operator.js';
import { always, alwaysTrue, guarded, promise } from './lib/promises.js';
import { summary } from './lib/report.js';
import { call, serverOrGiveUp, waitFor } from './lib/requests.js';
import { SHORT, seconds, wholeNumber } from './lib/settings.js';

const LOOKERS = wholeNumber('LOOKERS', SHORT ? 20 : 100);
const BUYERS_A_SECOND = wholeNumber('BUYERS_A_SECOND', 5);
const DURATION = seconds('DURATION', SHORT ? 5 : 60);
const BUYERS = BUYERS_A_SECOND * DURATION + 1;
const UNITS = Math.ceil(BUYERS / 2); // so that it sells out half-way, and the lookers see it

const listTime = new Trend('flash_list_ms', true);
const saleTime = new Trend('flash_sale_ms', true);

export const options = {
  ...always,
  scenarios: {
    lookers: { executor: 'constant-vus', vus: LOOKERS, duration: `${DURATION}s`, exec: 'look' },
    buyers: { ...steady(BUYERS_A_SECOND, DURATION, BUYERS_A_SECOND * 4), exec: 'shop' },
  },
  thresholds: { ...alwaysTrue, ...nothingLost, flash_won: [`count==${UNITS}`] },
};

export function setup() {
  serverOrGiveUp();
  const buyers = findBuyers(BUYERS);
  const sale = createSale({ title: 'Browsing (k6)', stock: UNITS, payment_timeout_secs: 900 });
  return { buyers, saleId: sale.id };
}

const think = (least, most) => sleep(least + Math.random() * (most - least));

/** Opens the list, then one sale, and watches it for a while. */
export function look({ saleId }) {
  guarded(() => {
    const list = call('GET', '/api/v1/sales');
    listTime.add(list.timings.duration);
    promise(list.status === 200 && list.data && list.data.sales, `the list can be read (${list.status} ${list.error || ''})`);
    think(0.2, 0.6);
    for (let polls = 0; polls < 4; polls++) {
      lookAt(saleId);
      think(0.3, 0.7);
    }
  });
}

const STATES = ['open', 'sold_out'];

/** Reads the sale and makes sure that it can be true. Answers the units that remain. */
function lookAt(saleId) {
  const { status, data, error, timings } = readSale(saleId);
  saleTime.add(timings.duration);
  if (!promise(status === 200 && data, `the sale can be read (${status} ${error || ''})`)) return null;
  const { remaining, state } = data;
  promise(remaining >= 0 && remaining <= UNITS, `between 0 and ${UNITS} units remain; a page showed ${remaining}`);
  promise(STATES.includes(state), `the sale is open or sold out; a page showed ${state}`);
  return remaining;
}

/** Looks, buys, pays, and follows the order to its end. */
export function shop({ buyers, saleId }) {
  guarded(() => {
    const token = buyer(buyers, exec.scenario.iterationInTest);
    lookAt(saleId);
    const { ending, order_id } = buy(token, saleId);
    if (ending !== 'won') return;
    const paid = actWhenWritten('pay', token, order_id);
    promise(paid.status === 200, `a buyer can pay (${paid.status} ${paid.body})`);
    const events = call('GET', `/api/v1/orders/${order_id}/events`, { token, name: 'GET /api/v1/orders/{id}/events' });
    promise(
      events.body.includes('event: order') && events.body.includes('"status":"paid"'),
      `the events of a paid order say so and end (${events.status} ${events.error || events.body})`,
    );
  });
}

export function teardown(setupData) {
  if (setupData) {
    // Before the sale is closed: what everybody is shown is a moment behind, never for long.
    const settled = waitFor(() => lookAt(setupData.saleId) === 0);
    promise(settled, 'within 10 s of the last purchase the pages show that nothing is left');
  }
  judge(setupData, (audit) => {
    promise(audit.paid === UNITS, `${UNITS} units are paid; the audit counts ${audit.paid}`);
  });
}

export function handleSummary(data) {
  return summary('browse', data, {
    more: (read) => [
      ['list', read.times('flash_list_ms')],
      ['sale', read.times('flash_sale_ms')],
    ],
  });
}
