// The small pure modules under the pages. Run: node --test tests/pages/

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, it } from 'node:test';
import { backoff, jitter } from '../../static/js/api.js';
import { Clock } from '../../static/js/clock.js';
import { digits, untilNextChange } from '../../static/js/countdown.js';
import { minorUnits, money, percentOff } from '../../static/js/format.js';
import { newSale } from '../../static/js/new-sale.js';
import { newer, parser } from '../../static/js/sse.js';

describe('the clock', () => {
  const at = (ms) => new Date(ms).toISOString();
  /**
   * A clock on a machine whose own clock is wrong; `go` lets time pass, `tell` brings an answer of
   * the server.
   */
  function machine() {
    let mono = 0;
    const clock = new Clock(() => mono, () => 500_000);
    return {
      clock,
      go: (ms) => { mono += ms; },
      tell(server, roundTrip) { const sent = mono; mono += roundTrip; clock.observe(at(server), sent, mono); },
    };
  }

  it('takes the first answer at once, and then the tightest', () => {
    const { clock, go, tell } = machine();
    tell(1_000_050, 100); // the middle of the round trip is 50
    assert.equal(clock.now(), 1_000_100);
    tell(1_002_000, 2000); // a slow answer proves less
    assert.equal(clock.now(), 1_002_100);
    go(10_000);
    assert.equal(clock.now(), 1_012_100);
  });

  it('corrects itself without a jump, and never runs back', () => {
    for (const error of [300, -300]) {
      const { clock, go, tell } = machine();
      tell(1_000_500, 1000); // may be wrong by 500
      tell(1_001_005 + error, 10);
      let before = clock.now();
      for (let n = 0; n < 400; n++) {
        go(10);
        const now = clock.now();
        assert.ok(now - before >= 8.999 && now - before <= 11.001, `10 ms pass as ${now - before}`);
        before = now;
      }
      assert.ok(Math.abs(before - (1_001_010 + 4000 + error)) < 1, `${before} is the server's time in the end`);
    }
  });

  it('steps when the computer slept', () => {
    const { clock, go, tell } = machine();
    tell(1_000_005, 10);
    clock.atLeast(at(1_010_000)); // a pushed time stamp shows it
    assert.equal(clock.now(), 1_010_000);
    clock.atLeast(at(1_000_000)); // and one that is late shows nothing
    go(5);
    assert.equal(clock.now(), 1_010_005);
  });
});

it('countdowns change on the second and show 1 until the end', () => {
  assert.deepEqual([1, 1000, 1001, 61_000, 3_600_000, 90_061_000].map(digits), ['00:01', '00:01', '00:02', '01:01', '01:00:00', '1 d 01:01:01']);
  assert.equal(digits(364 * 86_400_000), '364 days');
  assert.equal(digits(-5), '00:00');
  assert.equal(untilNextChange(10_000, 7750), 250);
  assert.equal(untilNextChange(10_000, 8000), 1000);
  assert.equal(untilNextChange(10_000, 10_000), Infinity);
});

it('money is integers in, text out, and back', () => {
  assert.equal(money(49900, 'USD'), '$499');
  assert.equal(money(1995, 'USD'), '$19.95');
  assert.equal(money(500, 'JPY'), '¥500');
  assert.deepEqual(['1999', '19.9', '0,29', '1.999', '-1', 'x', ''].map((typed) => minorUnits(typed, 'USD')), [199900, 1990, 29, null, null, null, null]);
  assert.equal(minorUnits('500', 'JPY'), 500);
  assert.equal(percentOff(6667, 10000), 33);
  assert.equal(percentOff(100, null), 0);
});

it('events are read whole however they are cut', () => {
  const stream = ': hb\r\n\r\nevent: sale\ndata: {"a":\ndata: 1}\n\ndata: x\n\nid: 3\nevent: none\n\n';
  for (let cut = 1; cut <= stream.length; cut++) {
    const events = [];
    const feed = parser((...event) => events.push(event));
    for (let at = 0; at < stream.length; at += cut) feed(stream.slice(at, at + cut));
    assert.deepEqual(events, [['sale', '{"a":\n1}'], ['message', 'x']], `cut every ${cut}`);
  }
});

