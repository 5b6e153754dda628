// The books as an operator reads them. Run: node --test tests/pages/

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { it } from 'node:test';
import { figuresOf, inChinese, verdictOf } from '../../static/js/books-view.js';
import en from '../../static/js/strings/en.js';

const books = { ok: true, quiescent: true, captured_cents: 300, refunded_cents: 100, paid_cents: 200, under_way: 0, provider: { captured_cents: 300, refunded_cents: 100, transactions: 4 }, drift: [] };

it('the books agree, agree so far, or do not', () => {
  assert.deepEqual([books, { ...books, quiescent: false }, { ...books, ok: false }].map(verdictOf), ['ok', 'moving', 'bad']);
});

it('every figure has its place, with or without a provider, and before the first comparison', () => {
  assert.deepEqual(Object.fromEntries(figuresOf(books)), { captured: 300, refunded: 100, paid: 200, under_way: 0, provider_captured: 300, provider_refunded: 100 });
  const names = figuresOf(books).map(([name]) => name);
  for (const none of [null, { ...books, provider: null }]) assert.deepEqual(figuresOf(none).map(([name]) => name), names);
  assert.deepEqual(figuresOf({ ...books, provider: null }).slice(4).map(([, amount]) => amount), [null, null]);
  for (const name of names) assert.ok(`books.${name}` in en, name);
});

it('every drift that the books can name has Chinese words', () => {
  const source = readFileSync(new URL('../../crates/payments/src/ledger/books.rs', import.meta.url), 'utf8');
  const drifts = [...source.matchAll(/"((?:(?:order )?\{\w+\}|payments were)[^"]*(?:captured|refund)[^"]*)"/g)].map(([, words]) => words);
  assert.ok(drifts.length >= 10, `${drifts.length} are still found`);
  const said = drifts.map((one) => inChinese(one.replace(/\{(\w+)\}/g, (_, name) => (name === 'reference' ? 'a1b2c3d4-7-1' : name === 'id' ? 'ch_7' : '7'))));
  said.forEach((one, index) => assert.match(one ?? '', /[\u4e00-\u9fff]/, drifts[index]));
  assert.equal(new Set(said).size, drifts.length, 'each its own');
  assert.equal(inChinese('ch_1: 500 captured for order 12, 400 in the ledger'), 'ch_1：订单 12 已扣款 500，账本记的是 400');
  assert.equal(inChinese('something of a later server'), null);
});
