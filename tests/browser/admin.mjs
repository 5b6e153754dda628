// The operators' page: what one can do to a sale, and the audit in words.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { join } from 'node:path';
import { eventually } from './support.mjs';

export function admin(stage) {
  const enter = async (options) => {
    const page = await stage.visit(options);
    await page.goto('/admin');
    await page.fill('#token', stage.server.adminToken);
    await page.keyboard.press('Enter');
    await page.waitForSelector('#desk:not([hidden])');
    return page;
  };
  const row = (page, title) => page.locator('#rows tr', { hasText: title });

  describe('operators', () => {
    it('a wrong token is refused in words, and forgotten tokens are', async () => {
      const page = await stage.visit({ expected: ['status of 401'] });
      await page.goto('/admin');
      await page.fill('#token', 'wrong');
      await page.keyboard.press('Enter');
      await page.getByText('This token is not right.').waitFor();
      await page.fill('#token', stage.server.adminToken);
      await page.keyboard.press('Enter');
      await page.click('#leave');
      await page.reload();
      await page.waitForSelector('#sign-in:not([hidden])');
      await page.leave();
    });

    it('create, edit, pause, resume, add and take stock, close', async () => {
      const page = await enter({ expected: ['status of 409', 'status of 422'] });
      await page.fill('#title', 'Made by hand');
      await page.fill('#price', '19.90');
      await page.fill('#original', '29');
      await page.fill('#stock', '7');
      await page.fill('#image_url', 'javascript:alert(1)');
      await page.click('#create button:not([type])');
      await page.getByText('The server does not accept this: Picture must be a path').waitFor();
      assert.equal(await page.evaluate(() => document.activeElement.id), 'image_url', 'and the field has the focus');
      await page.fill('#image_url', '/static/img/ticket.svg');
      const asked = [];
      page.on('request', (request) => asked.push(request.method()));
      await page.locator('#create button:not([type])').evaluate((button) => { button.click(); button.click(); });
      await row(page, 'Made by hand').getByText('7 / 7').waitFor();
      assert.equal(asked.filter((method) => method === 'POST').length, 1, 'a double click makes one sale');

      await row(page, 'Made by hand').getByRole('button', { name: /^More/ }).click();
      await page.getByRole('button', { name: 'Edit Made by hand' }).click();
      await page.fill('#edit-title', 'Made by two hands');
      await page.fill('#edit-payment_timeout_secs', '90');
      await page.getByRole('button', { name: 'Save changes' }).click();
      const made = row(page, 'Made by two hands');
      await made.waitFor();

      await made.getByRole('button', { name: /^Pause/ }).click();
      await made.getByText('Paused', { exact: true }).waitFor();
      await made.getByRole('button', { name: /^Resume/ }).click();
      await made.getByText('Open now').waitFor();

      const more = made.getByRole('button', { name: /^More/ });
      await more.click();
      const amount = made.getByRole('spinbutton');
      for (const [add, left] of [['5', '12 / 12'], ['-2', '10 / 10']]) {
        await amount.fill(add);
        await amount.press('Enter');
        await made.getByText(left).waitFor();
      }
      await amount.fill('-11');
      await amount.press('Enter');
      await page.getByText('That is more than what remains unsold.').waitFor();

      await made.getByRole('button', { name: /^Close/ }).click();
      await page.getByRole('button', { name: 'No, go back' }).click();
      await page.locator('dialog').waitFor({ state: 'detached' });
      await made.getByText('Open now').waitFor();
      await more.click();
      await made.getByRole('button', { name: /^Close/ }).click();
      await page.getByRole('button', { name: 'Close the sale' }).click();
      await made.getByText('Ended').waitFor();

      const { sales } = await stage.server.call('GET', '/api/v1/sales');
      const sale = sales.find(({ title }) => title === 'Made by two hands');
      assert.deepEqual([sale.price_cents, sale.original_price_cents, sale.stock, sale.payment_timeout_secs, sale.state], [1990, 2900, 10, 90, 'ended']);
      await page.leave();
    });

    it('templates fill the form, and what few need is under Advanced', async () => {
      const page = await enter();
      const advanced = () => page.getAttribute('#advanced', 'open');
      assert.equal(await advanced(), null);
      await page.getByRole('button', { name: 'Ten phones', exact: true }).click();
      assert.deepEqual(await page.$$eval('#create [name]', (all) => all.filter(({ value }) => value).map(({ name, value }) => [name, value])), [
        ['title', 'Ten phones'], ['image_url', '/static/img/phone.svg'], ['price', '1'], ['original', '999'], ['stock', '10'], ['currency', 'USD'], ['per_user_limit', '1'],
      ]);
      assert.equal(await advanced(), null);
      await page.getByRole('button', { name: 'Guarded against robots' }).click();
      assert.equal(await page.inputValue('#original'), '', 'nothing of the one before is left');
      assert.equal(await advanced(), '', 'what it sets can be seen');
      await page.fill('#title', 'From a template');
      await page.click('#create button:not([type])');
      await row(page, 'From a template').getByText('500 / 500').waitFor();
      const { sales } = await stage.server.call('GET', '/api/v1/sales');
      const { purchase_pass, challenge_bits } = sales.find(({ title }) => title === 'From a template');
      assert.deepEqual([purchase_pass, challenge_bits], [true, 16]);
      await page.leave();
    });

    it('reads the audit in words, orders by status, and says so when an invariant is broken', async () => {
      const sale = await stage.server.sale({ title: 'To be audited', stock: 60 });
      const payer = await stage.server.buyer();
      const { order_id: paid } = await stage.server.buy(sale, payer);
      for (let n = 0; n < 52; n++) await stage.server.buy(sale);
      const page = await enter({ expected: ['status of 422'] });
      await eventually(async () => (await stage.server.admin('GET', `/${sale.id}/audit`)).quiescent, 'the last order'); // it may still be on its way
      await page.getByRole('button', { name: 'Inspect To be audited' }).click();
      await page.waitForFunction(() => document.querySelectorAll('.invariants .yes').length === 7);
      await stage.server.call('POST', `/api/v1/orders/${paid}/pay`, undefined, payer);
      await page.click('#audit-again');
      await page.getByText('60 = 7 + 52 + 1').waitFor();
      assert.match(await page.textContent('#verdict'), /^Everything adds up\. Checked/);

      await page.waitForFunction(() => document.querySelectorAll('#orders tbody tr').length === 50);
      await page.click('#more');
      await page.waitForFunction(() => document.querySelectorAll('#orders tbody tr').length === 53);
      await page.selectOption('#filter', 'paid');
      await page.waitForFunction(() => document.querySelectorAll('#orders tbody tr').length === 1);
      await page.selectOption('#filter', 'rejected');
      await page.getByText('No such orders.').waitFor();
      const { user_id: whose } = (await stage.server.admin('GET', `/${sale.id}/orders?status=paid`)).orders[0];
      await page.fill('#whose', whose);
      await page.selectOption('#filter', '');
      await page.waitForFunction((user) => [...document.querySelectorAll('#orders tbody tr')].map((row) => row.cells[1].textContent).join() === user, whose);
      await page.fill('#whose', 'somebody');
      await page.press('#whose', 'Enter');
      await page.getByText(/user: /).waitFor();

      const honest = await stage.server.admin('GET', `/${sale.id}/audit`);
      const broken = { ...honest, ok: false, oversold: 3, live: 63, quiescent: false, conserved: null, backlog: 2, problems: ['I1 broken: 63 live orders on a stock of 60'] };
      await page.fill('#whose', whose);
      await page.route('**/audit', (route) => route.fulfill({ json: broken }));
      await page.click('#audit-again');
      await page.getByText('3 sold too many: 63 live orders, 60 in stock').waitFor();
      await page.getByText('2 orders are still on their way to the database').waitFor();
      await page.getByText('Can only be judged once nothing moves').waitFor();
      await page.getByText('I1 broken: 63 live orders on a stock of 60').waitFor();
      assert.match(await page.textContent('#verdict'), /^An invariant is broken/);
      await page.screenshot({ path: join(stage.shots, 'audit-broken.png'), fullPage: true });
      await page.leave();
    });
  });
}
