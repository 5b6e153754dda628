// What a page asks for before its modules are there.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { it } from 'node:test';
import vm from 'node:vm';

const source = readFileSync(new URL('../../static/js/lang.js', import.meta.url), 'utf8');

/** Runs lang.js as a page does; answers the addresses that it asked for. */
function asked({ hidden }) {
  const paths = [];
  const document = {
    hidden, documentElement: { classList: { add() {} } }, head: { append() {} }, createElement: () => ({}),
    currentScript: { dataset: { early: '' }, src: 'http://shop.example/static/js/lang.js' },
  };
  vm.runInNewContext(source, {
    document, URL, AbortSignal, performance, navigator: { languages: ['en'] }, localStorage: { getItem: () => null },
    location: { pathname: '/sales/7' }, fetch: async (path) => { paths.push(path); },
  });
  return paths;
}

it('a page in the background asks for nothing early: the answer would time out unread', () => {
  assert.deepEqual(asked({ hidden: false }), ['/api/v1/sales/7']);
  assert.deepEqual(asked({ hidden: true }), []);
});
