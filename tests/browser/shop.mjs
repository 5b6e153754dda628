// What a shopper meets beside the buy button: other tabs, lost connections, receipts, long words,
// small screens.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { eventually, inMs } from './support.mjs';

const state = (page, name) => page.waitForSelector(`#panel[data-state="${name}"]`);
const says = (page, text) => page.waitForFunction((wanted) => document.querySelector('#say').textContent.includes(wanted), text);
const LOST = ['net::ERR_', 'status of 503'];

export function shop(stage) {
  const open = async (sale, options) => {
    const page = await stage.visit(options);
    await page.goto(`/sales/${sale.id}`);
    await page.waitForSelector('#page:not([aria-busy])');
    await page.waitForSelector('#link.live');
    return page;
  };

  describe('a shopper', { concurrency: 2 }, () => {
    it('has bought in every tab at once', async () => {
      const sale = await stage.server.sale({ title: 'In two tabs' });
      const page = await open(sale);
      const [tab, list] = [await page.context().newPage(), await page.context().newPage()];
      await tab.goto(`/sales/${sale.id}`);
      await state(tab, 'ready');
      await list.goto('/orders');
      await list.waitForSelector('#empty:not([hidden])');
      await page.click('#buy[data-action="buy"]');
      await state(tab, 'pending_payment');
      await list.locator('#open .order', { hasText: 'In two tabs' }).waitFor();
      await tab.click('#buy[data-action="pay"]');
      for (const one of [page, tab]) await state(one, 'paid');
      await page.leave();
    });

    it('has one session, however many tabs a first visit opens', async () => {
      const sale = await stage.server.sale();
      const page = await stage.visit();
      const opened = [];
      await page.context().route('**/api/v1/session', async (route) => {
        if (route.request().method() === 'POST') opened.push(route);
        else await route.continue();
      });
      const tabs = [page, await page.context().newPage(), await page.context().newPage()];
      for (const tab of tabs) await tab.goto(`/sales/${sale.id}`);
      for (const tab of tabs) await state(tab, 'ready');
      await eventually(() => opened.length > 0, 'a session');
      await page.click('#buy[data-action="buy"]'); // everybody has asked for a session by now
      await state(page, 'buying');
      assert.equal(opened.length, 1);
      await opened[0].continue();
      for (const tab of tabs) await state(tab, 'pending_payment');
      assert.equal(opened.length, 1);
      await page.leave();
    });

    it('hears at once that the connection has gone, and what came of a click meanwhile, without another one', async () => {
      const sale = await stage.server.sale({ per_user_limit: 3 });
      const page = await open(sale, { expected: LOST });
      const keys = [];
      page.on('request', (request) => { if (request.method() === 'POST' && request.url().endsWith('/orders')) keys.push(request.headers()['idempotency-key']); });
      await page.context().setOffline(true);
      await page.waitForSelector('#link.offline');
      assert.equal(await page.textContent('#link'), 'You are offline');
      await page.click('#buy[data-action="buy"]');
      await state(page, 'unavailable');
      assert.match(await page.textContent('#say'), /we do not know yet.*asks again by itself/);
      await page.context().setOffline(false);
      await page.waitForSelector('#panel[data-state="pending_payment"]', { timeout: 60_000 });
      assert.equal(new Set(keys).size, 1, 'one key');
      assert.equal((await stage.server.admin('GET', `/${sale.id}/orders`)).orders.length, 1);
      await page.leave();
    });

    it('is told that nobody pays twice, and then whether the payment went through', async () => {
      const sale = await stage.server.sale();
      const page = await open(sale, { expected: LOST });
      await page.click('#buy[data-action="buy"]');
      await page.waitForSelector('#buy[data-action="pay"]');
      let known = false;
      await page.route('**/api/v1/orders/*/pay', (route) => route.abort());
      await page.route(/\/api\/v1\/orders\/\d+(\/events)?$/, (route) => (known ? route.continue() : route.abort()));
      await page.click('#buy');
      await page.waitForFunction(() => /not be charged twice/.test(document.querySelector('#say').textContent), null, { timeout: 60_000 });
      known = true;
      await page.evaluate(() => { // as by the back button: the stream is opened anew
        dispatchEvent(new PageTransitionEvent('pagehide'));
        dispatchEvent(new PageTransitionEvent('pageshow'));
      });
      await page.waitForFunction(() => /not been paid so far/.test(document.querySelector('#say').textContent), null, { timeout: 60_000 });
      await page.unroute('**/api/v1/orders/*/pay');
      await page.click('#buy[data-action="pay"]');
      await state(page, 'paid');
      await page.leave();
    });

    it('keeps a receipt, from the sale and from the list, and can print it', async () => {
      const sale = await stage.server.sale({ title: 'With a receipt', price_cents: 1234 });
      const page = await open(sale);
      await page.click('#buy[data-action="buy"]');
      await page.click('#buy[data-action="pay"]');
      await state(page, 'paid');
      const read = async () => {
        const sheet = page.getByRole('dialog', { name: 'Receipt' });
        for (const text of ['With a receipt', '$12.34', 'Paid', 'No money moves']) await sheet.getByText(text).first().waitFor();
        return sheet;
      };
      await page.getByRole('button', { name: 'Receipt' }).click();
      let sheet = await read();
      const [{ order_id: id }] = (await stage.server.admin('GET', `/${sale.id}/orders`)).orders;
      await sheet.getByText(id).waitFor();
      await page.emulateMedia({ media: 'print' });
      assert.deepEqual(await page.evaluate(() => [...document.body.children].filter((one) => one.checkVisibility()).map(({ className }) => className)), ['receipt'], 'the sheet alone is printed');
      await page.emulateMedia({ media: 'screen' });
      await sheet.getByRole('button', { name: 'Close' }).click();
      await page.locator('.receipt').waitFor({ state: 'detached' });
      await page.goto('/orders');
      await page.getByRole('button', { name: 'Receipt' }).click();
      sheet = await read();
      await page.leave();
    });

    it('sees a paused sale run on, and one that is paused before its opening wait for it', async () => {
      for (const [more, label] of [[{}, 'Sale ends in'], [{ opens_at: inMs(600_000) }, 'Opens in']]) {
        const sale = await stage.server.sale(more);
        await stage.server.admin('POST', `/${sale.id}/pause`);
        const page = await open(sale);
        await state(page, 'paused');
        assert.equal(await page.textContent('#clock-label'), label);
        assert.notEqual(await page.textContent('#clock'), '00:00');
        await page.leave();
      }
    });

    it('reads words of any length on a phone, and the buy button is there at once, wherever one has scrolled to', async () => {
      const sale = await stage.server.sale({ title: 'W'.repeat(200), description: 'x'.repeat(2000) });
      const page = await open(sale, { width: 390, height: 780 });
      const button = () => page.evaluate(() => {
        const { top, bottom } = document.querySelector('#buy').getBoundingClientRect();
        const hit = document.elementFromPoint(innerWidth / 2, (top + bottom) / 2);
        return top >= 0 && bottom <= innerHeight && hit.id === 'buy';
      });
      for (const path of ['/', '/orders', `/sales/${sale.id}/live`, `/sales/${sale.id}`]) {
        await page.goto(path);
        await page.waitForSelector('.card h3, #empty:not([hidden]), #page:not([aria-busy])');
        assert.ok(await page.evaluate(() => document.documentElement.scrollWidth) <= 390, path);
      }
      await state(page, 'ready');
      assert.ok(await button(), 'on arrival');
      await page.evaluate(() => scrollTo(0, document.documentElement.scrollHeight));
      assert.ok(await button(), 'at the end');
      const covered = await page.evaluate(() => document.querySelector('footer').getBoundingClientRect().bottom > document.querySelector('#buy').getBoundingClientRect().top + 1);
      assert.ok(!covered, 'the footer is not behind it');
      await page.leave();
    });

    it('finds the sale that ends next on top of the first page', async () => {
      const mine = await stage.server.sale({ title: 'Ends first of all', closes_at: inMs(240_000) });
      await stage.server.sale({ title: 'Ends later', closes_at: inMs(400_000) });
      const page = await stage.visit();
      await page.goto('/');
      await page.waitForFunction(() => document.querySelector('#next-title').textContent === 'Ends first of all');
      assert.equal(await page.textContent('#next-label'), 'Open now, ends in');
      await page.click('#next-link');
      await page.waitForURL(`**/sales/${mine.id}`);
      await stage.server.admin('POST', `/${mine.id}/close`);
      await page.leave();
    });

    it('sees units as squares: sold, still to be had, one’s own', async () => {
      const sale = await stage.server.sale({ stock: 8 });
      for (let n = 0; n < 3; n++) await stage.server.buy(sale);
      const page = await open(sale);
      const bar = () => page.$eval('#bar', (one) => {
        const { width, height } = one.getBoundingClientRect(), n = Number(one.style.getPropertyValue('--n'));
        return { n, squares: Math.abs(width / 20 * 0.86 - height) < 1, mine: one.classList.contains('mine') && Number(one.style.getPropertyValue('--at')) };
      });
      assert.deepEqual(await bar(), { n: 8, squares: true, mine: false });
      await page.click('#buy[data-action="buy"]');
      await state(page, 'pending_payment');
      await page.waitForFunction(() => document.querySelector('#stock').textContent === '4 of 8 left');
      assert.deepEqual(await bar(), { n: 8, squares: true, mine: 3 });
      await page.leave();
    });

    it('sees the queue as squares with the own one last, and hears no error on a first visit', async () => {
      const sale = await stage.server.sale({ stock: 1, waiting_room: { overbooking_percent: 0 } });
      const path = `/api/v1/sales/${sale.id}/waiting-room`;
      for (let n = 0; n < 4; n++) await stage.server.call('POST', path, undefined, await stage.server.buyer());
      const page = await open(sale); // no failure is expected, not even 404
      await page.click('#buy[data-action="join"]');
      await page.waitForFunction(() => /^Your place: /.test(document.querySelector('#buy').textContent));
      const { place, n, at, mine } = await page.evaluate(() => {
        const queue = document.querySelector('#queue');
        return { place: Number(document.querySelector('#buy').textContent.replace(/\D/g, '')), n: Number(queue.style.getPropertyValue('--n')), at: Number(queue.style.getPropertyValue('--at')), mine: queue.checkVisibility() && queue.classList.contains('mine') };
      });
      assert.deepEqual([n, at, mine], [place, place - 1, true]);
      await page.leave();
    });

    it('is told that a puzzle is being solved, and how far it is', async () => {
      const sale = await stage.server.sale({ challenge_bits: 17 });
      const page = await stage.visit();
      await page.addInitScript(() => {
        globalThis.labels = [];
        addEventListener('DOMContentLoaded', () => new MutationObserver(() => globalThis.labels.push(document.querySelector('#buy').textContent)).observe(document.querySelector('#buy'), { childList: true, characterData: true, subtree: true }));
      });
      // The work begins ahead of the click; here it is held until then.
      let free;
      const held = new Promise((resolve) => { free = resolve; });
      await page.route('**/challenge', async (route) => { await held; await route.continue(); });
      await page.goto(`/sales/${sale.id}`);
      await page.click('#buy[data-action="buy"]');
      await says(page, 'solves a small puzzle');
      free();
      await page.waitForSelector('#panel[data-state="pending_payment"]', { timeout: 60_000 });
      const shares = (await page.evaluate(() => globalThis.labels)).map((label) => /^Solving a puzzle: (\d+)%$/.exec(label)?.[1]).filter(Boolean).map(Number);
      assert.equal(shares[0], 0);
      assert.deepEqual(shares, [...shares].sort((a, b) => a - b), 'it only grows');
      await page.leave();
    });
  });
}

/** For the end of a run, when the server may go away: a purchase in an outage. */
export async function buysInAnOutage(stage) {
  const sale = await stage.server.sale({ per_user_limit: 2 });
  const page = await stage.visit({ expected: LOST });
  await page.goto(`/sales/${sale.id}`);
  await page.waitForSelector('#buy[data-action="buy"]');
  await page.waitForSelector('#link.live');
  await stage.server.down();
  await page.waitForSelector('#link.reconnecting');
  await page.click('#buy');
  await page.waitForSelector('#panel[data-state="unavailable"]', { timeout: 60_000 });
  await stage.server.up();
  await page.waitForSelector('#panel[data-state="pending_payment"]', { timeout: 120_000 });
  await eventually(async () => (await stage.server.admin('GET', `/${sale.id}/orders`)).orders.length === 1, 'one order');
  await page.leave();
}
