// What a sale asks for besides a token: a pass, which is fetched at the click, and a proof of work,
// which is done ahead of it where there is time. Both go into headers of the request.

import { backoff } from './api.js';
import { clock } from './clock.js';
import { shop } from './session.js';

const AHEAD_MS = 90_000; // a challenge is good for two minutes: work begins this long before the opening at most
const MARGIN_MS = 5_000; // what ends within this is not used any more

const THREADS = Math.min(4, navigator.hardwareConcurrency || 2);
const APART = 1e9; // each thread tries numbers of its own

let work = null; // { solution: Promise, until, tried, all }

function inThreads({ challenge, bits }, tell) {
  const threads = Array.from({ length: THREADS }, () => new Worker('/static/js/work-thread.js', { type: 'module' }));
  const solving = new Promise((resolve, reject) => {
    threads.forEach((thread, index) => {
      thread.addEventListener('message', ({ data: { solution, tried } }) => (solution ? resolve(solution) : tell(tried)));
      thread.addEventListener('error', () => reject(new Error('no thread')));
      thread.postMessage({ challenge, bits, from: index * APART });
    });
  });
  return solving.finally(() => threads.forEach((thread) => thread.terminate()));
}

function begin(path) {
  const asked = shop('GET', `${path}/challenge`);
  const mine = work = { until: Infinity, tried: 0, all: Infinity };
  mine.solution = asked.then((challenge) => {
    mine.until = Date.parse(challenge.expires_at);
    mine.all = 2 ** challenge.bits;
    return inThreads(challenge, (tried) => { mine.tried += tried; });
  }).finally(() => { mine.done = true; });
  mine.solution.catch(() => {
    mine.failed = true; // a click begins anew at once, the work ahead of it later
    setTimeout(() => { if (work === mine) work = null; }, backoff(3));
  });
}

/** Begins the work when the opening is near, so that the click need not wait for it. */
export function prepare(path, sale) {
  if (!sale.challenge_bits || sale.waiting_room) return;
  const now = clock.now();
  if (work && now > work.until - MARGIN_MS) work = null;
  if (!work && now > Date.parse(sale.opens_at) - AHEAD_MS && sale.state !== 'ended') begin(path);
}

/**
 * How likely the puzzle would be solved by now, 0 to 1; null where none is being solved. It depends
 * on luck, hence no more than that.
 */
export const progress = () => (work && !work.done ? 1 - Math.exp(-work.tried / work.all) : null);

/** A solution is good for one purchase. */
export function spent() { work = null; }

async function solution(path) {
  if (work && (work.failed || clock.now() > work.until - MARGIN_MS)) work = null;
  if (!work) begin(path);
  return { 'challenge-solution': await work.solution };
}

/** For a purchase: `place` is the one in the waiting room, where there is one. */
export async function forPurchase(path, sale, place) {
  if (sale.waiting_room) return place?.admission_token ? { 'admission-token': place.admission_token } : {};
  const credentials = sale.challenge_bits ? await solution(path) : {};
  if (sale.purchase_pass) {
    try { credentials['purchase-pass'] = (await shop('GET', `${path}/pass`)).pass; } catch (problem) {
      if (problem.code !== 'not_open') throw problem; // the purchase says the same, and is tried again
    }
  }
  return credentials;
}

/** For a place in the waiting room. */
export const forPlace = async (path, sale) => (sale.challenge_bits ? solution(path) : {});
