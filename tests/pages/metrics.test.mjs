// The figures of the live wall, from the server's own words.

import assert from 'node:assert/strict';
import { it } from 'node:test';
import { between, look, parse, quantile } from '../../static/js/metrics.js';

const ROUTE = 'route="/api/v1/sales/{id}/orders"';
const bucket = (le, count) => `flash_sale_http_request_seconds_bucket{${ROUTE},le="${le}"} ${count}`;
const text = (accepted, soldOut, ...counts) => `# TYPE flash_sale_admissions_total counter
flash_sale_admissions_total{verdict="accepted"} ${accepted}
flash_sale_admissions_total{verdict="sold_out"} ${soldOut}

${bucket('0.01', counts[0])}
${bucket('0.1', counts[1])}
${bucket('+Inf', counts[2])}
flash_sale_http_request_seconds_bucket{route="/",le="0.01"} 999
flash_sale_backlog_orders 7
`;

it('samples are read with their labels, whatever is in them', () => {
  assert.deepEqual(parse('# HELP a b\na 1\nb{x="1,} \\"2\\"\\n",y=""} 2.5e3 1700000000000\nc{le="+Inf"} +Inf\nd NaN\nnonsense\n\r\n').map(({ name, labels, value }) => [name, labels, value]), [
    ['a', {}, 1], ['b', { x: '1,} "2"\n', y: '' }, 2500], ['c', { le: '+Inf' }, Infinity], ['d', {}, NaN],
  ]);
});

it('a look takes what the wall shows, and only of purchases', () => {
  const { verdicts, buckets, backlog } = look(text(3, 4, 1, 2, 3), 1000);
  assert.deepEqual([...verdicts], [['accepted', 3], ['sold_out', 4]]);
  assert.deepEqual(buckets, [[0.01, 1], [0.1, 2], [Infinity, 3]]);
  assert.equal(backlog, 7);
});

it('two looks make a difference; a server that started anew makes none', () => {
  const before = look(text(3, 4, 0, 0, 0), 1000);
  assert.deepEqual([...between(before, look(text(10, 4, 0, 0, 0), 2000))], [['accepted', 7], ['sold_out', 0]]);
  assert.equal(between(before, look(text(1, 4, 0, 0, 0), 2000)), null);
  assert.equal(between(before, look('', 2000)), null);
  assert.deepEqual([...between(look('', 0), before)], [['accepted', 3], ['sold_out', 4]], 'a verdict that was never given before');
});

it('percentiles of what came in between', () => {
  const before = look(text(0, 0, 100, 100, 100), 0);
  const after = look(text(0, 0, 110, 120, 120), 1000);
  assert.equal(quantile(before, after, 0.5), 0.01);
  assert.equal(quantile(before, after, 0.25), 0.005, 'half way into the first bucket');
  assert.ok(Math.abs(quantile(before, after, 0.75) - 0.055) < 1e-9);
  assert.equal(quantile(before, before, 0.5), null, 'nobody bought');
  assert.equal(quantile(before, look(text(0, 0, 100, 100, 104), 0), 0.99), 0.1, 'beyond the last bound only that bound is known');
  assert.equal(quantile(look('', 0), look('', 1), 0.5), null);
});
