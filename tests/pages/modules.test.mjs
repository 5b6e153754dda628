// The small pure modules under the pages, and that words and pages agree. Run: node --test tests/pages/

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { it } from 'node:test';
import { Clock } from '../../static/js/clock.js';
import { digits, untilNextChange } from '../../static/js/countdown.js';
import { minorUnits, money, percentOff } from '../../static/js/format.js';
import { parser } from '../../static/js/sse.js';
import { catalogues } from '../../static/js/strings.js';

const STATIC = new URL('../../static/', import.meta.url);
const read = (name) => readFileSync(new URL(name, STATIC), 'utf8');

it('the clock learns the server\'s time, prefers tight answers and never runs back', () => {
  let mono = 0;
  const clock = new Clock(() => mono, () => 500_000); // the visitor's own clock is wrong
  const at = (ms) => new Date(ms).toISOString();
  clock.observe(at(1_000_050), 0, mono = 100); // the middle of the round trip is 50
  assert.equal(clock.now(), 1_000_100);
  clock.observe(at(1_002_000), 100, mono = 2100); // a slow answer proves less
  assert.equal(clock.now(), 1_002_100);
  clock.observe(at(1_002_105), 2100, mono = 2120); // a quick one more: 5 ms back
  assert.equal(clock.now(), 1_002_115);
  clock.observe(at(1_002_105), mono, mono += 0);
  assert.ok(clock.now() >= 1_002_115, 'held, not turned back');
  mono += 1000;
  clock.atLeast(at(1_010_000)); // the computer slept, and a pushed time stamp shows it
  assert.equal(clock.now(), 1_010_000);
  clock.atLeast(at(1_000_000));
  assert.equal(clock.now(), 1_010_000);
});

it('countdowns change on the second and show 1 until the end', () => {
  assert.deepEqual([1, 1000, 1001, 61_000, 3_600_000, 90_061_000].map(digits), ['00:01', '00:01', '00:02', '01:01', '01:00:00', '1 d 01:01:01']);
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

it('every key used exists, pages carry the same English, and languages have the same keys', () => {
  const keys = Object.keys(catalogues.en);
  for (const [lang, words] of Object.entries(catalogues)) assert.deepEqual(Object.keys(words).sort(), [...keys].sort(), lang);
  for (const page of readdirSync(STATIC).filter((name) => name.endsWith('.html'))) {
    const html = read(page);
    for (const [, key, words] of html.matchAll(/data-t="([^"]+)"[^>]*>([^<]*)</g)) assert.equal(words, catalogues.en[key], `${page}: ${key}`);
    for (const [, key] of html.matchAll(/data-t-label="([^"]+)"/g)) assert.ok(key in catalogues.en, `${page}: ${key}`);
    assert.ok(!/ style=|<style|<script>| on\w+=/.test(html), `${page}: nothing inline`);
    for (const [, file] of html.matchAll(/(?:href|src)="\/static\/([^"]+)"/g)) read(file);
  }
  for (const script of readdirSync(new URL('js/', STATIC))) {
    for (const [, key] of read(`js/${script}`).matchAll(/\bt\('([\w.]+)'/g)) assert.ok(key in catalogues.en, `${script}: ${key}`);
  }
});
