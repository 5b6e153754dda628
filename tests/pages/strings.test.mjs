// Both languages say the same things, every key that is used exists, and the pages carry the same
// English.

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { posix } from 'node:path';
import { describe, it } from 'node:test';
import labOnlyEn from '../../static/js/lab/strings/en.js';
import labOnlyZh from '../../static/js/lab/strings/zh.js';
import raceEn from '../../static/js/lab/race-strings/en.js';
import raceZh from '../../static/js/lab/race-strings/zh.js';
import serverEn from '../../static/js/lab/server-strings/en.js';
import serverZh from '../../static/js/lab/server-strings/zh.js';
import theatreEn from '../../static/js/lab/theatre-strings/en.js';
import theatreZh from '../../static/js/lab/theatre-strings/zh.js';
import whyEn from '../../static/js/lab/why-strings/en.js';
import whyZh from '../../static/js/lab/why-strings/zh.js';
import adminEn from '../../static/js/admin-strings/en.js';
import adminZh from '../../static/js/admin-strings/zh.js';
import everyEn from '../../static/js/strings/en.js';
import everyZh from '../../static/js/strings/zh.js';
import { FIELDS } from '../../static/js/lab/setup.js';
import { errorWords } from '../../static/js/strings.js';

/** Sheets of words; a key stands in one of them. */
const together = (...sheets) => { const all = sheets.flatMap(Object.entries); assert.equal(new Set(all.map(([key]) => key)).size, all.length, 'a key twice'); return Object.fromEntries(all); };
const labEn = together(labOnlyEn, raceEn, serverEn, theatreEn, whyEn), labZh = together(labOnlyZh, raceZh, serverZh, theatreZh, whyZh);
const siteEn = together(everyEn, adminEn), siteZh = together(everyZh, adminZh);
const en = { ...siteEn, ...labEn }, zh = { ...siteZh, ...labZh };

const ROOT = new URL('../../', import.meta.url);
const read = (name) => readFileSync(new URL(name, ROOT), 'utf8');
const pages = readdirSync(new URL('static/', ROOT)).filter((name) => name.endsWith('.html'));

/** What a text asks for: {places} of a string, properties that a function reads. */
function places(value) {
  if (typeof value !== 'function') return [...value.matchAll(/\{(\w+)\}/g)].map(([, name]) => name).sort();
  const asked = new Set();
  for (const n of [1, 2]) value(new Proxy({}, { get: (_, name) => { asked.add(name); return name === 'n' ? n : String(name); } }));
  return [...asked].filter((name) => name !== 'n').sort();
}

describe('the languages', () => {
  it('have the same keys', () => {
    assert.deepEqual(Object.keys(siteZh).sort(), Object.keys(siteEn).sort());
    assert.deepEqual(Object.keys(labZh).sort(), Object.keys(labEn).sort());
  });
  it('have no key twice: the lab’s words would take the place of the site’s', () => {
    assert.deepEqual(Object.keys(labEn).filter((key) => key in siteEn), []);
  });
  it('have the same places, and nothing empty', () => {
    for (const key of Object.keys(en)) {
      assert.deepEqual(places(zh[key]).filter((name) => name !== 'n'), places(en[key]).filter((name) => name !== 'n'), key);
      assert.ok(typeof zh[key] === 'function' || zh[key].trim(), key);
    }
  });
  it('are different languages', () => {
    const same = Object.keys(en).filter((key) => en[key] === zh[key]);
    assert.deepEqual(same.sort(), ['buy.count', 'nav.api', 'audit.conserved_yes', 'wall.p95', 'wall.p99', 'lab.option_other', 'lab.kept.unknown'].sort());
  });
});

it('every problem code of the server has words', () => {
  const files = ['src/http/error.rs', 'crates/web/src/problem.rs', 'crates/lab/src/http/error.rs'];
  const codes = [...files.map(read).join('').matchAll(/^ {4}[A-Z_]+ = [A-Z_]+ "(\w+)"/gm)].map(([, code]) => code);
  assert.ok(codes.length > 40, 'the lists are still found');
  for (const code of codes) assert.ok(`error.${code}` in en, code);
  assert.equal(errorWords({ code: 'of a later server', detail: 'What it said.' }), 'What it said.');
  assert.equal(errorWords({ code: 'invalid', detail: 'stock: too much' }), 'The server does not accept this: stock: too much');
});

it('pages carry the English of their keys, and nothing inline', () => {
  for (const page of pages) {
    const html = read(`static/${page}`);
    for (const [, key, words] of html.matchAll(/data-t="([^"]+)"[^>]*>([^<]*)</g)) assert.equal(words, en[key], `${page}: ${key}`);
    for (const [, key] of html.matchAll(/data-t-label="([^"]+)"/g)) assert.ok(key in en, `${page}: ${key}`);
    assert.ok(!/ style=|<style|<script>| on\w+=/.test(html), `${page}: nothing inline`);
    for (const [, file] of html.matchAll(/(?:href|src)="\/static\/((?!vendor\/)[^"]+)"/g)) read(`static/${file}`);
  }
});

/** What a module imports, as paths below static/js/. */
const imports = (module) => [...read(`static/js/${module}`).matchAll(/^(?:import|export) .*? from '(\.[\w./-]+\.js)'/gm)]
  .map(([, path]) => posix.normalize(posix.join(posix.dirname(module), path)));

