// The audit in words: what holds, what is broken, and what nobody can tell yet.

import assert from 'node:assert/strict';
import { it } from 'node:test';
import { auditRows, verdictOf } from '../../static/js/audit-rows.js';
import en from '../../static/js/strings/en.js';

const QUIET = {
  ok: true, quiescent: true, stock: 10, remaining: 4, live: 6, pending_payment: 2, paid: 4, cancelled: 0, expired: 0, rejected: 0,
  backlog: 0, oversold: 0, duplicate_users: 0, conserved: true, problems: [],
  redis: { remaining: 4, buyers: 6, stream: 0, epoch: 3, run_id_approved: true }, postgres: { taken: 6, epoch: 3 },
};
const verdicts = (audit) => Object.fromEntries(auditRows(audit).map(({ name, holds }) => [name, verdictOf(holds)]));

it('a quiet, sound sale holds throughout', () => {
  assert.deepEqual(new Set(Object.values(verdicts(QUIET))), new Set(['yes']));
});

it('orders under way are no fault', () => {
  const moving = { ...QUIET, quiescent: false, conserved: null, backlog: 3, redis: { ...QUIET.redis, epoch: 4 } };
  assert.deepEqual(verdicts(moving), { oversold: 'yes', duplicates: 'yes', counter: 'yes', backlog: 'wait', conserved: 'wait', epoch: 'wait', run: 'yes' });
});

for (const [name, change] of [
  ['oversold', { oversold: 1 }], ['oversold', { redis: { ...QUIET.redis, remaining: -1 } }], ['duplicates', { duplicate_users: 2 }],
  ['counter', { postgres: { taken: 5, epoch: 3 } }], ['conserved', { conserved: false }],
  ['epoch', { redis: { ...QUIET.redis, epoch: 2 } }], ['run', { redis: { ...QUIET.redis, run_id_approved: false } }],
]) {
  it(`${name} can break: ${JSON.stringify(change)}`, () => {
    assert.deepEqual(Object.entries(verdicts({ ...QUIET, ...change })).filter(([, verdict]) => verdict === 'no'), [[name, 'no']]);
  });
}

it('a sale that has left Redis is not called broken', () => {
  const retired = { ...QUIET, redis: { remaining: null, buyers: null, stream: null, epoch: null, run_id_approved: true } };
  assert.equal(verdicts(retired).epoch, 'wait');
});

it('every verdict that a row can give has words', () => {
  const possible = { oversold: ['yes', 'no'], duplicates: ['yes', 'no'], counter: ['yes', 'no'], backlog: ['yes', 'wait'], conserved: ['yes', 'no', 'wait'], epoch: ['yes', 'no', 'wait'], run: ['yes', 'no'] };
  assert.deepEqual(auditRows(QUIET).map(({ name }) => name), Object.keys(possible));
  for (const [name, endings] of Object.entries(possible)) for (const ending of endings) assert.ok(`audit.${name}_${ending}` in en, `${name} ${ending}`);
});
