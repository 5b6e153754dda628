// My orders: the whole life of an order, seen from the list.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { eventually } from './support.mjs';

export function orders(stage) {
  const { visit } = stage;

  /** Buys on the page's behalf, with its own session, and answers the order once it can be paid. */
  async function buy(page, sale) {
    const id = await page.evaluate(async (path) => (await (await fetch(path, { method: 'POST' })).json()).order_id, `/api/v1/sales/${sale.id}/orders`);
    await eventually(() => page.evaluate(async (path) => (await (await fetch(path)).json()).status === 'pending_payment', `/api/v1/orders/${id}`), 'payment');
    return id;
  }

  const newcomer = async (options) => {
    const page = await visit(options);
    await page.goto('/orders');
    await page.waitForSelector('#empty:not([hidden])');
    return page;
  };

  describe('my orders', { concurrency: 2 }, () => {
    it('a newcomer has none; a new order is there, can be paid, and moves to the history', async () => {
      const page = await newcomer();
      const sale = await stage.server.sale({ title: 'To be paid' });
      await buy(page, sale);
      await page.reload();
      const order = page.locator('#open .order');
      await order.getByText('Waiting for payment').waitFor();
      assert.match(await order.locator('.digits').textContent(), /^0[45]:\d\d$/);
      await order.getByRole('button', { name: 'Pay now' }).click();
      await page.locator('#history .order').getByText('Paid', { exact: true }).waitFor();
      await page.waitForFunction(() => document.querySelector('#say').textContent === 'To be paid: Paid');
      await page.leave();
    });

    it('is cancelled after asking, and expires before one’s eyes', async () => {
      const page = await newcomer();
      const [kept, short] = [await stage.server.sale({ title: 'Given back' }), await stage.server.sale({ title: 'Too slow', payment_timeout_secs: 8 })];
      await buy(page, kept);
      await buy(page, short);
      await page.reload();
      const given = page.locator('.order', { hasText: 'Given back' });
      await given.getByRole('button', { name: 'Cancel order' }).click();
      await page.getByRole('button', { name: 'Keep it' }).click();
      await page.locator('dialog').waitFor({ state: 'detached' });
      await given.getByText('Waiting for payment').waitFor();
      await given.getByRole('button', { name: 'Cancel order' }).click();
      await page.locator('dialog').getByRole('button', { name: 'Cancel the order' }).click();
      await given.getByText('Cancelled').waitFor();
      await page.locator('#history .order', { hasText: 'Too slow' }).getByText('Expired, not paid in time').waitFor({ timeout: 20_000 });
      await page.leave();
    });

    it('shows what another page of the same person does', async () => {
      const page = await newcomer();
      const sale = await stage.server.sale({ title: 'Two tabs' });
      const id = await buy(page, sale);
      await page.reload();
      await page.locator('#open .order').waitFor();
      await page.evaluate((path) => fetch(path, { method: 'POST' }).then((response) => response.text()), `/api/v1/orders/${id}/pay`);
      await page.locator('#history .order', { hasText: 'Two tabs' }).waitFor();
      await page.leave();
    });

    it('has pages, also while the newest orders are queued', async () => {
      const page = await newcomer({ expected: ['status of 503'] });
      // What the server answers while they are: no row yet, and a time cut to the second, so before
      // those of older orders.
      await page.route('**/api/v1/orders?limit=20', async (route) => {
        const response = await route.fetch();
        const { orders } = await response.json();
        orders.slice(0, 3).forEach((order) => Object.assign(order, { status: 'queued', pay_by: null, created_at: new Date(Date.parse(order.created_at) - 1000) }));
        await route.fulfill({ response, json: { orders } });
      });
      const sale = await stage.server.sale({ title: 'Many', stock: 30, per_user_limit: 25 });
      await page.evaluate(async (path) => { for (let n = 0; n < 23; n++) await (await fetch(path, { method: 'POST' })).text(); }, `/api/v1/sales/${sale.id}/orders`);
      await page.reload();
      await page.waitForFunction(() => document.querySelectorAll('.order').length === 20);
      await page.click('#more');
      await page.waitForFunction(() => document.querySelectorAll('.order').length === 23);
      await page.waitForSelector('#more', { state: 'hidden' });
      // One that is asked for by its number stands above, though it could not be read at first, and
      // the pages go on as without it.
      const first = (await stage.server.admin('GET', `/${sale.id}/orders`)).orders.at(-1).order_id;
      let away = true;
      await page.route(`**/api/v1/orders/${first}`, (route) => (away ? route.fulfill({ status: 503, json: { code: 'unavailable' } }) : route.fallback()));
      await page.goto(`/orders?order=${first}`);
      await page.waitForFunction(() => document.querySelectorAll('.order').length === 20 && document.querySelector('#loading').hidden);
      away = false;
      await page.waitForFunction(() => document.querySelectorAll('#here .order').length === 1 && document.querySelectorAll('.order').length === 21);
      await page.click('#more');
      await page.waitForFunction(() => document.querySelectorAll('.order').length === 23);
      await page.leave();
    });
  });
}
