// How lanes are begun and stopped, against a server that only notes what it is asked.

import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it, mock } from 'node:test';
import { heat } from '../../static/js/lab/run.js';
import { OWN, defaults } from '../../static/js/lab/setup.js';

const own = () => ({ key: OWN, strategy: { id: OWN }, setup: { ...defaults(), server: 'http://127.0.0.1:9000' } });
const naive = () => ({ key: 'naive', strategy: { id: 'naive' }, setup: defaults() });

/** All that can be done at once is done. */
async function idle() {
  for (let turn = 0; turn < 50; turn += 1) await new Promise((done) => { setImmediate(done); });
}

describe('a race', () => {
  let asked, answer;
  const { fetch } = globalThis, nowhere = { addEventListener() {}, removeEventListener() {} };
  const full = () => new Response('{"code":"too_many_storms"}', { status: 429, headers: { 'retry-after': '5' } });

  beforeEach(() => {
    mock.timers.enable({ apis: ['setTimeout'] });
    Object.assign(globalThis, nowhere, { document: { hidden: true, ...nowhere } });
    asked = [];
    globalThis.fetch = async (url, { method }) => {
      asked.push(`${method} ${String(url).split('?')[0].replace('/api/v1/lab/', '')}`);
      return answer(asked.at(-1));
    };
  });
  afterEach(() => {
    mock.timers.reset();
    globalThis.fetch = fetch;
  });

  /** Begins it, stops it once it waits, and lets a minute pass: what was asked since. */
  async function stopped(lane) {
    const stop = new AbortController(), over = heat([lane], [], () => {}, stop.signal);
    await idle();
    const before = asked.length;
    assert.ok(before > 0, 'it has begun');
    stop.abort();
    const [{ status, why }] = await over;
    assert.deepEqual([status, why.code], ['refused', 'stopped'], why.stack);
    await idle();
    mock.timers.tick(60_000);
    await idle();
    return asked.slice(before);
  }

  it('that waits for room is given up at once when it is stopped, and nothing is sent any more', async () => {
    answer = full;
    assert.deepEqual(await stopped(own()), []);
    answer = (what) => (what === 'POST arenas' ? Response.json({ arena_id: 'a1' }) : what.startsWith('DELETE') ? new Response(null, { status: 204 }) : full());
    assert.deepEqual(await stopped(naive()), ['DELETE arenas/a1']);
    answer = () => new Response('{"code":"rate_limited"}', { status: 429, headers: { 'retry-after': '5' } });
    assert.deepEqual(await stopped(naive()), []);
  });

  it('begins a judgement only once the one before has stopped', async () => {
    let release;
    answer = (what) => (what === 'DELETE judgements/j1' ? new Promise((done) => { release = () => done(new Response(null, { status: 204 })); }) : Response.json({ judgement_id: 'j1' }, { status: 202 }));
    const first = await stopped(own());
    assert.deepEqual(first, ['DELETE judgements/j1']);
    const stop = new AbortController(), over = heat([own()], [], () => {}, stop.signal);
    await idle();
    assert.equal(asked.filter((what) => what === 'POST judgements').length, 1, 'the first is still being stopped');
    release();
    await idle();
    assert.equal(asked.filter((what) => what === 'POST judgements').length, 2);
    stop.abort();
    await over;
  });
});
