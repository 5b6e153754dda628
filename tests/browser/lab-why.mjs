// /lab/why, the page for the projector.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { raced, visitorOf } from './lab-support.mjs';
import { eventually, saved, tooSmall } from './support.mjs';

export function why(stage) {
  const visit = visitorOf(stage);

  describe('the page for the projector', () => {
    it('opens a sale, stops it at two of its buyers, repairs it, and ends at three doors', async () => {
      const page = await visit();
      await page.goto('/lab/why');
      await raced(page);
      assert.equal(await page.textContent('#left .count strong'), '14');
      assert.deepEqual([await page.locator('#left .excess').count(), await page.locator('#right .excess').count()], [4, 0], 'red, outside the frame');
      assert.match(await page.textContent('#say'), /14 sold of 10 on the left, 10 sold of 10 on the right/);
      assert.ok(await page.isHidden('#recorded'));
      const { name, red } = await saved(page, () => page.click('#picture'));
      assert.ok(name === 'flash-sale-14-of-10.png' && red > 0, `${name}: ${red}`);
      await page.getByRole('button', { name: 'Why?' }).click();
      assert.ok(await page.isHidden('#picture'));
      assert.equal(await page.textContent('#h-stopped'), 'Buyer 12 and Buyer 47, 3 ms into this race');
      assert.equal(await page.locator('#code li').count(), 5);
      assert.match(await page.textContent('#code'), /read stock → 7.*write 6/, 'what these two read');
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
      await page.locator('#join').getByText('/sales/').waitFor(); // its code is fetched first
      assert.match(await page.textContent('#join'), /:\/\/.*\/sales\//, 'where phones come to');
      await eventually(() => page.locator('#join img').evaluate((code) => code.naturalWidth > 0), 'the code');
      await page.locator('#doors a').first().click(); // and the first one races at once
      await page.waitForSelector('#table tr');
      const { strategy, nodes } = page.asked.findLast(({ method, path }) => method === 'POST' && path.endsWith('/arenas')).body;
      assert.deepEqual([strategy, nodes], ['process-mutex', 2], 'a second server');
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
      const scrubbed = async (to, key) => {
        await page.locator('#scrub').fill(to);
        await page.locator('#scrub').focus();
        await page.keyboard.press(key);
      };
      await scrubbed('2', 'ArrowRight');
      assert.equal(await page.inputValue('#scrub'), '3', 'a step of the scrubber is one step');
      await scrubbed('4', 'ArrowRight');
      await page.waitForSelector('#main[data-scene="fixed"]');
      await page.keyboard.press('ArrowLeft');
      await scrubbed('0', 'ArrowLeft');
      await page.waitForSelector('#main[data-scene="raced"]');
      await page.keyboard.press('ArrowLeft');
      await page.waitForSelector('#main[data-scene="start"]');
      assert.deepEqual([await page.locator('#shops .sold, #shops .excess').count(), await page.textContent('#left .count strong')], [0, '0'], 'nothing is sold yet');
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
      assert.deepEqual(await tooSmall(page, 'main *, .top *'), []);
      const [go, count] = await page.evaluate(() => [document.querySelector('#go').getBoundingClientRect().bottom, document.querySelector('#left .count strong').getBoundingClientRect().height]);
      assert.ok(go <= 1080, `the button ends at ${go}`);
      assert.ok(count >= 1080 / 5 * 0.95, `the counter is ${count} high`);
      assert.equal(await page.evaluate(() => document.getAnimations().length), 0);
      await page.leave();
    });

    it('fits without scrolling in every scene', async () => {
      const page = await visit({ width: 1920, height: 1080, reducedMotion: 'reduce' });
      await page.goto('/lab/why');
      await page.waitForSelector('#crowd i');
      for (const scene of ['start', 'raced', ...Array(5).fill('stopped'), 'fixed', 'again', 'doors']) {
        await page.waitForSelector(`#main[data-scene="${scene}"] #go[aria-disabled="false"]`, { timeout: 60_000 });
        if (scene === 'doors') await page.locator('#join img').waitFor();
        const end = await page.locator('#go').evaluate((go) => go.getBoundingClientRect().bottom + scrollY);
        assert.ok(end <= 1080, `${scene}: the button ends at ${end}`);
        await page.keyboard.press('ArrowRight');
      }
      await page.leave();
    });

    it('really oversells on the real server', async () => {
      const page = await stage.visit();
      await page.goto('/lab/why');
      await raced(page);
      assert.ok(await page.isHidden('#recorded'), 'a real race');
      assert.ok(Number(await page.textContent('#left .count strong')) > 10);
      assert.equal(await page.textContent('#right .count strong'), '10');
      for (let n = 0; n < 3; n++) await page.keyboard.press('ArrowRight');
      assert.match(await page.textContent('#code'), /read stock → \d+.*write \d+/, 'what two of its buyers read');
      await page.leave();
    });
  });
}
