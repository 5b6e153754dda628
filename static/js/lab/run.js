// Runs lanes against each other: an arena for each, the storm, the events, the verdict, and away
// with the arenas.

import { call, Problem } from '../api.js';
import { follow } from '../sse.js';
import { after, lane } from './race.js';
import { OWN, arenaBody, judgementBody, stormBody } from './setup.js';
import { inWords } from './words.js';

const ARENAS = '/api/v1/lab/arenas', JUDGEMENTS = '/api/v1/lab/judgements';
const KEPT = 16; // arenas that stay for the report, as many as the server lets one address have
const MOST_RETRIES = 3; // how often a "too many requests" is waited out
const CREATING_MS = 60_000; // a strategy may have to start a ZooKeeper first

const arenas = []; // ours that still stand, oldest first
const judging = new Set(); // paths of judgements of ours that go on

export const standing = () => arenas.slice();
/** Arenas of this page before it was loaded again. */
export const adopt = (ids) => { arenas.push(...ids.filter((id) => !arenas.includes(id))); };
/** The page is only loaded again: its arenas stay. */
export const stay = () => { judging.clear(); return arenas.splice(0); };

const path = (id, what = '') => inWords(`${ARENAS}/${encodeURIComponent(id)}${what}`);
const isOwn = ({ strategy }) => strategy.id === OWN;
const home = (one) => (isOwn(one) ? `${JUDGEMENTS}/${encodeURIComponent(one.arena)}` : path(one.arena));
/** So much later, or when nobody waits any more. */
const later = (ms, signal) => new Promise((done) => { setTimeout(done, ms); signal.addEventListener('abort', done, { once: true }); });
/**
 * Resolves once the last judgement that was started here has been refused, is followed or has
 * stopped.
 */
let former = Promise.resolve();

async function remove(id) {
  if (!arenas.includes(id)) return;
  arenas.splice(arenas.indexOf(id), 1);
  await call('DELETE', path(id)).catch(() => {}); // it also dies of old age
}

/** No more requests to a lane's store or server. */
async function halt(one) {
  if (!isOwn(one)) return remove(one.arena);
  if (one.arena) await call('DELETE', home(one)).catch(() => {}); // nobody follows it: it ends by itself
}

/** Leaving: the browser sends these even though the page has gone. */
export function leave() {
  const left = [...arenas.splice(0).map((id) => path(id)), ...judging];
  judging.clear();
  for (const ours of left) fetch(ours, { method: 'DELETE', keepalive: true }).catch(() => {});
}

async function create(body, signal) {
  for (let attempt = 1; ; attempt++) {
    try {
      const arena = await call('POST', inWords(ARENAS), { body, timeoutMs: CREATING_MS });
      arenas.push(arena.arena_id);
      return arena;
    } catch (problem) {
      const full = problem.code === 'too_many_arenas' && arenas.length > 0;
      if (attempt >= MOST_RETRIES || !(full || problem.code === 'rate_limited')) throw problem;
      if (full) await remove(arenas[0]);
      else await later(Math.min(problem.retryAfterMs || 1000, 10_000), signal);
      if (signal.aborted) throw new Problem(0, 'stopped');
    }
  }
}

/**
 * One heat: lanes ({key, strategy, setup}) at the same time. A lane that has an `arena` goes on
 * with it, and is not stormed again if it has `begun`. `onLane(state)` is told every change.
 * Resolves to the states when all are done or refused;
 * `signal` ends it early.
 */
export async function heat(lanes, shared, onLane, signal) {
  while (arenas.length && arenas.length + lanes.length > KEPT) await remove(arenas[0]);
  const states = new Map(lanes.map(({ key, setup }) => [key, { ...lane(key, setup.stock), status: 'starting' }]));
  const set = (key, next) => { states.set(key, next); onLane(next); };
  const refuse = (key, why) => set(key, { ...states.get(key), status: 'refused', why });
  states.forEach((one) => onLane(one));

  for (const one of lanes) { // one after the other: opening a stock is not what is raced
    if (signal.aborted) break;
    if (isOwn(one)) continue;
    try {
      one.arena ??= (await create(arenaBody(one.setup, one.strategy, shared), signal)).arena_id;
    } catch (problem) { refuse(one.key, problem); }
  }
  await Promise.all(lanes.filter((one) => one.arena || isOwn(one)).map((one) => storm(one, signal, (name, news) => set(one.key, after(states.get(one.key), name, news)))
    .catch((problem) => refuse(one.key, problem))));
  for (const { key } of lanes) if (!['done', 'refused'].includes(states.get(key).status)) refuse(key, new Problem(0, 'stopped'));
  return lanes.map((one) => ({ ...states.get(one.key), arena: one.arena ?? null }));
}

function storm(one, signal, onEvent) {
  return new Promise((done, broken) => {
    let stream = null, over = false, own;
    const listen = () => {
      if (isOwn(one)) judging.add(home(one));
      stream = follow(isOwn(one) ? `${home(one)}/events` : path(one.arena, '/events'), {
        onEvent(name, news) {
          onEvent(name, isOwn(one) && name === 'verdict' ? { ...news, explanation: own?.explained(news), report: `${home(one)}/report` } : news);
          if (name === 'verdict') end(done);
        },
        onRefused: (problem) => end(broken, problem),
      });
    };
    const stop = () => {
      end(broken, new Problem(0, 'stopped'));
      const halted = halt(one);
      if (isOwn(one) && one.arena) former = halted;
    };
    function end(how, what) {
      over = true;
      signal.removeEventListener('abort', stop);
      judging.delete(home(one));
      stream?.close();
      how(what);
    }
    if (signal.aborted) return stop();
    signal.addEventListener('abort', stop);
    if (!isOwn(one)) listen();
    const begun = begin(one, signal).then(async () => {
      if (!isOwn(one)) return;
      if (over) return halt(one); // stopped while it began
      [own] = await Promise.all([import('./own-server.js'), import('./server-words.js')].map((words) => words.catch(() => null))); // what the verdict is said in
      if (!over) listen();
    }).catch((problem) => end(broken, problem));
    if (isOwn(one)) former = begun;
  });
}

/**
 * Starts the storm, once the others that go on leave room for it. A judgement is there when it
 * begins.
 */
async function begin(one, signal) {
  if (isOwn(one)) await former;
  while (!signal.aborted && (isOwn(one) ? !one.arena : !one.begun)) {
    try {
      if (isOwn(one)) one.arena = (await call('POST', JUDGEMENTS, { body: judgementBody(one.setup) })).judgement_id;
      else {
        one.begun = true; // before it is sent: a page that is loaded again must not send it twice
        await call('POST', path(one.arena, '/storm'), { body: stormBody(one.setup) });
      }
    } catch (problem) {
      if (problem.code !== 'too_many_storms') throw problem;
      one.begun = false;
      await later(Math.min(problem.retryAfterMs || 1000, 10_000), signal);
    }
  }
}
