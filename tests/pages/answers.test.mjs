// The k6 judge reads answers as the judge does: tests/it/judge/adapters.rs has the same cases.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { it } from 'node:test';
import { meaningOf } from '../../loadtest/lib/answers.js';

it('an answer has the same meaning in k6', () => {
  const { answers, cases } = JSON.parse(readFileSync(new URL('../support/answers.json', import.meta.url), 'utf8'));
  for (const { status, body, ...expected } of cases) {
    assert.deepEqual(meaningOf({ answers }, { status, body: JSON.stringify(body) }), expected);
  }
});
