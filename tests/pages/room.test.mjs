// One's place in a waiting room: when it is asked for.

import assert from 'node:assert/strict';
import { it, mock } from 'node:test';

delete globalThis.BroadcastChannel; // it would keep the test from ending
globalThis.addEventListener = () => {};
Object.defineProperty(globalThis, 'navigator', { value: {}, configurable: true });
globalThis.localStorage = { getItem: () => '1', setItem() {}, removeItem() {} };
globalThis.document = { hidden: false, addEventListener() {}, removeEventListener() {} };
const { room } = await import('../../static/js/room.js');
const done = async () => { for (let n = 0; n < 20; n++) await new Promise((go) => { setImmediate(go); }); };

it('who has left asks no more, also after an error', async () => {
  mock.timers.enable({ apis: ['setTimeout'] });
  let asked = 0;
  globalThis.fetch = async (path) => {
    if (path.endsWith('/session')) return Response.json({});
    asked += 1;
    return new Response('{}', { status: 503 });
  };
  const here = room('/api/v1/sales/7', { onPlace() {}, onProblem() {} });
  await done();
  assert.equal(asked, 1);
  mock.timers.tick(20_000);
  await done();
  assert.equal(asked, 2, 'an error is tried again');
  here.leave();
  mock.timers.tick(20_000);
  await done();
  assert.equal(asked, 2);
});
