// The sale page: every state of the buy button, and that one wish buys once.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { eventually, inMs } from './support.mjs';

const state = (page, name) => page.waitForSelector(`#panel[data-state="${name}"]`);
const label = (page) => page.textContent('#buy');
const problem = (status, code, more = {}, headers = {}) => ({
  status, headers: { 'content-type': 'application/problem+json', ...headers },
  body: JSON.stringify({ type: `/problems/${code}`, title: code, status, code, detail: code, ...more }),
});
const REFUSED = ['the server responded with a status of']; // Chromium reports every 4xx and 5xx

export function buying(stage) {
  const open = async (sale, options) => {
    const page = await stage.visit(options);
    await page.goto(`/sales/${sale.id}`);
    await page.waitForSelector('#page:not([aria-busy])');
    return page;
  };

  /** Watches that nothing on the page moves: remembers where button and panel are, complains when they are elsewhere. */
  const steady = async (page) => {
    const place = () => page.evaluate(() => ['#panel', '#buy', '#second', '.about'].map((one) => {
      const { x, y, width, height } = document.querySelector(one).getBoundingClientRect();
      return [one, x, y, width, height].join(' ');
    }));
    const first = await place();
    return async (when) => assert.deepEqual(await place(), first, when);
  };

  // Several at a time: most of it is waiting for a second to come.
  describe('the buy button', { concurrency: 3 }, () => {
    it('goes not yet, 3, 2, 1, buy, going through, got it, paid, without a reload or a jump', async () => {
      const sale = await stage.server.sale({ opens_at: inMs(12_000) });
      const page = await stage.visit();
      // Every label that the button ever has, as it gets it.
      await page.addInitScript(() => addEventListener('DOMContentLoaded', () => {
        globalThis.labels = [];
        const button = document.querySelector('#buy');
        const note = () => { if (globalThis.labels.at(-1) !== button.textContent) globalThis.labels.push(button.textContent); };
        new MutationObserver(note).observe(button, { childList: true, characterData: true, subtree: true });
      }));
      await page.goto(`/sales/${sale.id}`);
      await state(page, 'not_open');
      const still = await steady(page);
      await page.waitForSelector('#buy.count', { timeout: 20_000 });
      await still('while counting');
      await state(page, 'ready');
      await still('at the opening');
      await page.click('#buy');
      await state(page, 'pending_payment');
      await still('with an order');
      assert.match(await page.textContent('#clock'), /^0[45]:\d\d$/);
      await page.click('#buy[data-action="pay"]');
      await state(page, 'paid');
      await still('once paid');
      const labels = await page.evaluate(() => globalThis.labels);
      const wanted = ['Not open yet', '3', '2', '1', 'Buy now', 'Getting yours…', 'Pay now', 'Paying…', 'Paid, it is yours'];
      assert.deepEqual(labels.filter((one) => wanted.includes(one)), wanted);
      await page.leave();
    });

    it('comes alive at the opening second of the server, whatever the visitor’s clock says', async () => {
      const opens = Date.now() + 11_000;
      const sale = await stage.server.sale({ opens_at: new Date(opens).toISOString(), stock: 1 });
      const page = await stage.visit();
      await page.addInitScript(() => { const real = Date.now; Date.now = () => real() + 3_600_000; }); // an hour fast
      await page.goto(`/sales/${sale.id}`);
      await state(page, 'not_open');
      assert.match(await page.textContent('#clock'), /^00:(0[1-9]|1[01])$/);
      await page.waitForSelector('#buy.count', { timeout: 20_000 });
      const asked = [];
      page.on('request', (request) => asked.push(request.method()));
      await page.click('#buy[data-action="buy"]');
      const late = Date.now() - opens;
      await state(page, 'pending_payment');
      assert.ok(late > -100 && late < 3000, `${late} ms after the opening`);
      assert.equal(asked[0], 'POST', 'the opening itself asks the server nothing: a thousand pages would ask at once');
      await page.leave();
    });

    it('says sold out, and comes back when a unit does', async () => {
      const sale = await stage.server.sale({ stock: 1 });
      const holder = await stage.server.buyer();
      const { order_id: held } = await stage.server.buy(sale, holder);
      const page = await open(sale);
      await state(page, 'sold_out');
      assert.equal(await label(page), 'Sold out');
      await eventually(async () => (await stage.server.order(held, holder)).status === 'pending_payment');
      await stage.server.call('POST', `/api/v1/orders/${held}/cancel`, undefined, holder);
      await state(page, 'ready');
      await page.leave();
    });

    it('follows pause, resume and close at once', async () => {
      const sale = await stage.server.sale();
      const page = await open(sale);
      await state(page, 'ready');
      const still = await steady(page);
      for (const [verb, name] of [['pause', 'paused'], ['resume', 'ready'], ['close', 'ended']]) {
        await stage.server.admin('POST', `/${sale.id}/${verb}`);
        await state(page, name);
        await still(verb);
        assert.equal(await page.getAttribute('#buy', 'aria-disabled'), String(name !== 'ready'));
      }
      await page.leave();
    });

    it('moves the stock bar while others buy', async () => {
      const sale = await stage.server.sale({ stock: 10 });
      const page = await open(sale);
      await page.waitForSelector('#link.live');
      assert.equal(await page.textContent('#stock'), '10 of 10 left');
      for (let n = 0; n < 9; n++) await stage.server.buy(sale);
      await page.waitForFunction(() => document.querySelector('#stock').textContent === 'Only 1 of 10 left');
      assert.equal(await page.$eval('#bar i', (fill) => fill.style.transform), 'scaleX(0.1)');
      await page.leave();
    });

    it('too fast: counts down and goes on by itself', async () => {
      const sale = await stage.server.sale();
      const page = await open(sale, { expected: REFUSED });
      await page.route('**/sales/*/orders', (route) => route.fulfill(problem(429, 'rate_limited', { retry_after_ms: 1000 }, { 'retry-after': '1' })), { times: 1 });
      await page.click('#buy[data-action="buy"]');
      await state(page, 'too_fast');
      await state(page, 'ready');
      await page.click('#buy');
      await state(page, 'pending_payment');
      await page.leave();
    });

    it('busy: try again, with the same key', async () => {
      const sale = await stage.server.sale();
      const page = await open(sale, { expected: REFUSED });
      const keys = [];
      page.on('request', (request) => { if (request.method() === 'POST' && request.url().endsWith('/orders')) keys.push(request.headers()['idempotency-key']); });
      await page.route('**/sales/*/orders', (route) => route.fulfill(problem(503, 'unavailable', {}, { 'retry-after': '1' })), { times: 1 });
      await page.click('#buy[data-action="buy"]');
      await state(page, 'unavailable');
      await page.click('#buy[data-action="buy"]:has-text("Try again")');
      await state(page, 'pending_payment');
      assert.equal(keys.length, 2);
      assert.equal(keys[0], keys[1]);
      await page.leave();
    });

    it('already yours: an order of another tab, and of an earlier visit', async () => {
      const sale = await stage.server.sale();
      const page = await open(sale, { expected: REFUSED });
      await state(page, 'ready');
      const other = await page.context().newPage();
      await other.goto(`/sales/${sale.id}`);
      await other.click('#buy[data-action="buy"]');
      await state(other, 'pending_payment');
      await page.click('#buy[data-action="buy"]'); // this page does not know yet
      await state(page, 'pending_payment');
      assert.match(await page.textContent('#say'), /already reserved/);
      await page.reload();
      await state(page, 'pending_payment');
      await page.leave();
    });

    it('cancel gives the unit back, and it can be bought again', async () => {
      const sale = await stage.server.sale({ stock: 1 });
      const page = await open(sale);
      await page.click('#buy[data-action="buy"]');
      await page.click('#second[data-action="cancel"]');
      await page.click('dialog button[value="yes"]');
      await state(page, 'cancelled');
      await page.click('#buy[data-action="buy"]:has-text("Buy again")');
      await state(page, 'pending_payment');
      await page.leave();
    });

    it('not paid in time: says so, and the unit is on sale again', async () => {
      const sale = await stage.server.sale({ stock: 1, payment_timeout_secs: 2 });
      const page = await open(sale);
      await page.click('#buy[data-action="buy"]');
      await state(page, 'pending_payment');
      await page.waitForSelector('#panel[data-state="expired"]', { timeout: 15_000 });
      await page.waitForSelector('#buy[data-action="buy"]');
      await page.leave();
    });
  });

  describe('one wish', () => {
    it('a double click buys once', async () => {
      const sale = await stage.server.sale({ per_user_limit: 2 }); // the limit must not be what saves it
      const page = await open(sale);
      let sent = 0;
      page.on('request', (request) => { sent += request.method() === 'POST' && request.url().endsWith('/orders') ? 1 : 0; });
      await page.waitForSelector('#buy[data-action="buy"]');
      await page.dblclick('#buy');
      await state(page, 'pending_payment');
      const { orders } = await stage.server.admin('GET', `/${sale.id}/orders`);
      assert.deepEqual([sent, orders.length, orders[0].status], [1, 1, 'pending_payment']);
      await page.leave();
    });

    it('a lost answer is asked again with the same key: one order', async () => {
      const sale = await stage.server.sale({ per_user_limit: 5 });
      const page = await open(sale, { expected: ['net::ERR_FAILED'] });
      await page.route('**/sales/*/orders', async (route) => {
        await route.fetch(); // the server sells, and the answer never arrives
        await route.abort();
      }, { times: 1 });
      await page.click('#buy[data-action="buy"]');
      await state(page, 'pending_payment');
      assert.equal((await stage.server.admin('GET', `/${sale.id}/orders`)).orders.length, 1);
      await page.leave();
    });

    it('two people after the last unit: one has it, the other is told', async () => {
      const sale = await stage.server.sale({ stock: 1 });
      const people = await Promise.all([1, 2].map(() => open(sale, { expected: REFUSED })));
      await Promise.all(people.map((page) => page.waitForSelector('#buy[data-action="buy"]')));
      await Promise.all(people.map((page) => page.click('#buy')));
      const ends = await Promise.all(people.map(async (page) => {
        await page.waitForSelector('#panel[data-state="pending_payment"], #panel[data-state="sold_out"]');
        return page.getAttribute('#panel', 'data-state');
      }));
      assert.deepEqual(ends.sort(), ['pending_payment', 'sold_out']);
      await Promise.all(people.map((page) => page.leave()));
    });

    it('can be had with the keyboard alone', async () => {
      const sale = await stage.server.sale({ title: 'By keyboard' });
      const page = await stage.visit();
      await page.goto('/');
      await page.waitForSelector('.card h3');
      const focused = () => page.evaluate(() => {
        const { outlineStyle, outlineWidth } = getComputedStyle(document.activeElement.closest('.card') ?? document.activeElement);
        return { text: document.activeElement.textContent.trim(), id: document.activeElement.id, seen: outlineStyle !== 'none' && parseFloat(outlineWidth) >= 2 };
      });
      const tabTo = async (wanted) => {
        for (let n = 0; n < 40; n++) {
          await page.keyboard.press('Tab');
          const now = await focused();
          assert.ok(now.seen, `focus is not visible on ${JSON.stringify(now)}`);
          if (wanted(now)) return;
        }
        assert.fail('the keyboard does not get there');
      };
      await page.keyboard.press('Tab');
      assert.equal((await focused()).text, 'Skip to content');
      await tabTo(({ text }) => text === sale.title);
      await page.keyboard.press('Enter');
      await state(page, 'ready');
      await tabTo(({ id }) => id === 'buy');
      await page.keyboard.press('Enter');
      await state(page, 'pending_payment');
      assert.equal((await focused()).id, 'buy', 'the focus stays on the button');
      await page.waitForSelector('#buy[data-action="pay"]');
      await page.keyboard.press('Space');
      await state(page, 'paid');
      assert.match(await page.textContent('#say[role="status"]'), /Congratulations/);
      await page.leave();
    });
  });
}
