// The race of the page for the projector: real where there is a server, else the recorded one.

import RACES from './races.js';
import { defaults } from './setup.js';

const setup = { ...defaults(), ...RACES.why.ten };
export const STOCK = setup.stock;
const RECORDED_MS = 200; // between two news of a recorded run, as on the wire
const LIVE_MS = 30_000; // a server that has not sold them by then has gone

// Fetched with the page: when it is their turn there may be no server.
const fetched = { run: import('./run.js'), recorded: import('./recorded.js') };
for (const one of Object.values(fetched)) one.catch(() => {}); // asked for again when it is needed
const runner = () => fetched.run.catch(() => import('./run.js'));
export const recording = () => fetched.recorded.catch(() => import('./recorded.js')).then(({ RUN }) => RUN);

async function live(ids, onSold) {
  const { heat } = await runner();
  const lanes = ids.map((id) => ({ key: id, strategy: { id }, setup }));
  const signal = AbortSignal.timeout(LIVE_MS);
  const late = new Promise((_, broken) => { signal.addEventListener('abort', () => broken(signal.reason)); });
  const states = await Promise.race([heat(lanes, [], ({ id, sold }) => { if (!signal.aborted) onSold(id, sold); }, signal), late]);
  if (states.some(({ verdict }) => !verdict)) throw states.find(({ why }) => why)?.why ?? new Error('no verdict');
  return Object.fromEntries(states.map(({ id, verdict }) => [id, verdict]));
}

async function recorded(ids, onSold) {
  const RUN = await recording();
  await Promise.all(ids.map(async (id) => {
    for (const sold of RUN[id].sold) {
      onSold(id, sold);
      await new Promise((next) => { setTimeout(next, RECORDED_MS); });
    }
  }));
  return { ...Object.fromEntries(ids.map((id) => [id, RUN[id].verdict])), recorded: RUN.day };
}

/**
 * Sells the stock by each of these strategies; `onSold(id, sold)` is told how it goes, `onAgain()`
 * that it begins anew, as a recorded run. Resolves to {id: verdict, recorded?: day}.
 */
export async function race(ids, onSold, onAgain) {
  try {
    return await live(ids, onSold);
  } catch { // no server, or one that has too much to do
    onAgain();
    return recorded(ids, onSold);
  }
}

export const leave = () => fetched.run.then((run) => run.leave(), () => {});
