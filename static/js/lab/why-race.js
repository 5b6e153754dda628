// The race of the page for the projector: real where there is a server, else the recorded one.

import { defaults } from './setup.js';

export const STOCK = 10;
const BUYERS = 300, RECORDED_MS = 200; // between two news of a recorded run, as on the wire

const setup = { ...defaults(), stock: STOCK, buyers: BUYERS, duplicates: 0 };

async function live(ids, onSold) {
  const { heat } = await import('./run.js');
  const lanes = ids.map((id) => ({ key: id, strategy: { id }, setup }));
  const states = await heat(lanes, [], ({ id, sold }) => onSold(id, sold), new AbortController().signal);
  if (states.some(({ verdict }) => !verdict)) throw states.find(({ why }) => why)?.why ?? new Error('no verdict');
  return Object.fromEntries(states.map(({ id, verdict }) => [id, verdict]));
}

async function recorded(ids, onSold) {
  const { RUN } = await import('./recorded.js');
  await Promise.all(ids.map(async (id) => {
    for (const sold of RUN[id].sold) {
      onSold(id, sold);
      await new Promise((next) => { setTimeout(next, RECORDED_MS); });
    }
  }));
  return { ...Object.fromEntries(ids.map((id) => [id, RUN[id].verdict])), recorded: RUN.day };
}

/** Sells the stock by each of these strategies; `onSold(id, sold)` is told how it goes. Resolves to {id: verdict, recorded?: day}. */
export async function race(ids, onSold) {
  try {
    return await live(ids, onSold);
  } catch { // no server, or one that has too much to do
    return recorded(ids, onSold);
  }
}

export const leave = () => import('./run.js').then((run) => run.leave());
