// The lab's pages. The server's side is stubbed (lab-stubs.mjs) where a test needs an answer that a real race does not
// bring about at will.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { stubLab } from './lab-stubs.mjs';
import { AXE, eventually } from './support.mjs';

const axe = readFileSync(AXE, 'utf8');
const HEAVIEST = 60_000; // bytes over the wire on a first visit
const loaded = (page) => page.waitForSelector('#page:not([hidden])');
/** /lab/why after its race, which is shown square by square. */
async function raced(page) {
  await page.waitForSelector('#crowd i');
  await page.click('#go');
  await page.waitForSelector('#main[data-scene="raced"] #go[aria-disabled="false"]', { timeout: 60_000 });
}
/** The reader, which is fetched when one comes near. */
async function reads(page) {
  await page.locator('#reader').scrollIntoViewIfNeeded();
  await page.waitForSelector('#read-code .line');
}
/** As a text stands in HTML. */
const escaped = (words) => words.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
const staged = (page) => page.waitForSelector('#theatre:not([hidden])');

export function lab(stage) {
  /** A visitor of a lab that answers as lab-stubs.mjs has it. */
  async function visit(options = {}, how = {}) {
    const page = await stage.visit(options);
    page.asked = await stubLab(page, how);
    return page;
  }
  const EVERY = [
    ['lab', '/lab?s=naive,token-lock', async (page) => { await loaded(page); await page.waitForSelector('.lesson-card'); await page.click('#options summary'); await reads(page); }],
    ['lab-raced', '/lab?s=naive,conditional-update', async (page) => { await loaded(page); await page.click('#start'); await page.waitForSelector('#results:not([hidden])'); await page.waitForSelector('.lane.bad'); }],
    ['lesson', '/lab/lessons/b03#4', async (page) => { await staged(page); await page.click('details summary'); }],
    ['locks', '/lab/locks', async (page) => { await loaded(page); await page.locator('.open').first().click(); }],
    ['lab-off', '/static/lab-off.html', (page) => page.waitForSelector('h1')],
    ['ids', '/lab/ids', (page) => page.waitForSelector('.idea')],
    ['why', '/lab/why', async (page) => { await raced(page); for (let n = 0; n < 3; n++) await page.keyboard.press('ArrowRight'); await page.waitForSelector('.glows'); }],
  ];

  describe('the lab', () => {
    it('races two strategies on one screen, and the one that sells too much turns red', async () => {
      const page = await visit();
      await page.goto('/lab?s=naive,conditional-update&buyers=500');
      await loaded(page);
      assert.equal(await page.textContent('#start'), 'Race all 2');
      await page.click('#start');
      const naive = page.locator('.lane', { hasText: 'Naive' }), sound = page.locator('.lane', { hasText: 'Conditional update' });
      await naive.getByText('37 orders have no phone behind them.').waitFor();
      assert.equal(await naive.locator('.lane-state').textContent(), 'Oversold by 37');
      assert.equal(await naive.locator('.predicted').textContent(), 'as predicted', 'what came and what was said are two things');
      await sound.getByText('Sold exactly', { exact: true }).waitFor();
      assert.match(await naive.getAttribute('class'), /\bbad\b/);
      assert.match(await sound.getAttribute('class'), /\bgood\b/);
      const [red, mark, squares] = await naive.locator('.track').evaluate((track) => [track.querySelector('.excess').getBoundingClientRect(), track.querySelector('b').getBoundingClientRect(), track.querySelectorAll('.excess i').length]);
      assert.ok(squares > 3 && red.width > 10 && Math.abs(red.left - mark.left) < 4, 'what is beyond the stock is drawn beyond its mark');
      assert.equal(await sound.locator('.excess i').count(), 0);
      assert.deepEqual(page.asked.filter(({ path }) => path.endsWith('/storm')).map(({ body }) => body), Array(2).fill({ buyers: 500, concurrency: 64, duplicate_share: 0.1 }));
      assert.equal(await page.locator('#table tr').count(), 2);
      assert.match(await page.textContent('#say'), /Naive: 137 sold\. Oversold by 37\. Conditional update: 100 sold\. Sold exactly\./);
      await page.leave();
    });

    it('is red already while it runs, and can be stopped', async () => {
      const page = await visit({}, { unfinished: true });
      await page.goto('/lab?s=naive');
      await loaded(page);
      await page.click('#start');
      await page.waitForSelector('.lane.bad');
      assert.equal(await page.textContent('.lane-state'), 'Overselling');
      await page.getByRole('button', { name: 'Stop' }).click();
      await page.getByText('Stopped before it was over.').waitFor();
      await page.getByRole('button', { name: 'Run', exact: true }).waitFor();
      await eventually(() => page.asked.some(({ method }) => method === 'DELETE'), 'the stopped arena goes');
      await page.leave();
    });

    it('of two presets that are clicked while a race is on, the last one runs', async () => {
      const how = { unfinished: true }, page = await visit({}, how);
      await page.goto('/lab?s=naive');
      await loaded(page);
      await page.click('#start');
      await page.waitForSelector('.lane.bad');
      how.unfinished = false;
      await page.evaluate(() => { const [first, nodes] = document.querySelectorAll('#presets button'); first.click(); nodes.click(); });
      await page.locator('#lanes .lane', { hasText: 'Process mutex' }).getByText('Oversold by', { exact: false }).first().waitFor();
      assert.match(page.url(), /s=process-mutex&/);
      await reads(page);
      assert.deepEqual(page.asked.filter(({ method, path }) => method === 'POST' && path.endsWith('/arenas')).map(({ body }) => body.strategy), ['naive', 'process-mutex']);
      how.unfinished = true;
      await page.click('#start');
      await page.getByRole('button', { name: 'Stop' }).waitFor();
      how.unfinished = false;
      await page.selectOption('#read-which', 'naive');
      await page.getByRole('button', { name: 'Run it: Two buyers' }).click(); // a demonstration does so too
      await page.locator('#lanes .lane.bad', { hasText: 'Naive' }).waitFor();
      await page.leave();
    });

    it('keeps several runs, shows them again from a link, and gives them away', async () => {
      const page = await visit({ permissions: ['clipboard-read', 'clipboard-write'] });
      await page.goto('/lab?s=naive');
      await loaded(page);
      await page.click('#start');
      await page.waitForSelector('#table tr');
      await page.click('#none');
      await page.click('#pick-conditional-update');
      await page.click('#start');
      await page.waitForSelector('#table tr:nth-child(2)');
      for (const [button, name, holds] of [['#csv', 'flash-sale-lab.csv', /^\ufeffrun,strategy,stock/], ['#json', 'flash-sale-lab.json', /"oversold": 37/], ['#report', 'flash-sale-lab.html', /Report/]]) {
        const [file] = await Promise.all([page.waitForEvent('download'), page.click(button)]);
        assert.equal(file.suggestedFilename(), name);
        assert.match(readFileSync(await file.path(), 'utf8'), holds);
      }
      assert.equal(page.asked.findLast(({ path }) => path.endsWith('/report')).query.arenas, 'arena-1,arena-2');
      await page.click('#link');
      await page.getByText('The link is copied').waitFor();
      const link = await page.evaluate(() => navigator.clipboard.readText());
      // As when it is left; what a page sends afterwards can no longer be seen from here.
      await page.evaluate(() => dispatchEvent(new PageTransitionEvent('pagehide')));
      await eventually(() => page.asked.filter(({ method }) => method === 'DELETE').length === 2, 'both arenas go');
      await page.goto('/lab/ids');
      await page.goto(link);
      await page.waitForSelector('#table tr:nth-child(2)');
      assert.match(await page.textContent('#table'), /137 \/ 100/);
      await eventually(() => page.locator('#results').evaluate((results) => { const { top } = results.getBoundingClientRect(); return top >= 0 && top < innerHeight / 2; }), 'a shared link lands on its result');
      assert.ok(await page.isHidden('#report'), 'there is no arena to report of');
      await page.leave();
    });

    it('says what cannot run and why, and shows the source with the lines that differ', async () => {
      const page = await visit();
      await page.goto('/lab?s=naive,zookeeper-lock');
      await loaded(page);
      assert.ok(await page.isDisabled('#pick-zookeeper-lock'));
      await page.getByText('no ZooKeeper runs here').waitFor();
      assert.equal(await page.textContent('#start'), 'Run');
      await reads(page);
      await page.selectOption('#read-beside', 'process-mutex');
      assert.match(await page.textContent('.line.differs'), /self\.mutex\.lock/);
      assert.ok(await page.getByText('`<b>` is no markup here').first().isVisible());
      await page.leave();
    });

    it('runs a demonstration at the push of a button', async () => {
      const page = await visit();
      await page.goto('/lab?s=naive');
      await loaded(page);
      await reads(page);
      await page.getByRole('button', { name: 'Run it: Two buyers' }).click();
      await page.waitForSelector('#table tr');
      const made = page.asked.find(({ method, path }) => method === 'POST' && path.endsWith('/arenas')).body;
      assert.deepEqual([made.strategy, made.stock, made.nodes], ['naive', 1, 1]);
      assert.match(page.url(), /s=naive:double-click/);
      assert.equal(await page.inputValue('#f-stock'), '1', 'the form shows what it runs');
      await page.fill('#f-stock', '3');
      await page.locator('#f-stock').blur();
      assert.match(page.url(), /s=naive&/, 'and what is written there counts from then on');
      await page.leave();
    });

    it('a preset runs when it is clicked: the first button of the page, above the fold on a laptop and on a phone', async () => {
      for (const [width, height] of [[1280, 800], [390, 780]]) {
        const page = await visit({ width, height });
        await page.goto('/lab');
        await loaded(page);
        const button = page.locator('main button').first();
        const box = await button.boundingBox();
        assert.ok(box.y + box.height <= height, `${box.y + box.height} of ${height}`);
        await button.click();
        await page.waitForSelector('#table tr:nth-child(2)');
        assert.deepEqual(page.asked.filter(({ method, path }) => method === 'POST' && path.endsWith('/arenas')).map(({ body }) => body.strategy), ['naive', 'conditional-update']);
        await page.leave();
      }
    });

    it('says why, one click after the oversell: the marked lines, and the two requests that met', async () => {
      const page = await visit();
      await page.goto('/lab');
      await loaded(page);
      await page.click('#presets button');
      const lane = page.locator('.lane.bad');
      await lane.getByRole('button', { name: 'Why? Naive' }).click();
      assert.match(await lane.locator('.collision figcaption').textContent(), /buyer-12 and buyer-47 .* “stock read”/);
      assert.match(await lane.locator('.collision li').nth(1).textContent(), /buyer-47.*asked at 2 ms.*stock read: 3\.4 ms.*sold at 9\.1 ms, order 4712/);
      assert.equal(await lane.locator('.marked.flaw').count(), 2);
      const [first] = await lane.locator('.marked.flaw .line.marked').allTextContents();
      assert.match(first, /SELECT stock/);
      assert.match(await lane.locator('.marked.flaw').first().locator('.where-from').textContent(), /\/naive\.rs:44/);
      await lane.locator('.marked.flaw').first().getByRole('button', { name: 'More lines' }).click();
      assert.equal(await lane.locator('.marked.flaw').first().locator('.line').count(), 9);
      const sound = page.locator('.lane.good');
      await sound.getByRole('button', { name: 'Why? Conditional' }).click();
      assert.match(await sound.locator('.marked.cure .line.marked').textContent(), /stock > 0/);
      assert.equal(await sound.locator('.collision').count(), 0);
      await page.locator('#charts li.bad').first().getByRole('button').click();
      await reads(page);
      assert.equal(await page.textContent('#h-reader'), 'Naive', 'a red bar leads to the lines');
      assert.ok(await page.locator('#read-marks .marked.flaw').first().isVisible());
      assert.equal(await page.textContent('#read-lead'), 'Look, then take.');
      await page.leave();
    });

    it('a lane runs its own demonstration, and speeds are shown only where they compare', async () => {
      const page = await visit();
      await page.goto('/lab?s=token-lock:lease-over,conditional-update&buyers=500');
      await loaded(page);
      await page.click('#start');
      await page.waitForSelector('#table tr:nth-child(2)');
      const made = page.asked.filter(({ method, path }) => method === 'POST' && path.endsWith('/arenas')).map(({ body }) => [body.strategy, body.stock]);
      assert.deepEqual(made, [['token-lock', 1], ['conditional-update', 100]]);
      assert.deepEqual(page.asked.filter(({ path }) => path.endsWith('/storm')).map(({ body }) => body.buyers).sort(), [2, 500]);
      assert.ok(await page.getByText('Each lane runs the situation that decides about it').isVisible());
      assert.equal(await page.locator('.lane .curve').count() + await page.locator('.chart', { hasText: 'second' }).count(), 0);
      await page.goto('/lab?s=conditional-update&concurrency=512&o.interleave=off');
      await loaded(page);
      await page.click('#start');
      await page.waitForSelector('#table tr');
      await page.getByText('512 concurrent buyers: these speeds compare').waitFor();
      await page.locator('.chart', { hasText: 'second' }).getByText('1,241').waitFor();
      await page.leave();
    });

    it('a race goes on in the other language, in the same arenas', async () => {
      const how = { unfinished: true };
      const page = await visit({}, how);
      await page.addInitScript(() => { // what a page sends as it leaves is not seen from here
        const { fetch } = globalThis;
        globalThis.fetch = (path, how) => {
          if (how?.method === 'DELETE') sessionStorage.setItem('deleted', path);
          return fetch(path, how);
        };
      });
      await page.goto('/lab?s=naive,conditional-update');
      await loaded(page);
      await page.click('#start');
      await page.waitForSelector('.lane.bad');
      how.unfinished = false; // the server goes on while the page is loaded again
      await page.getByRole('button', { name: '中文' }).click();
      await page.waitForSelector('html[lang="zh-Hans"]');
      await page.waitForSelector('#table tr:nth-child(2)');
      const posted = (what) => page.asked.filter(({ method, path }) => method === 'POST' && path.endsWith(what)).length;
      const deleted = () => page.evaluate(() => sessionStorage.getItem('deleted'));
      assert.deepEqual([posted('/arenas'), posted('/storm'), await deleted()], [2, 2, null]);
      await page.locator('.lane.bad').getByText('超卖 37 件').waitFor();
      await page.click('#start');
      await page.waitForSelector('#table tr:nth-child(4)');
      assert.match(await page.locator('#table tr').nth(3).textContent(), /第 2 次/, 'the next race has the next number');
      await page.getByRole('button', { name: 'English' }).click(); // and results keep their report
      await page.waitForSelector('html[lang="en"]');
      await page.waitForSelector('#table tr:nth-child(4)');
      assert.ok(await page.isVisible('#report'));
      assert.equal(await deleted(), null, 'the arenas stay');
      await page.leave();
    });

    it('printed, squares and bars keep their colours', async () => {
      const page = await visit();
      await page.goto('/lab?s=naive');
      await loaded(page);
      await page.click('#start');
      await page.waitForSelector('#table tr');
      await page.emulateMedia({ media: 'print' });
      for (const one of ['.track .excess i', '.track .sold', '.chart .bar i']) {
        const [adjust, colour, wide] = await page.locator(one).first().evaluate((element) => [getComputedStyle(element).printColorAdjust, getComputedStyle(element).backgroundColor, element.getBoundingClientRect().width]);
        assert.equal(adjust, 'exact', one);
        assert.notEqual(colour, 'rgba(0, 0, 0, 0)', one);
        assert.ok(wide > 0, one);
      }
      await page.leave();
    });

    it('options that only some have are sent to those', async () => {
      const page = await visit();
      await page.goto('/lab?s=naive,token-lock');
      await loaded(page);
      await page.click('#options summary');
      await page.getByLabel('Lease of the lock, ms').fill('50');
      await page.getByLabel('A server crashes at').selectOption('after the lock');
      await page.getByLabel('Force buyers into each other').selectOption('off');
      await page.click('#start');
      await page.waitForSelector('#table tr:nth-child(2)');
      const bodies = page.asked.filter(({ method, path }) => method === 'POST' && path.endsWith('/arenas')).map(({ body }) => body.options);
      assert.deepEqual(bodies, [{ interleave: 'off' }, { lease_ms: 50, interleave: 'off', crash_at: 'after the lock' }]);
      assert.match(page.url(), /o\.lease_ms=50/);
      await page.leave();
    });

    it('too many arenas, an overworked server, a lab that is off: in words', async () => {
      for (const [refused, words] of [[{ status: 409, code: 'too_many_arenas' }, 'Too many stocks of the lab'], [{ status: 503, code: 'unavailable' }, /try again|temporarily|not available|busy/i]]) {
        const page = await visit({ expected: ['status of'] }, { refuse: (method, path) => (method === 'POST' && path.endsWith('/arenas') ? refused : null) });
        await page.goto('/lab?s=naive');
        await loaded(page);
        await page.click('#start');
        await page.locator('.lane .explains').getByText(words).waitFor();
        assert.equal(await page.textContent('.lane-state'), 'Did not run');
        await page.leave();
      }
      const page = await visit({ expected: ['status of 404'] }, { refuse: () => ({ status: 404, code: 'not_found' }) });
      for (const path of ['/lab', '/lab/lessons/b03', '/lab/locks', '/lab/ids']) {
        await page.goto(path);
        await page.getByText('The lab is switched off on this server').waitFor();
      }
      await page.leave();
    });
  });

  // Without stubs: what the server really answers.
  describe('the server’s own lab', () => {
    it('a race: one sells too much, the other does not, and the report says so', async () => {
      const page = await stage.visit();
      await page.goto('/lab?s=naive,conditional-update&stock=10&buyers=80&concurrency=16');
      await loaded(page);
      await page.click('#start');
      const finished = (lane) => page.waitForFunction((id) => document.querySelectorAll('#lanes .lane')[id]?.querySelector('.explains').textContent, lane, { timeout: 60_000 });
      await Promise.all([0, 1].map(finished));
      const classes = await page.locator('#lanes .lane').evaluateAll((lanes) => lanes.map(({ className }) => className));
      assert.deepEqual(classes, ['lane bad', 'lane good']);
      await page.waitForSelector('#table tr:nth-child(2)');
      assert.match(await page.locator('#table tr').nth(1).textContent(), /10 \/ 10/);
      const [file] = await Promise.all([page.waitForEvent('download'), page.click('#report')]);
      const report = readFileSync(await file.path(), 'utf8');
      assert.match(report, /^<!doctype html>/i);
      for (const title of await page.locator('#lanes h3').allTextContents()) assert.ok(report.includes(escaped(title)), `${title} is in the report`);
      const link = page.url(), table = await page.locator('#table').innerText();
      await page.goto('/lab/ids');
      await page.goto(link); // what the sender saw
      await page.waitForSelector('#table tr:nth-child(2)');
      assert.equal(await page.locator('#table').innerText(), table);
      await page.leave();
    });

    it('the preset of Redis locks goes red where a lease is outlived, an owner not checked, a node forgets, and green where a token is fenced', async () => {
      const page = await stage.visit();
      await page.goto('/lab?run=locks');
      await page.waitForFunction(() => document.querySelectorAll('#table tr').length === 4, null, { timeout: 60_000 });
      const lanes = await page.locator('#lanes .lane').evaluateAll((all) => all.map((one) => one.className));
      assert.deepEqual(lanes, ['lane bad', 'lane bad', 'lane bad', 'lane good']);
      assert.equal(await page.locator('#lanes .demonstrates').count(), 4, 'each runs its own demonstration');
      assert.equal(await page.locator('.predicted.against').count(), 0);
      await page.locator('.lane.bad').first().locator('.why').click();
      assert.ok(await page.locator('.lane.bad .marked.flaw .line.marked').first().isVisible());
      await page.leave();
    });

    it('a first visit: one click to an oversell, one more to its lines', async () => {
      const page = await stage.visit();
      await page.goto('/lab');
      await loaded(page);
      await page.locator('main button').first().click();
      await page.locator('.lane.bad .why').click({ timeout: 60_000 });
      await page.locator('.lane.bad .marked.flaw .line.marked').first().waitFor();
      assert.match(await page.locator('.lane.bad .collision figcaption').textContent({ timeout: 60_000 }), /buyer-\d+ and buyer-\d+ of this race/);
      await page.leave();
    });

    it('every strategy can be read, in both languages', async () => {
      for (const locale of ['en-US', 'zh-CN']) {
        const page = await stage.visit({ locale });
        await page.goto('/lab');
        await loaded(page);
        await reads(page);
        for (const id of await page.locator('#read-which option').evaluateAll((options) => options.map(({ value }) => value))) {
          await page.selectOption('#read-which', id);
          assert.ok(await page.locator('#read-words dd').count() >= 5, id);
          assert.ok(await page.locator('#read-code .line').count() > 5, id);
        }
        assert.doesNotMatch(await page.locator('#picker').innerText(), /undefined|lab\.|\{/);
        await page.leave();
      }
    });
  });

  it('what the server itself tells fits every screen and is accessible, and on Chinese pages there is no English left', async () => {
    const page = await stage.visit({ locale: 'zh-CN', reducedMotion: 'reduce' });
    const long = { timeout: 90_000 };
    const played = (own) => page.waitForSelector(own, long);
    const { lessons } = await stage.server.call('GET', '/api/v1/lab/lessons');
    const places = [
      ['/lab?s=naive,process-mutex,lock-and-hincrby,lua-sync&stock=5&buyers=30&nodes=2', async () => {
        await played('#page:not([hidden])');
        await page.click('#options summary');
        await page.click('#start');
        await page.waitForFunction(() => document.querySelectorAll('#table tr').length === 4, null, long);
      }],
      ['/lab/locks', () => played('#page:not([hidden])')],
      ['/lab/ids', () => played('.idea')],
      ...lessons.map(({ id }) => [`/lab/lessons/${id}`, async () => { await played('#theatre:not([hidden])'); await page.locator('details summary').click(); }]),
    ];
    for (const [path, ready] of places) {
      await page.setViewportSize({ width: 1280, height: 900 });
      await page.goto(path);
      await ready();
      const english = await page.evaluate(() => {
        const sentence = /[a-z]{2,}(?:,? [a-z]{2,}){1,}/, names = /fencing token|fail point/g; // two small words in a row; and terms of the field
        const found = [];
        const look = (words, where) => { if (sentence.test(words.replace(names, '').replace(/“[^”]*”|《[^》]*》/g, ''))) found.push(`${where}: ${words.trim()}`); };
        const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        for (let node = walker.nextNode(); node; node = walker.nextNode()) {
          // What goes over the wire and what is source stay as they are.
          if (!node.parentElement.closest('pre, #lang, script, .diagram .command, .diagram .meaning') && !(node.parentElement.closest('code') && !node.parentElement.closest('#keys th'))) look(node.textContent, node.parentElement.tagName);
        }
        for (const name of ['aria-label', 'title', 'placeholder', 'alt']) for (const element of document.querySelectorAll(`[${name}]`)) look(element.getAttribute(name), name);
        return found;
      });
      assert.deepEqual(english, [], path);
      for (const width of [360, 768, 1280, 1920, 2560]) {
        await page.setViewportSize({ width, height: width < 500 ? 780 : 1200 });
        const wide = await page.evaluate(() => document.documentElement.scrollWidth);
        assert.ok(wide <= width, `${path} at ${width}: ${wide}`);
      }
      if (path.includes('lessons/') && !path.endsWith('b11')) continue; // they differ in length, and b11 has most of everything
      await page.setViewportSize({ width: 1280, height: 900 });
      await page.evaluate(axe);
      const { violations } = await page.evaluate(() => globalThis.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'], resultTypes: ['violations'] }));
      assert.deepEqual(violations.map(({ id, nodes }) => `${path}: ${id}: ${nodes.map(({ html }) => html).join(' ')}`), []);
    }
    await page.leave();
  });

  describe('the server’s own lessons', () => {
    it('a lesson is played, and shows the moment when two hold the lock', async () => {
      const page = await stage.visit();
      await page.goto('/lab/lessons/b03');
      await page.waitForSelector('#theatre:not([hidden])', { timeout: 60_000 });
      await page.locator('.acts .quiet').first().click();
      await page.locator('#holders.overlap').waitFor();
      assert.ok(await page.locator('#rows tr').count() > 5);
      await page.keyboard.press('End');
      await page.locator('#verdict').waitFor();
      assert.doesNotMatch(await page.locator('.now-box').innerText(), /undefined|NaN|\[object|\{\w+\}/);
      await page.leave();
    });

    it('locks are compared in four properties each, and order numbers explained', async () => {
      const page = await stage.visit();
      await page.goto('/lab/locks');
      await page.waitForSelector('#page:not([hidden])', { timeout: 60_000 });
      const locks = await page.locator('#rows .lock').count();
      assert.ok(locks >= 10, `${locks} locks`);
      await page.setViewportSize({ width: 1280, height: 800 });
      const bottom = await page.locator('#rows .lock').last().evaluate((row) => row.getBoundingClientRect().bottom);
      assert.ok(bottom <= 800, `the last lock ends at ${bottom}`);
      assert.equal(await page.locator('#rows .answer:is(.yes, .no, .partly)').count(), locks * 4);
      await page.goto('/lab/ids');
      await page.waitForSelector('.idea', { timeout: 60_000 });
      assert.doesNotMatch(await page.locator('main').innerText(), /undefined|NaN|\[object/);
      await page.leave();
    });
  });

  describe('the page for the projector', () => {
    it('opens a sale, stops it at two of its buyers, repairs it, and ends at three doors', async () => {
      const page = await visit();
      await page.goto('/lab/why');
      await raced(page);
      assert.equal(await page.textContent('#left .count strong'), '14');
      assert.deepEqual([await page.locator('#left .excess').count(), await page.locator('#right .excess').count()], [4, 0], 'red, outside the frame');
      assert.match(await page.textContent('#say'), /14 sold of 10 on the left, 10 sold of 10 on the right/);
      assert.ok(await page.isHidden('#recorded'));
      await page.getByRole('button', { name: 'Why?' }).click();
      assert.equal(await page.textContent('#h-stopped'), 'Buyer 12 and Buyer 47, 3 ms into this race');
      assert.equal(await page.locator('#code li').count(), 5);
      await page.locator('#scrub').fill('2');
      await page.getByText('Both looked before either wrote.').first().waitFor();
      assert.deepEqual(await page.locator('#code li').nth(1).locator('span').allTextContents(), ['Buyer 12', 'Buyer 47']);
      await page.locator('#scrub').fill('4');
      await page.getByRole('button', { name: 'Fix it' }).click();
      assert.ok(await page.getByText('UPDATE … SET stock = stock - 1 WHERE stock > 0').isVisible());
      await page.getByRole('button', { name: 'Run again' }).click();
      await page.waitForSelector('#main[data-scene="again"] #go[aria-disabled="false"]');
      assert.equal(await page.textContent('#left .count strong'), '10');
      for (let n = 0; n < 7; n++) await page.keyboard.press('ArrowLeft');
      await page.waitForSelector('#main[data-scene="raced"]');
      assert.equal(await page.textContent('#h-left'), 'Read, then write');
      await page.locator('#left .count').getByText('14', { exact: true }).waitFor();
      assert.equal(await page.locator('#left .excess').count(), 4, 'back at the broken one, it is broken');
      for (let n = 0; n < 7; n++) await page.keyboard.press('ArrowRight');
      await page.waitForSelector('#main[data-scene="again"] #go[aria-disabled="false"]');
      assert.equal(await page.textContent('#left .count strong'), '10');
      await page.keyboard.press('ArrowRight');
      assert.equal(await page.locator('#doors a:visible').count(), 3);
      await page.locator('#doors a').first().click(); // and the first one races at once
      await page.waitForSelector('#table tr');
      await page.leave();
    });

    it('goes forwards and backwards by the arrow keys, and S shows the lines', async () => {
      const page = await visit();
      await page.goto('/lab/why');
      await raced(page);
      for (let n = 0; n < 3; n++) await page.keyboard.press('ArrowRight');
      await page.waitForSelector('.glows');
      await page.keyboard.press('ArrowLeft');
      assert.equal(await page.inputValue('#scrub'), '1');
      await page.keyboard.press('s');
      await page.locator('#lines .marked.flaw .line.marked').first().waitFor();
      assert.equal(await page.locator('#lines .marked.cure').count(), 1);
      await page.keyboard.press('Escape');
      await page.leave();
    });

    it('plays a recorded run where there is no server, and says so', async () => {
      const page = await visit({ expected: ['status of'] }, { refuse: () => ({ status: 503, code: 'unavailable' }) });
      await page.goto('/lab/why');
      await raced(page);
      assert.match(await page.textContent('#recorded'), /A recorded run of .*20\d\d/);
      assert.ok(Number(await page.textContent('#left .count strong')) > 10);
      assert.equal(await page.textContent('#right .count strong'), '10');
      await page.keyboard.press('s');
      await page.waitForSelector('#lines[open]');
      await page.leave();
    });

    it('plays the recorded run, from its beginning, where the server goes in the middle of the race, and has its lines then too', async () => {
      const page = await visit({ expected: ['ERR_'] }, { unfinished: true });
      await page.addInitScript(() => {
        AbortSignal.timeout = () => { const late = new AbortController(); globalThis.tooLate = () => late.abort(); return late.signal; };
      });
      await page.goto('/lab/why', { waitUntil: 'networkidle' });
      await page.click('#go');
      await page.waitForSelector('#left .excess');
      await page.context().setOffline(true);
      await page.unrouteAll({ behavior: 'ignoreErrors' });
      await page.evaluate(() => globalThis.tooLate()); // instead of its half a minute
      await page.waitForSelector('#main[data-scene="raced"] #go[aria-disabled="false"]', { timeout: 60_000 });
      assert.match(await page.textContent('#recorded'), /A recorded run of November \d+, 20\d\d/);
      assert.ok(Number(await page.textContent('#left .count strong')) > 14, 'what was recorded');
      assert.equal(await page.textContent('#right .count strong'), '10');
      await page.keyboard.press('s');
      await page.locator('#lines .marked.flaw').first().waitFor();
      await page.keyboard.press('Escape');
      await page.leave();
    });

    it('is back where it was, with a button that works, if not even the recorded run is there', async () => {
      const page = await visit({ expected: ['ERR_FAILED', 'status of'] }, { refuse: () => ({ status: 503, code: 'unavailable' }) });
      await page.route('**/lab/recorded.js', (route) => route.abort());
      await page.route('**/lab/marked.js', (route) => route.abort());
      await page.goto('/lab/why');
      await page.waitForSelector('#crowd i');
      await page.click('#go');
      await page.waitForSelector('#toast.bad');
      await page.waitForSelector('#main[data-scene="start"] #go[aria-disabled="false"]');
      assert.equal(await page.textContent('#go'), 'Open the sale');
      await page.keyboard.press('s');
      await page.locator('#lines').getByText('The source is on the lab’s page.').waitFor();
      await page.keyboard.press('Escape');
      await page.unroute('**/lab/recorded.js');
      await page.click('#go');
      await page.waitForSelector('#main[data-scene="raced"] #go[aria-disabled="false"]', { timeout: 60_000 });
      await page.leave();
    });

    it('is readable from the last row, fits without scrolling, and moves nothing for who wants less motion', async () => {
      const page = await visit({ width: 1920, height: 1080, reducedMotion: 'reduce' });
      await page.goto('/lab/why');
      await raced(page);
      const small = await page.evaluate(() => [...document.querySelectorAll('main *, .top *')].filter((element) => element.checkVisibility() && !element.closest('.unseen') && [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
        .filter((element) => parseFloat(getComputedStyle(element).fontSize) < 24).map((element) => element.outerHTML));
      assert.deepEqual(small, []);
      const [go, count] = await page.evaluate(() => [document.querySelector('#go').getBoundingClientRect().bottom, document.querySelector('#left .count strong').getBoundingClientRect().height]);
      assert.ok(go <= 1080, `the button ends at ${go}`);
      assert.ok(count >= 1080 / 5 * 0.95, `the counter is ${count} high`);
      assert.equal(await page.evaluate(() => document.getAnimations().length), 0);
      await page.leave();
    });

    it('really oversells on the real server', async () => {
      const page = await stage.visit();
      await page.goto('/lab/why');
      await raced(page);
      assert.ok(await page.isHidden('#recorded'), 'a real race');
      assert.ok(Number(await page.textContent('#left .count strong')) > 10);
      assert.equal(await page.textContent('#right .count strong'), '10');
      await page.leave();
    });
  });

  describe('the lock theatre', () => {
    it('is stepped through by the keyboard alone, and says every step', async () => {
      const page = await visit();
      await page.goto('/lab/lessons/b03');
      await staged(page);
      const say = () => page.textContent('#say');
      const at = () => page.textContent('#where');
      assert.equal(await at(), 'Step 1 of 9');
      await page.keyboard.press('ArrowRight');
      await page.keyboard.press('ArrowRight');
      await page.keyboard.press('ArrowRight');
      assert.equal(await at(), 'Step 4 of 9');
      assert.match(await say(), /Step 4 of 9\. Client B to Redis\. SET lock:phone locked NX PX 200\. Reply: OK\. B takes the lock\..* Two hold the lock: Client A and Client B\./);
      assert.ok(await page.locator('#holders.overlap').isVisible());
      assert.match(await page.textContent('.code .line.runs'), /"SET", name/);
      assert.equal(await page.textContent('#file'), 'crates/locks/src/set_px_no_owner.rs:4');
      assert.match(await page.textContent('#keys'), /lock:phone.*locked.*Client B.*200 ms/);
      assert.equal(new URL(page.url()).hash, '#4');
      await page.keyboard.press('PageDown');
      assert.equal(await at(), 'Step 7 of 9');
      await page.keyboard.press('ArrowLeft');
      await page.locator('#verdict').getByText('Broken. B’s lock was deleted by A.').waitFor();
      await page.keyboard.press('End');
      await page.locator('#verdict').getByText('It holds.').waitFor();
      await page.keyboard.press('Home');
      assert.equal(await at(), 'Step 1 of 9');
      await page.leave();
    });

    it('is a diagram that grows: actors in columns and colours, the violation in words, the lease as a bar that shrinks', async () => {
      const page = await visit();
      await page.goto('/lab/lessons/b03');
      await staged(page);
      const rows = page.locator('.diagram .row');
      assert.equal(await rows.count(), 9);
      assert.equal(await page.locator('.diagram .row:not(.later)').count(), 1, 'what is still to come is not there yet');
      const colours = await page.locator('.cast .actor i').evaluateAll((signs) => signs.map((sign) => getComputedStyle(sign).backgroundColor));
      assert.equal(new Set(colours.slice(0, 2)).size, 2, 'two clients, two colours');
      for (let n = 0; n < 3; n++) await page.keyboard.press('ArrowRight');
      assert.equal(await page.locator('.diagram .row:not(.later)').count(), 4);
      assert.match(await rows.nth(3).locator('.violation').textContent(), /Two hold the lock: Client A and Client B/);
      assert.match(await rows.nth(3).locator('.meaning').textContent(), /free: Client B has it/);
      assert.equal(await page.locator('.diagram .violation').count(), 1, 'at the moment when it happens');
      assert.equal(await rows.nth(6).locator('.meaning').textContent(), '(reply lost: OK)', 'nobody was told that the lock is free');
      assert.equal(await page.textContent('#lease-words'), 'Client B’s lease: 200 ms left');
      await page.keyboard.press('ArrowLeft');
      assert.ok(await page.isVisible('#staged'), 'what was arranged says so');
      assert.ok(await page.isHidden('#lease'), 'nobody has it');
      const [stageBottom, controls] = await page.evaluate(() => [document.querySelector('.row.now').getBoundingClientRect().bottom, document.querySelector('.controls').getBoundingClientRect()].map((one) => one.bottom ?? one));
      assert.ok(stageBottom < controls && controls <= 900, 'the step and the controls are both in sight');
      await page.leave();
    });

    it('leads from the moment of the violation to the marked line, and says how often it was repeated', async () => {
      const page = await visit({}, { play: { repeats: 2 } });
      await page.goto('/lab/lessons/b03#4');
      await staged(page);
      await page.getByText('played again, 2 times').waitFor();
      await page.getByRole('button', { name: 'Which line?' }).click();
      await page.locator('#marks .marked.flaw .line.marked', { hasText: 'SELECT stock' }).waitFor();
      await page.keyboard.press('End');
      await page.locator('#marks .marked.cure').waitFor(); // the act of the cure shows the cure
      assert.match(await page.locator('#prices tr').first().textContent(), /breaks.*3 to Redis/);
      await page.leave();
    });

    it('where a server is missing, it says what installs it and offers the recorded play', async () => {
      const page = await visit({}, { lesson: { available: { ok: false, why: 'no ZooKeeper runs here; apt install zookeeper', recorded: true } }, play: { recorded: true } });
      await page.goto('/lab/lessons/b03');
      await page.getByText('apt install zookeeper').waitFor();
      await page.getByRole('button', { name: 'Play the recording' }).click();
      await staged(page);
      assert.ok(await page.getByText('This is a recording').isVisible());
      await page.leave();
    });

    it('is readable from the last row and on a phone, named for axe, and printed whole', async () => {
      const page = await visit({ width: 1920, height: 1080, reducedMotion: 'reduce' });
      await page.goto('/lab/lessons/b03#4');
      await staged(page);
      const small = await page.evaluate(() => [...document.querySelectorAll('#theatre *')].filter((element) => element.checkVisibility() && !element.closest('.unseen') && [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
        .filter((element) => parseFloat(getComputedStyle(element).fontSize) < 24).map((element) => element.outerHTML));
      assert.deepEqual(small, []);
      await page.emulateMedia({ media: 'print' });
      // Paper has another width, at which the stage is laid anew.
      const styled = (what, property) => page.locator(what).first().evaluate((element, name) => getComputedStyle(element)[name], property);
      await eventually(async () => await styled('.diagram .row.later', 'visibility') === 'visible', 'all steps are printed');
      await eventually(async () => await styled('.lease-left', 'printColorAdjust') === 'exact', 'the bar is printed');
      await page.emulateMedia({ media: 'screen' });
      await page.setViewportSize({ width: 390, height: 780 });
      await page.evaluate(axe);
      const { violations } = await page.evaluate(() => globalThis.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'best-practice'], resultTypes: ['violations'] }));
      assert.deepEqual(violations.map(({ id, nodes }) => `${id}: ${nodes[0].html}`), []);
      await page.leave();
    });

    it('plays by itself until the end, at the speed that was chosen, and pauses', async () => {
      const page = await visit();
      await page.clock.install();
      await page.goto('/lab/lessons/b03');
      await staged(page);
      await page.selectOption('#speed', '4');
      await page.locator('body').press(' ');
      await page.getByRole('button', { name: 'Pause' }).waitFor();
      for (let step = 2; step <= 9; step++) {
        await page.clock.runFor(3000);
        await eventually(async () => Number((await page.textContent('#where')).match(/\d+/)[0]) >= step, `step ${step}`);
      }
      await page.getByRole('button', { name: 'Play', exact: true }).waitFor();
      await page.leave();
    });

    it('is also a table, whose buttons go to their steps', async () => {
      const page = await visit();
      await page.goto('/lab/lessons/b03');
      await staged(page);
      await page.getByText('All steps as a table').click();
      assert.equal(await page.locator('#rows tr').count(), 9);
      assert.match(await page.locator('#rows tr').nth(3).textContent(), /Client A and Client B two at once/);
      await page.getByRole('button', { name: 'Go to step 5' }).click();
      assert.equal(await page.textContent('#where'), 'Step 5 of 9');
      await page.leave();
    });

    it('plays again with one thing changed, and a link keeps both', async () => {
      const page = await visit();
      await page.goto('/lab/lessons/b03');
      await staged(page);
      await page.getByLabel('Lease of the lock, ms').fill('500');
      await page.getByLabel('Unique token').check();
      await page.getByRole('button', { name: 'Play again' }).click();
      await eventually(async () => /7f3a-a/.test(await page.textContent('#keys')), 'the new play');
      assert.deepEqual(page.asked.findLast(({ path }) => path.endsWith('/play')).body, { options: { lease_ms: 500, token: true } });
      await page.reload();
      await staged(page);
      assert.equal(await page.inputValue('#o-lease_ms'), '500');
      await page.leave();
    });

    it('the server’s refusal to play is said, with a way to try again', async () => {
      let times = 0;
      const page = await visit({ expected: ['status of 429'] }, { refuse: (_, path) => (path.endsWith('/play') && times++ === 0 ? { status: 429, code: 'rate_limited', headers: { 'retry-after': '2' } } : null) });
      await page.goto('/lab/lessons/b03');
      await page.getByText('Try again in 2 seconds').waitFor();
      await page.getByRole('button', { name: 'Try again' }).click();
      await staged(page);
      await page.goto('/lab/lessons/nonsense');
      await page.getByText('There is no such lesson').waitFor();
      await page.leave();
    });

    it('moves nothing for who wants less motion', async () => {
      const page = await visit({ reducedMotion: 'reduce' });
      await page.goto('/lab/lessons/b03#4');
      await staged(page);
      await page.keyboard.press('ArrowRight');
      assert.equal(await page.evaluate(() => document.getAnimations().length), 0);
      await page.leave();
    });
  });

  it('the comparison of locks is one screen of signs, and each row opens to a reason and a test for each', async () => {
    const page = await visit({ width: 1280, height: 800 });
    await page.goto('/lab/locks');
    await loaded(page);
    assert.equal(await page.locator('#rows .answer').count(), 12);
    for (const cell of await page.locator('#rows .answer').allTextContents()) assert.match(cell, /^(✓yes|✕no|~partly)$/);
    assert.match(await page.locator('#rows .lock').first().textContent(), /84 µs, n = 500/, 'a cost says of how many');
    assert.equal(await page.locator('#rows .reason:visible').count(), 0);
    const open = page.getByRole('button', { name: 'Token lock' });
    await open.focus();
    await page.keyboard.press('Enter');
    assert.equal(await open.getAttribute('aria-expanded'), 'true');
    const reasons = await page.locator('#rows .reason').allTextContents();
    assert.equal(reasons.length, 4);
    for (const reason of reasons) assert.match(reason, /(yes|no|partly).+Test: tests\//);
    await page.getByText('Use it when').waitFor();
    await page.getByText('A lock is a belief').waitFor();
    await page.leave();
  });

  for (const [locale, lang] of [['en-US', 'en'], ['zh-CN', 'zh-Hans']]) {
    it(`the lab is accessible in both themes, fits every screen and says nothing in the console: ${lang}`, async () => {
      const page = await visit({ locale, reducedMotion: 'reduce' });
      for (const [name, path, ready] of EVERY) {
        await page.setViewportSize({ width: 1280, height: 900 });
        await page.goto('about:blank');
        await page.goto(path);
        await ready(page);
        assert.equal(await page.getAttribute('html', 'lang'), lang, name);
        assert.doesNotMatch(await page.evaluate(() => { // what is source code may look like a key
          const copy = document.body.cloneNode(true);
          copy.querySelectorAll('code').forEach((code) => code.remove());
          return copy.textContent;
        }), /NaN|undefined|\bnull\b|Invalid|\[object|\{\w+\}|\b(?:lab|lesson|locks|ids)\.[a-z_]+\b/, `${name}: a value or a key shows through`);
        await page.evaluate(axe);
        for (const [theme, options] of [
          ['light', { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] }],
          ['dark', { runOnly: { type: 'rule', values: ['color-contrast'] } }],
        ]) {
          await page.emulateMedia({ colorScheme: theme });
          const { violations } = await page.evaluate((how) => globalThis.axe.run(document, how), { ...options, resultTypes: ['violations'] });
          assert.deepEqual(violations.map(({ id, nodes }) => `${name} ${theme}: ${id}: ${nodes.map(({ html, failureSummary }) => `${html}\n${failureSummary}`).join('\n')}`), []);
          await page.screenshot({ path: join(stage.shots, `${name}-${lang}-${theme}.png`), fullPage: theme === 'light' });
        }
        await page.emulateMedia({ colorScheme: 'light' });
        for (const width of [360, 768, 1280, 1920, 2560]) {
          await page.setViewportSize({ width, height: width < 500 ? 780 : 1200 });
          const wide = await page.evaluate(() => document.documentElement.scrollWidth);
          assert.ok(wide <= width, `${name} at ${width}: ${wide}`);
        }
      }
      await page.leave();
    });
  }

  it('a first visit to the lab costs less than 60 KB without what the server tells, and less than 110 KB with it', async () => {
    for (const path of ['/lab', '/lab/lessons/b03', '/lab/why']) {
      const page = await visit();
      const wire = await page.context().newCDPSession(page);
      let bytes = 0;
      const stubbed = new Set();
      await wire.send('Network.enable');
      wire.on('Network.requestWillBeSent', ({ requestId, request }) => { if (request.url.includes('/api/')) stubbed.add(requestId); });
      wire.on('Network.loadingFinished', ({ requestId, encodedDataLength }) => { if (!stubbed.has(requestId)) bytes += encodedDataLength; });
      await page.goto(path, { waitUntil: 'load' });
      await page.waitForSelector('#page:not([hidden]), #crowd i');
      assert.ok(bytes > 5_000 && bytes < HEAVIEST, `${path}: ${bytes} bytes`);
      await page.leave();
    }
    const page = await stage.visit();
    const wire = await page.context().newCDPSession(page);
    let all = 0;
    await wire.send('Network.enable');
    wire.on('Network.loadingFinished', ({ encodedDataLength }) => { all += encodedDataLength; });
    await page.goto('/lab', { waitUntil: 'load' });
    await page.waitForSelector('.lesson-card');
    assert.ok(all > 50_000 && all < 110_000, `${all} bytes: the texts and sources of all strategies travel compressed`);
    await page.leave();
  });
}
