// What a sale asks for besides a token: a pass, which is fetched at the click, and a proof of work,
// which is done ahead of it where there is time. Both go into headers of the request.

import { clock } from './clock.js';
import { shop } from './session.js';

const AHEAD_MS = 90_000; // a challenge is good for two minutes: work begins this long before the opening at most
const MARGIN_MS = 5_000; // what ends within this is not used any more

let work = null; // { solution: Promise, until }

function inThread({ challenge, bits }) {
  return new Promise((resolve, reject) => {
    const thread = new Worker('/static/js/work-thread.js', { type: 'module' });
    thread.addEventListener('message', ({ data }) => { thread.terminate(); resolve(data); });
    thread.addEventListener('error', () => { thread.terminate(); reject(new Error('no thread')); });
    thread.postMessage({ challenge, bits });
  });
}

function begin(path) {
  const asked = shop('GET', `${path}/challenge`);
  work = {
    until: Infinity,
    solution: asked.then((challenge) => {
      work.until = Date.parse(challenge.expires_at);
      return inThread(challenge);
    }),
  };
  work.solution.catch(() => { work = null; });
}

/** Begins the work when the opening is near, so that the click need not wait for it. */
export function prepare(path, sale) {
  if (!sale.challenge_bits || sale.waiting_room) return;
  const now = clock.now();
  if (work && now > work.until - MARGIN_MS) work = null;
  if (!work && now > Date.parse(sale.opens_at) - AHEAD_MS && sale.state !== 'ended') begin(path);
}

/** A solution is good for one purchase. */
export function spent() { work = null; }

async function solution(path) {
  if (work && clock.now() > work.until - MARGIN_MS) work = null;
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
