// The live wall: that it shows what the server does, with and without the charting library.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { join } from 'node:path';
import { eventually } from './support.mjs';

const integer = (text) => Number(text.replace(/\D/g, ''));

export function wall(stage) {
  describe('the live wall', () => {
    it('follows a storm: remaining, verdicts, latency, charts', async () => {
      const sale = await stage.server.sale({ title: 'Stormy', stock: 40 });
      const page = await stage.visit({ width: 1920, height: 1080 });
      await page.goto(`/sales/${sale.id}/live`);
      await page.waitForSelector('#link.live');
      await page.waitForSelector('#latest tr:nth-child(2)', { state: 'attached' }); // two looks at the server
      const buyers = await Promise.all(Array.from({ length: 40 }, () => stage.server.buyer()));
      await Promise.all(buyers.map((token) => stage.server.buy(sale, token)));
      await page.waitForFunction(() => document.querySelector('#remaining').textContent === '0');
      assert.equal(await page.textContent('#sold'), '40');
      await page.waitForFunction(() => Number(document.querySelector('#verdicts .accepted').children[2].textContent) === 40);
      await page.waitForFunction(() => / ms$/.test(document.querySelector('#latency').textContent));
      assert.ok(integer(await page.textContent('#peak')) > 0);
      if (await page.evaluate(() => Boolean(globalThis.uPlot))) {
        assert.equal(await page.locator('.plot canvas').count(), 4);
        const drawn = await page.$$eval('.plot canvas', (all) => all.map((canvas) => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some((value) => value > 0)));
        assert.deepEqual(drawn, [true, true, true, true]);
        await page.$$eval('.plot canvas', (all) => all.forEach((canvas) => { canvas.dataset.old = ''; }));
        await page.emulateMedia({ colorScheme: 'dark' }); // is drawn anew in the other colours
        await page.waitForFunction(() => !document.querySelector('.plot canvas[data-old]'));
        assert.equal(await page.locator('.plot canvas').count(), 4);
        await page.emulateMedia({ colorScheme: 'light' });
      }
      assert.equal(await page.textContent('#verdict'), '40 of 40 sold');
      const low = await page.evaluate(() => Math.max(...[...document.querySelectorAll('#verdict, #verdicts tr')].map((one) => one.getBoundingClientRect().bottom)));
      assert.ok(low <= 1080, `the verdicts end at ${low}, above the fold`);
      await page.screenshot({ path: join(stage.shots, 'wall.png') });
      await page.leave();
    });

    it('tells an operator what the rows say, and is nothing but figures when it fills the screen', async () => {
      const sale = await stage.server.sale({ stock: 3 });
      for (let n = 0; n < 3; n++) await stage.server.buy(sale);
      await eventually(async () => (await stage.server.admin('GET', `/${sale.id}/audit`)).live === 3, 'three rows'); // the wall looks at them seldom
      const page = await stage.visit({ width: 1920, height: 1080 });
      await page.goto('/admin');
      await page.fill('#token', stage.server.adminToken);
      await page.keyboard.press('Enter');
      await page.waitForSelector('#desk:not([hidden])');
      await page.goto(`/sales/${sale.id}/live`);
      await page.getByText('3 of 3 sold, none oversold').waitFor();
      await page.route('**/audit', async (route) => {
        const response = await route.fetch();
        await route.fulfill({ response, json: { ...await response.json(), live: 5, oversold: 2 } });
      });
      await page.reload();
      await page.getByText('5 sold of 3: 2 oversold').waitFor();
      await page.evaluate(() => { navigator.canShare = () => true; navigator.share = async ({ files: [file] }) => { document.title = `shared ${file.name}, ${file.type}`; }; });
      await page.click('#picture');
      await page.waitForFunction(() => document.title === 'shared flash-sale-5-of-3.png, image/png');
      await page.click('#full');
      await page.waitForFunction(() => document.fullscreenElement);
      assert.deepEqual(await page.evaluate(() => ['.top', 'footer', '#table', '#title', '#verdict', '#charts'].map((one) => document.querySelector(one).checkVisibility())), [false, false, false, true, true, true]);
      await page.leave();
    });

    it('a build without the library shows a table, and unreadable metrics are said', async () => {
      const sale = await stage.server.sale();
      const page = await stage.visit({ expected: ['status of 503'] });
      await page.route('**/vendor/*.js', (route) => route.fulfill({ body: '', contentType: 'text/javascript' }));
      let away = true;
      await page.route('**/metrics', (route) => (away ? route.fulfill({ status: 503, json: { code: 'unavailable' } }) : route.fallback()));
      await page.goto(`/sales/${sale.id}/live`);
      await page.getByText('This build has no charting library').waitFor();
      await page.getByText('figures cannot be read').waitFor();
      away = false;
      await page.waitForSelector('#no-metrics', { state: 'hidden' });
      await page.locator('#latest tr').first().waitFor();
      await page.leave();
    });

    it('a sale that does not exist', async () => {
      const page = await stage.visit({ expected: ['status of 404'] });
      await page.goto('/sales/999999/live');
      await page.getByText('There is no such sale').waitFor();
      await page.leave();
    });
  });
}
