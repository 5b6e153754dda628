// When a page asks the server again.

import assert from 'node:assert/strict';
import { it, mock } from 'node:test';
import { poll } from '../../static/js/api.js';
const done = () => new Promise((go) => { setImmediate(go); });

it('told during a round to ask again, a page asks once more after it', async () => {
  mock.timers.enable({ apis: ['setTimeout'] });
  globalThis.document = { hidden: false, addEventListener() {}, removeEventListener() {} };
  const rounds = [];
  const polling = poll(() => new Promise((end) => { rounds.push(end); }), () => 3_600_000);
  polling.now();
  mock.timers.tick(0);
  assert.equal(rounds.length, 1, 'one at a time');
  rounds[0]();
  await done();
  mock.timers.tick(0);
  assert.equal(rounds.length, 2);
  rounds[1]();
  await done();
  mock.timers.tick(60_000);
  assert.equal(rounds.length, 2, 'and then in its own time');
  polling.stop();
});