it('an answer that was overtaken by an event does not turn a sale back', () => {
  const known = { stock: 5, remaining: 1, state: 'open', server_time: '2026-11-20T10:00:00.5Z' };
  const answer = (server_time) => ({ stock: 6, remaining: 4, state: 'paused', server_time });
  assert.deepEqual(newer(known, answer('2026-11-20T10:00:00.25Z')), { stock: 6 });
  for (const time of ['2026-11-20T10:00:00.5Z', '2026-11-20T10:00:01Z']) assert.deepEqual(newer(known, answer(time)), answer(time));
  assert.deepEqual(newer(undefined, answer('2026-11-20T10:00:01Z')).remaining, 4);
});

it('a description may be as long as the server takes it', () => {
  const read = (name) => readFileSync(new URL(`../../${name}`, import.meta.url), 'utf8');
  const [, most] = /check_text\("description", description, 0, ([\d_]+)\)/.exec(read('src/catalog/changes.rs'));
  for (const [name, pattern] of [['static/admin.html', /name="description"[^>]* maxlength="(\d+)"/], ['static/js/admin-edit.js', /description: .* maxlength: (\d+)/]]) {
    assert.equal(pattern.exec(read(name))[1], most.replace('_', ''), name);
  }
});

it('a new sale is read from what was typed', () => {
  const typed = { title: 'A', currency: 'USD', stock: '5', per_user_limit: '1', price: '19.9', original: '', description: '', image_url: '/x.svg', payment_timeout_secs: '60', opens_at: '', closes_at: '' };
  const read = (change) => newSale((name) => ({ ...typed, ...change })[name], Date.parse('2026-01-01T00:00:00'));
  assert.deepEqual(read().body, { title: 'A', currency: 'USD', stock: 5, per_user_limit: 1, price_cents: 1990, image_url: '/x.svg', payment_timeout_secs: 60 });
  assert.equal(read({ opens_at: '2026-01-02T00:00:00' }).body.opens_at, new Date('2026-01-02T00:00:00').toISOString());
  const guarded = read({ waiting_room: 'yes', purchase_pass: 'yes', challenge_bits: '14' }).body;
  assert.deepEqual([guarded.waiting_room, guarded.purchase_pass, guarded.challenge_bits], [{}, true, 14]);
  assert.deepEqual(read({ original: 'x' }).wrong, { key: 'admin.bad_amount', name: 'original' });
  assert.deepEqual(read({ closes_at: '2025-12-31T00:00:00' }).wrong, { key: 'admin.bad_window', name: 'closes_at' });
  assert.deepEqual(read({ opens_at: '2026-01-02T00:00:00', closes_at: '2026-01-02T00:00:00' }).wrong.name, 'closes_at');
});

describe('a crowd of pages', () => {
  const spread = (draw) => Array.from({ length: 5000 }, draw).sort((a, b) => a - b);

  it('asks again spread around the period', () => {
    const all = spread(() => jitter(4000));
    assert.ok(all[0] >= 3000 && all.at(-1) <= 5000);
    assert.ok(all[4500] - all[500] > 1400, 'evenly, not in a heap');
  });

  it('comes back after a failure spread over ever longer times, never at once, and not later than it should', () => {
    for (const [attempt, most] of [[0, 1500], [1, 3000], [3, 12_000], [9, 15_000], [60, 15_000]]) {
      const all = spread(() => backoff(attempt, 1500));
      assert.ok(all[0] >= 250 && all.at(-1) <= 250 + most, `${attempt}`);
      assert.ok(all[4500] - all[500] > most * 0.7, `${attempt}: evenly, not in a heap`);
    }
  });
});
