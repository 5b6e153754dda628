// The opening: people pour in across the moment the sale opens, and some click too early.
//
//   k6 run loadtest/spike.js                         up to 400 new people a second, for 500 units
//   k6 run -e SHORT=1 loadtest/spike.js              up to 150 a second, for 30 units
//   k6 run -e PEAK=5000 -e TOKENS_FILE=tokens.json loadtest/spike.js
//
// Those who click too early are told not_open, wait, some longer than others, and click again. The
// run fails if one order was accepted before opens_at, by the server's own clock, or if not exactly
// all units are sold.

import exec from 'k6/execution';
import { sleep } from 'k6';
import { Counter, Trend } from 'k6/metrics';
import { arrivals, ramping } from './lib/arrivals.js';
import { buyer, findBuyers } from './lib/buyers.js';
import { buy } from './lib/flash.js';
import { allOrders, createSale, judge, nothingLost } from './lib/operator.js';
import { always, alwaysTrue, promise } from './lib/promises.js';
import { summary } from './lib/report.js';
import { serverNow, serverOrGiveUp } from './lib/requests.js';
import { SHORT, mistakes, wholeNumber } from './lib/settings.js';

const PEAK = wholeNumber('PEAK', SHORT ? 150 : 400, 20);
const UNITS = wholeNumber('UNITS', SHORT ? 30 : 500);
const LEAD = wholeNumber('LEAD', SHORT ? 2 : 10, 2); // seconds from the first arrival to the opening
const HOLD = SHORT ? 1 : 5; // seconds at the peak, and again to fade away

// The steepest part lies across the opening: one second before it and one after.
const START = Math.ceil(PEAK / 20);
const BEFORE = [{ duration: LEAD - 1, target: Math.ceil(PEAK / 4) }];
const STAGES = [...BEFORE, { duration: 2, target: PEAK }, { duration: HOLD, target: PEAK }, { duration: HOLD, target: 0 }];
const PEOPLE = arrivals(START, STAGES);
if (PEOPLE <= UNITS) mistakes.push(`At PEAK=${PEAK} only ${PEOPLE} people come; UNITS=${UNITS} has to be less.`);

const early = new Counter('flash_early_people');
const turnedAway = new Counter('flash_early_clicks');
// How long after the opening the orders were admitted, by the server's clock.
const admittedAfter = new Trend('flash_admitted_after_opening_ms', true);

export const options = {
  ...always,
  scenarios: {
    // Everybody who came early holds a VU until the opening, and then come the others.
    opening: ramping(START, STAGES, arrivals(START, [...BEFORE, { duration: 1, target: PEAK }]) + PEAK),
  },
  thresholds: {
    ...alwaysTrue,
    ...nothingLost,
    flash_won: [`count==${UNITS}`],
    flash_early_clicks: ['count>0'], // else it was no test of the opening
  },
};

export function setup() {
  serverOrGiveUp();
  const buyers = findBuyers(PEOPLE);
  // A whole second: an order admitted in the millisecond before it cannot be rounded to the right
  // side.
  const opensAt = Math.ceil(serverNow() / 1000 + LEAD) * 1000;
  const sale = createSale({
    title: 'Spike at opening (k6)',
    stock: UNITS,
    payment_timeout_secs: 900,
    opens_at: new Date(opensAt).toISOString(),
  });
  promise(sale.state === 'scheduled', `the sale is not open yet; it is ${sale.state}`);
  return { buyers, saleId: sale.id, opensAt };
}

export default function ({ buyers, saleId }) {
  const token = buyer(buyers, exec.scenario.iterationInTest);
  let attempt = buy(token, saleId);
  if (attempt.code === 'not_open') early.add(1);
  while (attempt.code === 'not_open') {
    turnedAway.add(1);
    // Without the jitter all who were told the same would come back in the same instant, and be a
    // second, sharper spike.
    sleep(0.2 + Math.random() * 0.3);
    attempt = buy(token, saleId);
  }
}

export function teardown(setupData) {
  judge(setupData, (audit) => {
    promise(audit.live === UNITS, `${UNITS} units are sold; the audit counts ${audit.live}`);
    const waits = allOrders(setupData.saleId).map((order) => Date.parse(order.created_at) - setupData.opensAt);
    for (const wait of waits) admittedAfter.add(wait);
    const tooEarly = waits.filter((wait) => wait < 0);
    promise(waits.length >= audit.live, `the operator's list has all ${audit.live} orders; it has ${waits.length}`);
    promise(tooEarly.length === 0, `nobody is let in before the opening; ${tooEarly.length} were (${tooEarly[0]} ms)`);
  });
}

export function handleSummary(data) {
  return summary('spike', data, {
    asked: PEOPLE - STAGES.length,
    more: (read) => [
      ['early', `${read.count('flash_early_people')} people clicked too early, ${read.count('flash_early_clicks')} times`],
      ['opening', `units went ${read.times('flash_admitted_after_opening_ms')} after it, by the server's clock`],
    ],
  });
}
