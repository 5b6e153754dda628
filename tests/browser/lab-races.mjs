// The races of the lab: on one screen, from a link, in both languages, printed, and why one
// oversold.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, it } from 'node:test';
import { escaped, loaded, reads, visitorOf } from './lab-support.mjs';
import { eventually, saved } from './support.mjs';

export function races(stage) {
  const visit = visitorOf(stage);

  describe('the lab', () => {
    it('races two strategies on one screen, and the one that sells too much turns red', async () => {
      const page = await visit();
      await page.goto('/lab?s=naive,conditional-update&buyers=500');
      await loaded(page);
      assert.equal(await page.textContent('#start'), 'Race all 2');
      await page.click('#start');
      const naive = page.locator('.lane', { hasText: 'Naive' }), sound = page.locator('.lane', { hasText: 'Conditional update' });
      await naive.getByText('37 orders have no phone behind them.').waitFor();
      await naive.locator('.lane-state', { hasText: /^Oversold by 37$/ }).waitFor();
      assert.equal(await naive.locator('.predicted').textContent(), 'as predicted', 'what came and what was said are two things');
      await sound.getByText('Sold exactly', { exact: true }).waitFor();
      assert.match(await naive.getAttribute('class'), /\bbad\b/);
      assert.match(await sound.getAttribute('class'), /\bgood\b/);
      const [red, mark, squares] = await naive.locator('.track').evaluate((track) => [track.querySelector('.excess').getBoundingClientRect(), track.querySelector('b').getBoundingClientRect(), track.querySelectorAll('.excess i').length]);
      assert.ok(squares > 3 && red.width > 10 && Math.abs(red.left - mark.left) < 4, 'what is beyond the stock is drawn beyond its mark');
      assert.equal(await sound.locator('.excess i').count(), 0);
      assert.deepEqual(page.asked.filter(({ path }) => path.endsWith('/storm')).map(({ body }) => body), Array(2).fill({ buyers: 500, concurrency: 64, duplicate_share: 0.1 }));
      await page.waitForSelector('#table tr');
      assert.equal(await page.locator('#table tr').count(), 2);
      await eventually(async () => /Naive: 137 sold\. Oversold by 37\. Conditional update: 100 sold\. Sold exactly\./.test(await page.textContent('#say')), 'the result is said');
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
      await page.getByRole('button', { name: 'Run', exact: true }).click(); // which is “Stop” until the race is over
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
      const { arenas, alone } = page.asked.findLast(({ path }) => path.endsWith('/report')).query;
      assert.deepEqual([arenas, alone], ['arena-1,arena-2', ''], 'they were forced: no speeds in the report either');
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
      assert.equal(await page.getByRole('link', { name: 'Watch the recording' }).getAttribute('href'), '/lab/lessons/b11');
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

    it('has a picture of each result, to be shared: red is what did not exist', async () => {
      const page = await visit();
      await page.goto('/lab');
      await loaded(page);
      await page.click('#presets button');
      const take = (lane) => saved(page, () => page.locator(lane).getByRole('button', { name: /^Save picture: / }).click());
      const [broken, sound] = [await take('.lane.bad'), await take('.lane.good')];
      for (const { name, width, height } of [broken, sound]) assert.ok(/^flash-sale-\d+-of-\d+\.png$/.test(name) && width === 1200 && height === 630, `${name}: ${width} by ${height}`);
      assert.notEqual(broken.name, sound.name);
      assert.ok(broken.red > 10_000 && sound.red === 0, `${broken.red} and ${sound.red} red pixels`);
      await page.leave();
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
      await page.getByRole('button', { name: 'Why? Token lock' }).click();
      assert.match(await page.locator('.lane .marked .line.marked').first().textContent(), /SET stock/, 'the line that its demonstration names');
      assert.equal(await page.locator('.lane .curve').count() + await page.locator('.chart', { hasText: 'second' }).count(), 0);
      await page.goto('/lab?s=conditional-update&concurrency=512&o.interleave=off');
      await loaded(page);
      await page.click('#start');
      await page.waitForSelector('#table tr');
      await page.getByText('512 concurrent buyers: these speeds compare').waitFor();
      await page.locator('.chart', { hasText: 'second' }).getByText('1,241').waitFor();
      await Promise.all([page.waitForEvent('download'), page.click('#report')]);
      const { arenas, alone } = page.asked.findLast(({ path }) => path.endsWith('/report')).query;
      assert.equal(alone, arenas, 'the report shows its speeds, too');
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
      await page.getByRole('button', { name: '中文' }).click();
      await page.waitForSelector('html[lang="zh-Hans"]');
      how.unfinished = false; // not before: it must not end in the page that is left
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
      const { strategies } = await page.evaluate(() => fetch('/api/v1/lab/strategies').then((answer) => answer.json()));
      for (const lane of await page.locator('.lane.bad').all()) {
        await lane.locator('.why').click();
        assert.ok(await lane.locator('.marked.flaw .line.marked').first().isVisible());
        const title = await lane.locator('h3').textContent(), { demonstrations, marks } = strategies.find((one) => one.title === title);
        const words = (of) => demonstrations.filter(({ shows }) => (shows === 'oversells') === of).map(({ mark }) => marks[mark].words);
        const shown = await lane.locator('.marked figcaption').allTextContents(), own = words(true), others = words(false).filter((one) => !own.includes(one));
        assert.ok(own.some((one) => shown[0].includes(one)), `${title}: ${shown}`);
        assert.ok(!others.some((one) => shown.join().includes(one)), `${title}: a line of another harm: ${shown}`);
        assert.match(await lane.locator('.collision figcaption').textContent(), /buyer-\d+ and buyer-\d+ of this race/);
      }
      await page.leave();
    });

    it('the preset of what a lock buys runs one counter without it and with it, and says how many each lets through', async () => {
      const page = await stage.visit();
      await page.goto('/lab?run=buys');
      await page.waitForFunction(() => document.querySelectorAll('#table tr').length === 2, null, { timeout: 60_000 });
      const lanes = page.locator('#lanes .lane');
      await lanes.nth(0).getByText('let through to the counter: 25 times').waitFor();
      await lanes.nth(1).getByText('turned away by the lock: ').waitFor();
      assert.deepEqual([await lanes.locator('.demonstrates').count(), await page.locator('.lane.bad, .predicted.against').count()], [2, 0]);
      await page.leave();
    });

    it('an outcome is one and the same in the lane, in the table and at its bar: HINCRBY sells twice', async () => {
      const page = await stage.visit();
      await page.goto('/lab?s=hincrby:double-click');
      await loaded(page);
      await page.click('#start');
      await page.waitForSelector('#table tr', { timeout: 60_000 });
      const said = await page.textContent('.lane.bad .lane-state');
      assert.match(said, /^Sold twice: \d+$/);
      for (const place of ['#table .outcome.bad', '#charts li.bad .num']) assert.equal(await page.textContent(place), said, place);
      await page.leave();
    });

    it('the report has whole labels, bars on one scale, speeds only of what ran alone, no red without a reason, and columns that fit A4', async () => {
      const { server } = stage, arenas = [];
      for (const [strategy, buyers, options] of [['naive', 40, {}], ['naive', 200, {}], ['conditional-update', 40, { interleave: 'off' }]]) {
        const { arena_id: id } = await server.call('POST', '/api/v1/lab/arenas', { strategy, stock: 10, options });
        await server.call('POST', `/api/v1/lab/arenas/${id}/storm`, { buyers, concurrency: 16 });
        await eventually(async () => (await server.call('GET', `/api/v1/lab/arenas/${id}/verdict`)).attempts === buyers, 'the storm', 60_000);
        arenas.push(id);
      }
      const page = await stage.visit();
      for (const lang of ['en', 'zh']) {
        await page.setViewportSize({ width: 1280, height: 900 });
        await page.emulateMedia({ media: 'screen' });
        await page.setContent(await (await fetch(`${server.url}/api/v1/lab/report?arenas=${arenas}&alone=${arenas[2]}&lang=${lang}`)).text());
        const { strategies } = await server.call('GET', `/api/v1/lab/strategies?lang=${lang}`), title = (id) => strategies.find((one) => one.id === id).title;
        const labels = (table) => page.locator(`table[aria-labelledby="${table}"] tbody th`).allTextContents();
        assert.deepEqual([await labels('sold'), await labels('throughput'), await labels('latency')], [['naive', 'naive', 'conditional-update'].map(title), [title('conditional-update')], [title('conditional-update')]]);
        const bars = await page.locator('table[aria-labelledby="sold"] tbody tr').evaluateAll((rows) => rows.map(({ cells: [, , , bar, count] }) => {
          const svg = bar.querySelector('svg'), wide = (part) => (svg.querySelector(part)?.width.baseVal.value ?? 0) * svg.getBoundingClientRect().width;
          const [sold, stock] = count.textContent.split(' / ').map(Number);
          return { unit: Math.round(wide('.track')), drawn: wide('[fill]') / wide('.track'), over: Math.max(0, sold - stock) / stock };
        }));
        assert.ok(bars[0].over > 0 && bars[1].over > 0 && bars.every(({ unit, drawn, over }) => unit === bars[0].unit && Math.abs(drawn - over) < 0.03 + 0.03 * over), JSON.stringify(bars));
        const [red, green] = await page.locator('td.redis').first().evaluate((cell) => getComputedStyle(cell).color.match(/\d+/g).map(Number));
        assert.ok(red - green < 90, 'Redis is nothing wrong');
        const cut = () => page.evaluate(() => [...document.querySelectorAll('th, td, svg text')].filter((one) => {
          if (!one.ownerSVGElement) return one.scrollWidth > one.clientWidth + 1;
          const { x, width } = one.getBBox();
          return x < 0 || x + width > one.ownerSVGElement.viewBox.baseVal.width;
        }).map((one) => one.textContent));
        assert.deepEqual(await cut(), [], lang);
        await page.setViewportSize({ width: 703, height: 1000 }); // what its margins leave of A4
        await page.emulateMedia({ media: 'print' });
        assert.deepEqual(await cut(), [], `${lang}, printed`);
        assert.ok(await page.evaluate(() => [...document.querySelectorAll('table')].every((table) => table.getBoundingClientRect().right <= innerWidth)), `${lang}: every column is on the paper`);
      }
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
}
