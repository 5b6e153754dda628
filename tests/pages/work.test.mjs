// The proof of work in the browser: its SHA-256 is Node's, and a solution is one by Node's as well.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { it } from 'node:test';
import { head, solve } from '../../static/js/work-hash.js';

const sha256 = (text) => createHash('sha256').update(text).digest();

it('hashes as everybody does, whatever the length', () => {
  for (let length = 0; length < 200; length++) {
    const text = 'abcdefghijklmnopqrstuvwxyz0123456789-_:'.repeat(6).slice(0, length);
    assert.equal(head(text), sha256(text).readUInt32BE(0), `${length} characters`);
  }
});

it('finds a number with as many zero bits as asked for', () => {
  for (const bits of [1, 4, 8, 12]) {
    const solution = solve('a-challenge', bits);
    assert.match(solution, /^a-challenge:\d+$/);
    assert.equal(sha256(solution).readUInt32BE(0) >>> (32 - bits), 0, solution);
  }
});

it('begins where it is told to, and tells how many it has tried', () => {
  let tried = 0;
  const solution = solve('a-challenge', 15, 1e9, (more) => { tried += more; });
  const last = Number(solution.split(':')[1]) - 1e9;
  assert.ok(last >= 0);
  assert.equal(tried, last - (last % 4096));
});
