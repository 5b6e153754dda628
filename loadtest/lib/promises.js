// What has to hold, and what happens if it does not: counted, said, and judged by k6 as thresholds.

import exec from 'k6/execution';
import { Counter } from 'k6/metrics';

/** Belongs into every script's options. */
export const always = {
  // A request without an answer is then an exception, which `call` turns into status 0; k6 would
  // print a line for each.
  throw: true,
  setupTimeout: '2m',
  teardownTimeout: '3m',
  summaryTrendStats: ['med', 'p(95)', 'p(99)', 'max'],
};

/**
 * Belongs into every script's thresholds. A promise broken in teardown fails the run too: k6 judges
 * thresholds last.
 */
export const alwaysTrue = {
  flash_promises_broken: ['count==0'],
  flash_unexpected: ['count==0'],
};

const promises = new Counter('flash_promises'); // what was checked
const broken = new Counter('flash_promises_broken'); // what did not hold
const givenUp = new Counter('flash_given_up');

/**
 * Counts and reports one thing that has to hold. The run goes on, so that one failure does not hide
 * the others.
 */
export function promise(holds, text) {
  promises.add(1);
  broken.add(holds ? 0 : 1);
  if (!holds) complain(`BROKEN: ${text}`);
  return Boolean(holds);
}

let complaints = 0;
let over = false;

/** Says what is wrong; if much is, no more than a few things from each VU. */
export function complain(text) {
  if (over) return;
  complaints += 1;
  if (complaints <= 3 || exec.vu.idInTest === 0) console.error(text); // 0: setup and teardown
}

/**
 * k6 has ended the run and cut off this VU's request. What follows from that is nobody's fault, and
 * not complained of.
 */
export function cutOff() {
  over = true;
}

/** Ends the whole run with a reason that a person can act on. */
export function giveUp(reason) {
  givenUp.add(1);
  broken.add(1); // so that the summary of a run that was given up half-way cannot say PASSED
  exec.test.abort(reason);
}

/**
 * Runs a part of the script. k6 logs an exception and goes on as if all were well; here it breaks a
 * promise.
 */
export function guarded(part) {
  try {
    part();
  } catch (error) {
    promise(false, `the script could go on; instead: ${error.stack || error}`);
  }
}
