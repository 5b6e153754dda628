// What an audit finds broken, in Chinese. Run: node --test tests/pages/

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { it } from 'node:test';
import { inChinese } from '../../static/js/audit-problems.js';
import zh from '../../static/js/strings/zh.js';

const read = (path) => readFileSync(new URL(`../../${path}`, import.meta.url), 'utf8');
/** The literals of a Rust file that a pattern finds, `named` and with something in their places. */
const said = (path, pattern, named = (words) => words) => [...read(path).matchAll(pattern)]
  .map(([, words]) => named(words).replace(/\\\n\s*/g, '').replace(/\{\w*\}/g, '7'));

it('every problem that an audit can tell has Chinese words', () => {
  const invariants = { NoOversell: 'I1', NoDuplicate: 'I2', NothingLost: 'I3', Conservation: 'I4' };
  const problems = said('src/audit/mod.rs', /"((?:\{\w+\} broken|redis has epoch)[^"]*)"/g, (words) => words.replace(/^\{(\w+)\}/, (_, name) => invariants[name]));
  assert.ok(problems.length >= 11, `${problems.length} are still found in src/audit/mod.rs`);
  for (const one of problems) assert.match(inChinese(one) ?? '', /[\u4e00-\u9fff]/, one);
  assert.equal(inChinese('I3 broken: accepted orders that are neither live in postgres nor waiting: 12 (for example 3, 4)'), 'I3 被破坏：已接受的订单既不在 Postgres 里，也不在等待：12（例如 3, 4）');
  assert.equal(inChinese('something of a later server'), null);
});

it('whatever the server says of a field has Chinese words, and never shows English', () => {
  const whys = said('src/catalog/changes.rs', /"((?:must|is out|the sale was closed|the stock would)[^"]*)"/g);
  assert.ok(whys.length >= 10, `${whys.length} are still found in src/catalog/changes.rs`);
  for (const why of whys) assert.match(zh['error.invalid']({ detail: `stock: ${why}` }), /^服务器不接受：库存/, why);
  assert.doesNotMatch(zh['error.invalid']({ detail: 'the body broke off' }), /[a-z]/);
});
