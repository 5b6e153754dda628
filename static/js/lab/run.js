// Runs strategies against each other: an arena for each, the storm, the events, the verdict, and away with the arenas.

import { call, Problem } from '../api.js';
import { follow } from '../sse.js';
import { after, lane } from './race.js';
import { arenaBody, stormBody } from './setup.js';
import { inWords } from './words.js';

const ARENAS = '/api/v1/lab/arenas';
const KEPT = 16; // arenas that stay for the report, as many as the server lets one address have
const MOST_RETRIES = 3; // how often a "too many requests" is waited out
const CREATING_MS = 60_000; // a strategy may have to start a ZooKeeper first

const arenas = []; // ours that still stand, oldest first

export const standing = () => arenas.slice();

const path = (id, what = '') => inWords(`${ARENAS}/${encodeURIComponent(id)}${what}`);
const later = (ms) => new Promise((done) => { setTimeout(done, ms); });

async function remove(id) {
  if (!arenas.includes(id)) return;
  arenas.splice(arenas.indexOf(id), 1);
  await call('DELETE', path(id)).catch(() => {}); // it also dies of old age
}

/** Leaving: the browser sends these even though the page has gone. */
export function leave() {
  for (const id of arenas.splice(0)) fetch(path(id), { method: 'DELETE', keepalive: true }).catch(() => {});
}

async function create(body) {
  for (let attempt = 1; ; attempt++) {
    try {
      const arena = await call('POST', inWords(ARENAS), { body, timeoutMs: CREATING_MS });
      arenas.push(arena.arena_id);
      return arena;
    } catch (problem) {
      const full = problem.code === 'too_many_arenas' && arenas.length > 0;
      if (attempt >= MOST_RETRIES || !(full || problem.code === 'rate_limited')) throw problem;
      if (full) await remove(arenas[0]);
      else await later(Math.min(problem.retryAfterMs || 1000, 10_000));
    }
  }
}

/**
 * One heat: these strategies at the same time. `onLane(lane)` is told every change. Resolves to the lanes when all are done
 * or refused; `signal` ends it early.
 */
export async function heat(strategies, setup, shared, onLane, signal) {
  while (arenas.length && arenas.length + strategies.length > KEPT) await remove(arenas[0]);
  const lanes = new Map(strategies.map(({ id }) => [id, { ...lane(id, setup.stock), status: 'starting' }]));
  const set = (id, next) => { lanes.set(id, next); onLane(next); };
  const refuse = (id, why) => set(id, { ...lanes.get(id), status: 'refused', why });
  lanes.forEach((one) => onLane(one));

  const ready = [];
  for (const strategy of strategies) { // one after the other: opening a stock is not what is raced
    if (signal.aborted) break;
    try {
      ready.push([strategy.id, (await create(arenaBody(setup, strategy, shared))).arena_id]);
    } catch (problem) { refuse(strategy.id, problem); }
  }
  await Promise.all(ready.map(([id, arena]) => storm(arena, setup, signal, (name, news) => set(id, after(lanes.get(id), name, news)))
    .catch((problem) => refuse(id, problem))));
  for (const { id } of strategies) if (!['done', 'refused'].includes(lanes.get(id).status)) refuse(id, new Problem(0, 'stopped'));
  return [...lanes.values()].map((one) => ({ ...one, arena: ready.find(([id]) => id === one.id)?.[1] ?? null }));
}

function storm(arena, setup, signal, onEvent) {
  return new Promise((done, broken) => {
    const stream = follow(path(arena, '/events'), {
      onEvent(name, news) {
        onEvent(name, news);
        if (name === 'verdict') end(done);
      },
      onRefused: (problem) => end(broken, problem),
    });
    const stop = () => { end(broken, new Problem(0, 'stopped')); remove(arena); };
    function end(how, what) {
      signal.removeEventListener('abort', stop);
      stream.close();
      how(what);
    }
    if (signal.aborted) return stop();
    signal.addEventListener('abort', stop);
    begin(arena, setup, signal).catch((problem) => end(broken, problem));
  });
}

/** Starts the storm, once the others that go on leave room for it. */
async function begin(arena, setup, signal) {
  for (;;) {
    try {
      await call('POST', path(arena, '/storm'), { body: stormBody(setup) });
      return;
    } catch (problem) {
      if (problem.code !== 'too_many_storms' || signal.aborted) throw problem;
      await later(Math.min(problem.retryAfterMs || 1000, 10_000));
    }
  }
}