it('every page preloads the modules it needs, so that they do not wait for each other', () => {
  for (const page of pages) {
    const html = read(`static/${page}`);
    const [, start] = /<script type="module" src="\/static\/js\/([\w/-]+\.js)"/.exec(html);
    const needed = new Set();
    const visit = (module) => {
      for (const name of imports(module)) if (!needed.has(name)) { needed.add(name); visit(name); }
    };
    visit(start);
    const preloaded = [...html.matchAll(/rel="modulepreload" href="\/static\/js\/([\w/-]+\.js)"/g)].map(([, name]) => name);
    assert.deepEqual(preloaded.sort(), [...needed].sort(), page);
    const more = (/data-more="([^"]*)"/.exec(html)?.[1] ?? '').split(' ').filter(Boolean);
    const wanted = [['admin-words.js', 'admin-strings'], ['lab/words.js', 'lab/strings'], ['lab/race-words.js', 'lab/race-strings'], ['lab/theatre-words.js', 'lab/theatre-strings'], ['lab/why-words.js', 'lab/why-strings']].filter(([module]) => needed.has(module)).map(([, folder]) => folder);
    assert.deepEqual(more, wanted, `${page}: words of its own are fetched where they are needed`);
  }
});

it('every key that a script names exists, and every key is named', () => {
  const scripts = ['', 'lab/'].flatMap((folder) => readdirSync(new URL(`static/js/${folder}`, ROOT)).filter((name) => name.endsWith('.js')).map((name) => [folder + name, read(`static/js/${folder}${name}`)]));
  for (const [name, source] of scripts) {
    for (const [, key] of source.matchAll(/\bt\('([\w.]+)'/g)) assert.ok(key in en, `${name}: ${key}`);
    for (const [, key] of source.matchAll(/\bt\('([\w.]+)'/g)) assert.ok(key in everyEn || name.startsWith(key in adminEn ? 'admin' : 'lab/'), `${name} does not load ${key}`);
  }
  const used = scripts.map(([, source]) => source).join('\n') + pages.map((page) => read(`static/${page}`)).join('\n');
  const families = [...used.matchAll(/[`'"]([a-z]+\.(?:[a-z]+[._])?)\$\{/g)].map(([, start]) => start);
  const unused = Object.keys(en).filter((key) => !used.includes(`'${key}'`) && !used.includes(`"${key}"`) && !families.some((start) => key.startsWith(start)));
  assert.deepEqual(unused, []);
});

describe('what the lab’s server names has words, and nothing else has', () => {
  const files = readdirSync(new URL('crates/lab/src/', ROOT), { recursive: true }).map(String).filter((name) => name.endsWith('.rs')).map((name) => [name, read(`crates/lab/src/${name}`)]);
  const quoted = (list) => [...list.matchAll(/"([^"]+)"/g)].map(([, text]) => text);
  /** Of a file, what stands where `pattern` has a group: texts, or a constant of the file. */
  const named = (source, pattern) => [...source.matchAll(pattern)].flatMap(([, found]) => (/^[A-Z_]+$/.test(found) ? quoted(new RegExp(`const ${found}: [^=]+= ([^;]+);`).exec(source)[1]) : quoted(found)));
  const FAMILIES = {
    option: [/\b(?:whole|choice)\(\s*("[a-z_]+"),/g],
    value: [/\bchoice\(\s*"[a-z_]+",\s*(&\[[^\]]*\]|[A-Z_]+)/g, /crash_points: (&\[[^\]]*\])/g],
    noted: [/\.note\(\s*("[^"]+"|[A-Z_]+)\s*\)/g],
    place: [/\binterleav(?:e|ing_point)\(\s*("[^"]+")\s*\)/g, /line_between\([^,]+, \("[^"]+", ("[^"]+")\)\)/g],
  };
  const ELSEWHERE = {
    option: Object.keys(FIELDS), // fields of the form
  };
  const sheets = { lesson: { ...labOnlyEn, ...theatreEn }, race: { ...labOnlyEn, ...raceEn } };

  for (const [family, patterns] of Object.entries(FAMILIES)) {
    it(family, () => {
      const found = new Set();
      for (const [name, source] of files) {
        const sheet = name.startsWith('lessons/') ? 'lesson' : 'race';
        for (const one of patterns.flatMap((pattern) => named(source, pattern))) {
          if (ELSEWHERE[family]?.includes(one)) continue;
          found.add(`lab.${family}.${one}`);
          assert.ok(`lab.${family}.${one}` in sheets[sheet], `${name}: ${one}`);
        }
      }
      assert.deepEqual(Object.keys(labEn).filter((key) => key.startsWith(`lab.${family}.`)).sort(), [...found].sort());
    });
  }

  it('a note has the same words on the page and in the report', () => {
    for (const [language, sheet] of [['en', raceEn], ['zh', raceZh]]) {
      const [, notes] = read(`crates/lab/texts/${language}/verdict.md`).split('\n## Notes\n');
      const said = [...notes.matchAll(/^- `([^`]+)`: (.+)$/gm)].map(([, note, words]) => [`lab.noted.${note}`, words]);
      assert.deepEqual(said, Object.entries(sheet).filter(([key]) => key.startsWith('lab.noted.')));
    }
  });
});
