// For hours at one rate: does anything grow that should not?
//
//   k6 run loadtest/soak.js                          100 purchases a second for 30 minutes
//   k6 run -e SHORT=1 loadtest/soak.js               50 a second for 6 seconds
//   k6 run -e RATE=1000 -e DURATION=8h -e TOKENS_FILE=tokens.json loadtest/soak.js
//
// Nobody pays. Every order expires after some seconds, its unit comes back, and when a buyer's turn
// comes again the unit and the buyer are free; so the sale never ends, and everything is at work:
// admission, writer, expiry, release. Somebody looks at the audit all the while. The run fails if
// an invariant is broken at any look, or an order is missing in the end. The verdict puts the first
// fifth of the run beside the last one: a latency or a backlog that drifts is for you to judge.

import exec from 'k6/execution';
import { sleep } from 'k6';
import { Counter, Trend } from 'k6/metrics';
import { steady } from './lib/arrivals.js';
import { buyer, findBuyers } from './lib/buyers.js';
import { buy } from './lib/flash.js';
import { createSale, judge, nothingLost, readAudit } from './lib/operator.js';
import { always, alwaysTrue, guarded, promise } from './lib/promises.js';
import { summary } from './lib/report.js';
import { serverOrGiveUp } from './lib/requests.js';
import { SHORT, seconds, wholeNumber } from './lib/settings.js';

const RATE = wholeNumber('RATE', SHORT ? 50 : 100);
const DURATION = seconds('DURATION', SHORT ? 6 : 1800);
const PAYMENT_TIMEOUT = SHORT ? 2 : 10; // seconds until a unit comes back
const LOOK_EVERY = SHORT ? 1 : 5; // seconds between two audits
const OUTAGES = __ENV.OUTAGES === '1'; // in a drill the stores fail over, and nobody can look meanwhile
// A buyer's turn comes again after two timeouts, when the order of the turn before is over.
const BUYERS = RATE * PAYMENT_TIMEOUT * 2;

const wonAtFirst = new Trend('flash_won_first_fifth_ms', true);
const wonAtLast = new Trend('flash_won_last_fifth_ms', true);
const backlogAtFirst = new Trend('flash_backlog_first_fifth');
const backlogAtLast = new Trend('flash_backlog_last_fifth');
const looks = new Counter('flash_looks'); // audits that were answered under load

export const options = {
  ...always,
  scenarios: {
    buyers: { ...steady(RATE, DURATION, Math.max(20, RATE)), exec: 'shop' },
    auditor: { executor: 'constant-vus', vus: 1, duration: `${DURATION}s`, exec: 'audit', gracefulStop: '60s' },
  },
  thresholds: { ...alwaysTrue, ...nothingLost, flash_looks: ['count>0'] },
};

export function setup() {
  serverOrGiveUp();
  const buyers = findBuyers(BUYERS);
  const sale = createSale({ title: 'Soak (k6)', stock: BUYERS, payment_timeout_secs: PAYMENT_TIMEOUT });
  return { buyers, saleId: sale.id };
}

/** Adds to the one or the other Trend, or in the middle of the run to none. */
function addByFifth(first, last, value) {
  if (exec.scenario.progress < 0.2) first.add(value);
  if (exec.scenario.progress > 0.8) last.add(value);
}

export function shop({ buyers, saleId }) {
  const attempt = buy(buyer(buyers, exec.scenario.iterationInTest % BUYERS), saleId);
  if (attempt.ending === 'won') addByFifth(wonAtFirst, wonAtLast, attempt.response.timings.duration);
}

export function audit({ saleId }) {
  guarded(() => {
    const began = Date.now();
    const seen = readAudit(saleId);
    if (OUTAGES ? seen : promise(seen, 'the audit answers under load')) {
      looks.add(1);
      // Under load the strict comparisons have to wait, but no invariant may look broken at any
      // moment.
      promise(seen.ok, `the audit is ok under load; it says: ${seen.problems.join('; ')}`);
      addByFifth(backlogAtFirst, backlogAtLast, seen.backlog);
    }
    // An audit reads all orders, and there are more and more of them: it must not become the load.
    sleep(Math.max(LOOK_EVERY, ((Date.now() - began) / 1000) * 20));
  });
}

export function teardown(setupData) {
  judge(setupData, (audit) => {
    if (DURATION < 2 * PAYMENT_TIMEOUT) return;
    promise(audit.expired > 0, `orders that nobody paid have expired; ${audit.pending_payment} wait for payment and none has`);
  });
}

export function handleSummary(data) {
  return summary('soak', data, { more, asked: RATE * DURATION });
}

function more(read) {
  const drift = (metric, unit, key, digits) => {
    const [first, last] = ['first', 'last'].map((end) => read.value(`${metric}_${end}_fifth${unit}`, key).toFixed(digits));
    return `${key} ${first} → ${last}`;
  };
  const winners = ['med', 'p(99)'].map((key) => drift('flash_won', '_ms', key, 1));
  return [
    ['drift', `winners ${winners.join(', ')} ms, from the first fifth of the run to the last`],
    ['backlog', `${drift('flash_backlog', '', 'max', 0)} orders on their way into the database`],
  ];
}
