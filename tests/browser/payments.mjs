// Paying on the provider's page: there and back, declined, left, closed, late, and the operators'
// side. A server of its own, which pays with the sandbox; what goes wrong there, its API is told.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, describe, it } from 'node:test';
import en from '../../static/js/strings/en.js';
import zh from '../../static/js/strings/zh.js';
import { AXE, eventually, Server, visitor } from './support.mjs';

const state = (page, name) => page.waitForSelector(`#panel[data-state="${name}"]`);
const says = (page, text) => page.waitForFunction((wanted) => document.querySelector('#say').textContent === wanted, text);
const here = (page) => page.locator('#here .order');
const AWAY = ['status of 503'];

export function payments(stage) {
  let server;
  const visit = (options) => visitor(stage.browser, server, { hosted: true, ...options });

  /** A page with a unit that can be paid. */
  const reserve = async (sale, options) => {
    const page = await visit(options);
    await page.goto(`/sales/${sale.id}`);
    await page.click('#buy[data-action="buy"]');
    await page.waitForSelector('#buy[data-action="pay"]');
    return page;
  };
  /** To the provider's page; answers its address. */
  const toProvider = async (page, click) => {
    await click();
    await page.waitForURL(`${server.provider.url}/pay/*`);
    return page.url();
  };
  const pay = (page) => toProvider(page, () => page.click('#buy[data-action="pay"]'));
  /** A decision there, which leads back to the order. */
  const decide = async (page, button) => {
    await page.click(`.${button}`);
    await page.waitForURL(`${server.url}/orders?order=*`);
    await here(page).waitFor();
  };
  const shows = (page, words) => here(page).getByText(words, { exact: true }).waitFor({ timeout: 60_000 });

  /** Notes what moves by itself. */
  const steady = (page) => page.addInitScript(() => {
    globalThis.shifts = [];
    new PerformanceObserver((list) => list.getEntries().filter(({ hadRecentInput }) => !hadRecentInput)
      .forEach(({ sources }) => globalThis.shifts.push(sources.map(({ node }) => node?.outerHTML?.slice(0, 120)).join(' | ')))).observe({ type: 'layout-shift', buffered: true });
  });
  const stayed = async (page) => assert.deepEqual(await page.evaluate(async () => {
    for (let frame = 0; frame < 3; frame++) await new Promise(requestAnimationFrame);
    return globalThis.shifts;
  }), [], 'nothing has moved');

  describe('paying on the provider’s page', () => {
    before(async () => { server = await Server.start({ provider: true }); });
    after(() => server?.close());

    it('leads there and back to the order, which is paid by the webhook', async () => {
      const sale = await server.sale({ title: 'Paid over there' });
      const page = await reserve(sale);
      await steady(page);
      await pay(page);
      const seen = await page.innerText('body');
      for (const part of [/SANDBOX/, /Paid over there/, /19\.99 USD/]) assert.match(seen, part);
      await decide(page, 'confirm');
      await shows(page, 'Paid');
      await says(page, 'Paid over there: Paid');
      assert.equal(await here(page).getAttribute('aria-current'), 'true');
      await page.getByRole('heading', { name: 'This order' }).waitFor();
      await here(page).getByRole('button', { name: 'Receipt' }).waitFor();
      await stayed(page);
      assert.equal(await page.locator('.order').count(), 1, 'it stands there once');
      await page.goto(`/sales/${sale.id}`);
      await state(page, 'paid');
      await page.leave();
    });

    for (const [locale, words] of [['en-US', en], ['zh-CN', zh]]) {
      it(`declined: nothing is charged, and another try is paid: ${locale}`, async () => {
        const sale = await server.sale({ title: 'Declined first' });
        const page = await reserve(sale, { locale });
        const first = await pay(page);
        assert.equal(await page.getAttribute('html', 'lang'), locale.slice(0, 2));
        await decide(page, 'decline');
        await shows(page, words['status.pending_payment_declined']);
        await shows(page, words['say.pending_payment_declined']);
        await here(page).getByRole('button', { name: words['buy.retry'] }).waitFor();
        await page.goto(`/sales/${sale.id}`);
        await state(page, 'pending_payment');
        await says(page, words['say.pending_payment_declined']);
        assert.equal(await page.textContent('#buy'), words['buy.retry']);
        assert.notEqual(await pay(page), first, 'a page of its own');
        await decide(page, 'confirm');
        await shows(page, words['status.paid']);
        await page.leave();
      });
    }

    it('who leaves, by a button or back, finds the order open, and the same page again', async () => {
      const sale = await server.sale({ title: 'Left open' });
      const page = await reserve(sale);
      const first = await pay(page);
      await page.goBack();
      await says(page, en['say.pending_payment_pending']);
      assert.equal(await pay(page), first);
      await decide(page, 'leave');
      await shows(page, en['status.pending_payment_pending']);
      await shows(page, en['say.pending_payment_pending']);
      assert.equal(await toProvider(page, () => here(page).getByRole('button', { name: 'Pay now' }).click()), first);
      await decide(page, 'confirm');
      await shows(page, 'Paid');
      await page.leave();
    });

    it('a page that the back button brings back as it was can pay again', async () => {
      const page = await reserve(await server.sale());
      await page.route('**/checkout', (route) => route.fulfill({ json: { url: '#elsewhere' } })); // it stays, as such a page is kept
      await page.click('#buy[data-action="pay"]');
      await page.waitForURL('**#elsewhere');
      await state(page, 'paying');
      await page.evaluate(() => dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true })));
      await page.waitForSelector('#buy[data-action="pay"]');
      await page.goto('/orders');
      const button = page.locator('#open .order').getByRole('button', { name: 'Pay now' });
      await button.click();
      await page.waitForURL('**#elsewhere');
      assert.ok(await button.isDisabled());
      await page.evaluate(() => dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true })));
      await eventually(() => button.isEnabled(), 'the button');
      await page.leave();
    });

    it('who closes the window finds the same state later: not confirmed, and paid', async () => {
      const sale = await server.sale({ title: 'Window closed' });
      const page = await reserve(sale);
      const url = await pay(page);
      page.verify();
      const later = await page.context().newPage();
      await page.close();
      await later.goto(`/sales/${sale.id}`);
      await says(later, en['say.pending_payment_pending']);
      await later.goto('/orders');
      await later.locator('#open .order').getByText(en['status.pending_payment_pending'], { exact: true }).waitFor();
      // The click of a window whose answer nobody sees.
      assert.equal((await fetch(`${url}/confirm`, { method: 'POST', redirect: 'manual' })).status, 303);
      await later.locator('#history .order').getByText('Paid', { exact: true }).waitFor();
      await later.goto(`/sales/${sale.id}`);
      await state(later, 'paid');
      await later.context().close();
    });

    it('while the webhook is on its way, the order waits, and turns paid before one’s eyes, in every tab', async () => {
      const sale = await server.sale({ title: 'Webhook under way' });
      const page = await reserve(sale);
      await steady(page);
      const tab = await page.context().newPage();
      await tab.goto(`/sales/${sale.id}`);
      await server.provider.faults({ webhook_delay_ms: 3000 });
      await pay(page);
      const decided = async () => { // the shop asks by itself after five seconds
        await decide(page, 'confirm');
        await shows(page, en['status.pending_payment_pending']);
      };
      await Promise.all([says(tab, en['say.pending_payment_pending']), decided()]);
      const marker = await page.evaluate(() => (globalThis.here = Math.random()));
      await shows(page, 'Paid');
      assert.equal(await page.evaluate(() => globalThis.here), marker, 'without a reload');
      await stayed(page);
      await state(tab, 'paid');
      await server.provider.faults({});
      await page.leave();
    });

    for (const [locale, words] of [['en-US', en], ['zh-CN', zh]]) {
      it(`money that comes too late goes back, and the order says so: ${locale}`, async () => {
        const sale = await server.sale({ title: 'Too late', payment_timeout_secs: 12 });
        const page = await reserve(sale, { locale, width: 390 });
        await steady(page);
        await server.provider.faults({ webhook_lose: 1 });
        await pay(page);
        await page.click('.confirm');
        await page.waitForURL(`${server.url}/orders?order=*`, { waitUntil: 'commit' });
        await server.provider.faults({ away: true }); // before the shop asks by itself, after five seconds
        await shows(page, words['status.expired_pending']);
        await shows(page, words['say.expired_pending']);
        await server.provider.faults({});
        await shows(page, words['status.expired_refunded']);
        await shows(page, words['say.expired_refunded']);
        await stayed(page);
        const books = await server.call('GET', '/api/v1/admin/books', undefined, server.adminToken);
        assert.ok(books.ok && books.refunded_cents >= 1999, JSON.stringify(books));
        await page.leave();
      });
    }

    it('a charge whose answer is lost is found, and the order says meanwhile that it is not known', async () => {
      const sale = await server.sale({ title: 'Answer lost' });
      const page = await reserve(sale, { hosted: false, expected: AWAY });
      await server.provider.faults({ charge_and_no_answer: 1, webhook_lose: 1 });
      await page.route('**/pay', async (route) => {
        const response = await route.fetch();
        await server.provider.faults({ away: true }); // before the page hears of it, and asks again
        await route.fulfill({ response });
      }, { times: 1 });
      const answered = page.waitForResponse('**/pay');
      await page.click('#buy[data-action="pay"]');
      assert.equal((await answered).status(), 503);
      await page.waitForFunction((words) => document.querySelector('#say').textContent === words, en['say.pending_payment_pending'], { timeout: 60_000 });
      await server.provider.faults({});
      await page.waitForSelector('#panel[data-state="paid"]', { timeout: 60_000 });
      await page.leave();
    });

    it('a provider that is away charges nothing, and the page says so', async () => {
      const page = await reserve(await server.sale({ title: 'Away' }), { expected: AWAY });
      await server.provider.faults({ away: true });
      await page.click('#buy[data-action="pay"]');
      await page.waitForFunction((words) => document.querySelector('#say').textContent === words, en['notice.page_away'], { timeout: 60_000 });
      await page.goto('/orders');
      await page.locator('#open .order').getByRole('button', { name: 'Pay now' }).click();
      await page.locator('#toast', { hasText: en['notice.page_away'] }).waitFor({ timeout: 30_000 });
      await server.provider.faults({});
      await toProvider(page, () => page.locator('#open .order').getByRole('button', { name: 'Pay now' }).click());
      await decide(page, 'confirm');
      await shows(page, 'Paid');
      await page.leave();
    });

    it('whatever may be said of an order has the room for it', async () => {
      for (const [locale, words] of [['en-US', en], ['zh-CN', zh]]) {
        const page = await reserve(await server.sale(), { locale });
        await pay(page);
        await decide(page, 'leave');
        const told = Object.keys(words).filter((key) => /^say\.(pending_payment|paid|expired|cancelled)_(pending|declined|refund)/.test(key));
        assert.equal(told.length, 10);
        for (const width of [360, 390, 1280]) {
          await page.setViewportSize({ width, height: 800 });
          const wrong = await page.evaluate((all) => {
            const order = document.querySelector('#here .order'), { height } = order.getBoundingClientRect();
            return all.filter(([say, badge]) => {
              order.querySelector('.money').textContent = say;
              order.querySelector('.badge').textContent = badge;
              return order.getBoundingClientRect().height !== height || document.documentElement.scrollWidth > innerWidth;
            });
          }, told.map((key) => [words[key], words[key.replace('say.', 'status.')]]));
          assert.deepEqual(wrong, [], `${locale}, ${width} pixels`);
        }
        await page.leave();
      }
    });

    it('the page there is plainly a sandbox, accessible in both languages and themes, on a phone and without scripts', async () => {
      const axe = readFileSync(AXE, 'utf8');
      const page = await reserve(await server.sale({ title: 'W'.repeat(200) }), { width: 390, height: 780 });
      const url = await pay(page);
      for (const [lang, sign] of [['en', /^SANDBOX: .* No money is moved/], ['zh', /^沙箱（SANDBOX）.*不会发生任何真实扣款/]]) {
        await page.goto(`${url}?lang=${lang}`);
        assert.match(await page.innerText('body'), sign, 'it says so first');
        assert.match(await page.title(), /SANDBOX/);
        assert.ok(await page.evaluate(() => document.documentElement.scrollWidth) <= 390);
        await page.evaluate(axe);
        for (const theme of ['light', 'dark']) {
          await page.emulateMedia({ colorScheme: theme });
          const { violations, passes } = await page.evaluate(() => globalThis.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] }));
          assert.deepEqual(violations.map(({ id, nodes }) => `${lang} ${theme}: ${id}: ${nodes.map(({ html }) => html).join()}`), []);
          assert.ok(passes.length > 5);
          await page.screenshot({ path: `${stage.shots}/sandbox-${lang}-${theme}.png` });
        }
      }
      const bare = await visit({ javaScriptEnabled: false, width: 390, locale: 'zh-CN' });
      await bare.goto(url);
      await bare.getByRole('link', { name: 'English' }).click();
      await bare.getByRole('button', { name: 'Pay', exact: true }).click();
      await bare.waitForURL(`${server.url}/orders?order=*`);
      await bare.goto(`${url}?lang=en`);
      await bare.getByText('This is paid.').waitFor();
      await bare.getByRole('link', { name: 'Back to the shop' }).click();
      await bare.waitForURL(`${server.url}/orders?order=*`);
      await bare.leave();
      await page.leave();
    });

    it('operators return the money of a paid order, with its unit or without, and see that the books agree', async () => {
      const sale = await server.sale({ title: 'Returned', stock: 2, per_user_limit: 2 });
      const shopper = await reserve(sale, { hosted: false });
      await shopper.click('#buy[data-action="pay"]');
      await state(shopper, 'paid');
      await shopper.click('#buy[data-action="buy"]');
      await shopper.click('#buy[data-action="pay"]');
      await state(shopper, 'paid');
      await shopper.goto('/orders');
      const page = await visit();
      await page.goto('/admin');
      await page.fill('#token', server.adminToken);
      await page.keyboard.press('Enter');
      await page.getByRole('button', { name: 'Inspect Returned' }).click();
      const rows = page.locator('#orders tbody tr');
      await eventually(async () => await rows.getByRole('button', { name: /^Refund order/ }).count() === 2, 'two paid orders');
      const [kept, given] = await Promise.all([0, 1].map((n) => rows.nth(n).locator('td').first().textContent()));
      const refund = async (id, withUnit) => {
        await page.getByRole('button', { name: `Refund order ${id}` }).click();
        const dialog = page.getByRole('dialog', { name: `Refund order ${id}` });
        if (withUnit) await dialog.getByRole('checkbox').check();
        const answered = page.waitForResponse(`**/orders/${id}/refund`);
        await dialog.getByRole('button', { name: 'Refund', exact: true }).click();
        assert.equal((await answered).status(), 200);
        await page.locator('#orders tbody tr', { hasText: id }).getByText(/^(Being refunded|Refunded)$/).waitFor();
      };
      await page.getByRole('button', { name: `Refund order ${kept}` }).click();
      await page.getByRole('button', { name: 'No, go back' }).click();
      await page.locator('dialog').waitFor({ state: 'detached' });
      assert.equal(await rows.getByRole('button', { name: /^Refund order/ }).count(), 2, 'asking does nothing');
      await server.provider.faults({ away: true });
      await refund(kept, false);
      assert.equal(await page.getByRole('button', { name: `Refund order ${kept}` }).textContent(), 'Try again');
      await server.provider.faults({});
      await refund(kept, false);
      await refund(given, true);
      await page.locator('#orders tbody tr', { hasText: given }).getByText('Cancelled', { exact: true }).waitFor();
      await shopper.locator('.order', { hasText: kept }).getByText('Paid, refunded', { exact: true }).waitFor({ timeout: 60_000 });
      await shopper.locator('.order', { hasText: given }).getByText('Cancelled, refunded', { exact: true }).waitFor({ timeout: 60_000 });
      await shopper.leave();
      await eventually(async () => (await server.call('GET', `/api/v1/sales/${sale.id}`)).remaining === 1, 'the unit that came back');

      await page.getByRole('button', { name: 'Compare' }).click();
      await page.locator('#books-verdict', { hasText: /^The books agree\. Checked/ }).waitFor();
      const books = await server.call('GET', '/api/v1/admin/books', undefined, server.adminToken);
      const figures = await page.$$eval('#books-figures dd', (all) => all.map(({ textContent }) => Number(textContent.replaceAll(',', ''))));
      assert.deepEqual(figures, [books.captured_cents, books.refunded_cents, books.paid_cents, 0, books.provider.captured_cents, books.provider.refunded_cents]);
      const drift = [`order ${kept} is paid, and nothing was captured`];
      await page.route('**/admin/books', (route) => route.fulfill({ json: { ...books, ok: false, drift } }));
      await page.getByRole('button', { name: 'Compare' }).click();
      await page.locator('#books-verdict.bad', { hasText: 'The books do not agree' }).waitFor();
      await page.locator('#drift').getByText(drift[0]).waitFor();
      await page.getByRole('button', { name: '中文' }).click();
      await page.getByRole('button', { name: '对账' }).click();
      await page.locator('#drift').getByText(`订单 ${kept} 已付款，但没有入账`).waitFor();
      await page.leave();
    });
  });
}
