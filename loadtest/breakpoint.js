// Up in steps until it breaks: which rate of purchases can this server take?
//
//   k6 run -e TOKENS_FILE=tokens.json loadtest/breakpoint.js       in 10 steps of 5 s up to 2,000 purchases a second
//   k6 run -e SHORT=1 loadtest/breakpoint.js                       in 3 steps of 2 s up to 90
//   k6 run -e MAX_RATE=20000 -e P99_MS=50 -e TOKENS_FILE=tokens.json loadtest/breakpoint.js
//
// Broken means that the p99 of a whole step is over P99_MS, or that k6 could not send as much as
// the step asks for: it had to drop arrivals, or was late with them. Then the run ends at once.
// k6's exit code is 99 then, because a threshold was crossed; the verdict says FOUND if that is
// all, and FAILED if something was wrong. The last step that held is the answer.

import exec from 'k6/execution';
import { Counter, Trend } from 'k6/metrics';
import { arrivals, ramping } from './lib/arrivals.js';
import { buyer, findBuyers } from './lib/buyers.js';
import { buy } from './lib/flash.js';
import { createSale, judge } from './lib/operator.js';
import { always, alwaysTrue } from './lib/promises.js';
import { summary } from './lib/report.js';
import { serverOrGiveUp } from './lib/requests.js';
import { SHORT, wholeNumber } from './lib/settings.js';

const STEPS = wholeNumber('STEPS', SHORT ? 3 : 10);
const STEP_SECONDS = wholeNumber('STEP_SECONDS', SHORT ? 2 : 5);
const WARM_UP = SHORT ? 1 : 3; // seconds at the first rate, before it counts: connections are made, caches filled
const MAX_RATE = wholeNumber('MAX_RATE', SHORT ? 90 : 2000, STEPS);
// CI runs the short form of a debug build on a busy machine: there it only has to work, so the
// bound is wide.
const P99_MS = wholeNumber('P99_MS', SHORT ? 5000 : 100);
const LEAST_SENT = SHORT ? 0.1 : 0.95; // of what a step asks for
const VUS = wholeNumber('VUS', Math.min(2000, Math.max(50, MAX_RATE)));

const rateOf = (step) => Math.round((MAX_RATE * (step + 1)) / STEPS);
const steps = Array.from({ length: STEPS }, (_, step) => step);
// Each step at once and then level: on a slope the p99 would belong to no rate in particular.
const level = (rate, duration) => [
  { duration: 0, target: rate },
  { duration, target: rate },
];
const STAGES = [...level(rateOf(0), WARM_UP), ...steps.flatMap((step) => level(rateOf(step), STEP_SECONDS))];
const PEOPLE = arrivals(rateOf(0), STAGES);

const stepTime = new Trend('flash_step_ms', true);
const stepSent = new Counter('flash_step_sent');
const ofStep = (step) => `flash_step_ms{step:${step}}`;
const sentIn = (step) => `flash_step_sent{step:${step}}`;

// k6 judges a threshold over the whole run so far, in which the quiet beginning hides the end. So
// each step has its own, and is judged no sooner than near its end: of the first ten answers the
// slowest is the p99.
const limit = (threshold, second) => [{ threshold, abortOnFail: true, delayAbortEval: `${second}s` }];
const endOf = (step) => WARM_UP + (step + 1) * STEP_SECONDS;
const stepLimits = Object.fromEntries(
  steps.flatMap((step) => [
    [ofStep(step), limit(`p(99)<${P99_MS}`, endOf(step) - 1)],
    // A k6 that lacks CPU sends late, and calls nothing dropped. Then the percentiles are those of
    // a smaller rate.
    [sentIn(step), limit(`count>=${Math.floor(rateOf(step) * STEP_SECONDS * LEAST_SENT)}`, endOf(step) + 1)],
  ]),
);

export const options = {
  ...always,
  scenarios: { climb: ramping(rateOf(0), STAGES, VUS) },
  thresholds: {
    ...alwaysTrue,
    ...stepLimits,
    dropped_iterations: limit('count==0', 0),
    // Below zero if it broke: what was under way then was accepted, and k6 did not wait for the
    // answer.
    flash_accepted_minus_rows: ['count<=0'],
  },
};

export function setup() {
  serverOrGiveUp();
  const buyers = findBuyers(PEOPLE);
  const sale = createSale({ title: 'Breakpoint (k6)', stock: PEOPLE, payment_timeout_secs: 3600 });
  return { buyers, saleId: sale.id };
}

export default function ({ buyers, saleId }) {
  // By the time of the click, not of the answer: a slow answer belongs to the rate that made it
  // slow.
  const step = Math.floor(((Date.now() - exec.scenario.startTime) / 1000 - WARM_UP) / STEP_SECONDS);
  const tags = { step: String(Math.min(step, STEPS - 1)) };
  if (step >= 0) stepSent.add(1, tags);
  const { response } = buy(buyer(buyers, exec.scenario.iterationInTest), saleId);
  if (step >= 0) stepTime.add(response.timings.duration, tags);
}

export function teardown(setupData) {
  judge(setupData);
}

export function handleSummary(data) {
  return summary('breakpoint', data, { more, isLimit });
}

/** To cross these is what the script is for. */
const isLimit = (metric) => metric.startsWith('flash_step_') || metric === 'dropped_iterations';

function more(read) {
  const dropped = read.count('dropped_iterations') > 0;
  const reached = steps.filter((step) => read.value(ofStep(step), 'max') > 0);
  const last = reached[reached.length - 1];
  const p99 = (step) => read.value(ofStep(step), 'p(99)');
  const sent = (step) => read.count(sentIn(step)) / STEP_SECONDS;
  const whyNot = (step) => {
    if (p99(step) >= P99_MS) return `p99 passed ${P99_MS} ms`;
    if (dropped && step === last) return 'k6 had to drop arrivals';
    if (sent(step) < rateOf(step) * LEAST_SENT) return 'k6 could not send as much';
    return '';
  };
  const broken = reached.find(whyNot);
  const best = broken === undefined ? last : broken - 1;
  const held = best >= 0 ? `${rateOf(best)} purchases a second held` : 'not even the first step held';
  const then = broken === undefined ? 'that was the last step; raise MAX_RATE' : `at ${rateOf(broken)} ${whyNot(broken)}`;
  return [
    ...reached.map((step) => [`${rateOf(step)}/s`, `sent ${sent(step).toFixed(0)}/s, p99 ${p99(step).toFixed(1)} ms`]),
    ['reached', `${held}; ${then}`],
  ];
}
