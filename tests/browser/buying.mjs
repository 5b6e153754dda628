// The sale page: every state of the buy button, and that one intent buys once.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { eventually, inMs } from './support.mjs';

/** Looks in every frame: some states last a second. */
const state = (page, name) => page.waitForFunction((wanted) => document.querySelector('#panel')?.dataset.state === wanted, name);
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

  /**
   * Watches that nothing on the page moves: remembers where button and panel are, complains when
   * they are elsewhere.
   */
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
      assert.ok(late > -5000, `${-late} ms before the opening`); // by an hour, if it went by its own clock
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
      assert.match(await page.textContent('#fact-window'), /^Closed early/);
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
      const page = await stage.visit({ expected: REFUSED });
      await Promise.all([page.waitForResponse('**/api/v1/orders'), page.goto(`/sales/${sale.id}`)]); // and found none
      await state(page, 'ready');
      await page.context().addInitScript(() => { delete globalThis.BroadcastChannel; }); // as in another browser of the same person
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
      const sale = await stage.server.sale({ stock: 1, payment_timeout_secs: 5 });
      const page = await open(sale);
      await page.click('#buy[data-action="buy"]');
      await state(page, 'pending_payment');
      await page.waitForSelector('#panel[data-state="expired"]', { timeout: 20_000 });
      await page.waitForSelector('#buy[data-action="buy"]');
      await page.leave();
    });
  });

  /**
   * The server as a test wants it to be, for states that a real one passes through too fast or not
   * at will: every purchase and every question about an order waits until the test says how it
   * ends.
   */
  async function puppet(page, sale) {
    const order = (status, more = {}) => ({ order_id: '77', sale_id: sale.id, sale_title: sale.title, status, price_cents: 1, currency: 'USD', created_at: inMs(0), pay_by: inMs(240_000), paid_at: null, closed_at: null, ...more });
    const server = { now: null, held: null, order, answer: (what) => { const { route } = server.held; server.held = null; return route.fulfill(what); } };
    const hold = (route) => { server.held = { route }; };
    await page.route('**/api/v1/sales/*/orders', hold);
    await page.route('**/api/v1/orders/77/{pay,cancel}', hold);
    await page.route('**/api/v1/orders', (route) => route.fulfill({ json: { orders: server.now ? [server.now] : [] } }));
    await page.route('**/api/v1/orders/77', (route) => (server.now ? route.fulfill({ json: server.now }) : undefined)); // no answer at all
    // One event and the end: the page comes back for the next one by itself.
    await page.route('**/api/v1/orders/77/events', (route) => route.fulfill({ contentType: 'text/event-stream', body: server.now ? `event: order\ndata: ${JSON.stringify(server.now)}\n\n` : ': nothing yet\n\n' }));
    server.asked = () => eventually(() => server.held, 'a question to the server');
    return server;
  }

  const MARKETS = ['not_open', 'paused', 'sold_out', 'ended'];
  const EVERY = [...MARKETS, 'ready', 'buying', 'too_fast', 'unavailable', 'already', 'queued', 'pending_payment', 'paying', 'cancelling', 'paid', 'expired', 'cancelled', 'rejected'];

  describe('every state of the buy button', () => {
    for (const [locale, width] of [['en-US', 1280], ['en-US', 360], ['zh-CN', 360]]) {
      it(`has words of its own and the same place: ${locale}, ${width} pixels`, async () => {
        const sale = await stage.server.sale({ title: 'In every state' });
        const page = await stage.visit({ locale, width, expected: REFUSED, reducedMotion: 'reduce' });
        const seen = new Map();
        /** Notes what a state looks like, and that nothing has moved since the first one. */
        const note = async (name, which = name) => {
          const shown = await page.waitForFunction((wanted) => { // in the frame in which it is there
            if (document.querySelector('#panel')?.dataset.state !== wanted) return null;
            const places = ['#panel', '#stock', '#clock', '#buy', '#say', '#second'].map((one) => {
              const { x, y, width, height } = document.querySelector(one).getBoundingClientRect();
              return one === '#clock' ? `${one} ${y} ${height}` : one === '#stock' ? `${one} ${x} ${y} ${height}` : [one, x, y, width, height].join(' '); // digits and words may be wider
            });
            const { textContent: label, dataset, scrollWidth, clientWidth } = document.querySelector('#buy');
            return { label, action: dataset.action, say: document.querySelector('#say').textContent, cut: scrollWidth > clientWidth, disabled: document.querySelector('#buy').getAttribute('aria-disabled'), places };
          }, name);
          const now = await shown.jsonValue();
          assert.ok(now.label && now.say, `${which} says something`);
          assert.ok(!now.cut, `${which}: “${now.label}” fits on the button`);
          assert.equal(now.disabled, String(!now.action), which);
          assert.deepEqual(now.places, [...seen.values()][0]?.places ?? now.places, `${which} stands where ${[...seen.keys()][0]} does`);
          seen.set(which, now);
        };
        const visit = async (path = sale.id) => { await page.goto(`/sales/${path}`); await page.waitForSelector('#page:not([aria-busy])'); await page.waitForSelector('#link.live'); };
        const server = await puppet(page, sale);

        await visit();
        await note('ready');
        await page.click('#buy');
        await note('buying');
        await server.asked();
        await server.answer(problem(429, 'rate_limited', {}, { 'retry-after': '1' }));
        await note('too_fast');
        await page.click('#buy[data-action="buy"]');
        await server.asked();
        await server.answer(problem(503, 'unavailable', {}, { 'retry-after': '1' }));
        await note('unavailable');
        await page.waitForSelector('#buy[data-action="buy"]');
        await note('unavailable', 'unavailable, may try again');
        await page.click('#buy');
        await server.asked();
        server.now = server.order('queued', { pay_by: null });
        await server.answer({ status: 202, json: { order_id: '77', sale_id: sale.id, status: 'queued' } });
        await note('queued');
        server.now = server.order('pending_payment');
        await note('pending_payment');
        await page.click('#second[data-action="cancel"]');
        await page.click('dialog button[value="yes"]');
        await note('cancelling');
        await server.asked();
        await server.answer(problem(409, 'not_cancellable', { status: 'pending_payment' }));
        await note('pending_payment', 'could not cancel');
        await page.click('#buy[data-action="pay"]');
        await note('paying');
        await server.asked();
        server.now = server.order('paid', { paid_at: inMs(0) });
        await server.answer({ json: server.now });
        await note('paid');
        await visit(); // found on arrival
        await note('paid', 'paid already');
        for (const [status, payment] of [['pending_payment', 'pending'], ['pending_payment', 'declined'], ['paid', 'refunding'], ['paid', 'refunded']]) {
          server.now = server.order(status, { payment });
          await visit();
          await page.waitForSelector(status === 'paid' ? '#second[data-action="receipt"]' : '#buy[data-action="pay"]');
          await note(status, `${status}, ${payment}`);
        }
        for (const end of ['expired', 'cancelled', 'rejected']) {
          server.now = server.order('pending_payment');
          await visit();
          await note('pending_payment', 'reserved already');
          server.now = server.order(end, { closed_at: inMs(0) });
          await note(end);
        }
        server.now = server.order('pending_payment', { pay_by: inMs(-1000) });
        await visit();
        await page.waitForSelector('#buy.busy');
        await note('pending_payment', 'too late to pay');
        server.now = null;
        await visit();
        await page.click('#buy[data-action="buy"]');
        await server.asked();
        await server.answer(problem(409, 'already_ordered', { order_id: '77' }));
        await note('already');

        const more = { title: sale.title };
        const made = { not_open: await stage.server.sale({ ...more, opens_at: inMs(300_000) }), paused: await stage.server.sale(more), sold_out: await stage.server.sale({ ...more, stock: 1 }), ended: await stage.server.sale(more) };
        await stage.server.admin('POST', `/${made.paused.id}/pause`);
        await stage.server.buy(made.sold_out);
        await stage.server.admin('POST', `/${made.ended.id}/close`);
        for (const name of MARKETS) {
          await visit(made[name].id);
          await note(name);
        }

        // Whatever else the panel may have to say, it has the room for it.
        const { default: words } = await import(`../../static/js/strings/${locale.slice(0, 2)}.js`);
        const sentences = Object.entries(words).filter(([key, one]) => /^(say|notice)\./.test(key) && typeof one === 'string').map(([, one]) => one);
        const tall = await page.evaluate((all) => {
          const say = document.querySelector('#say'), { height } = say.getBoundingClientRect();
          return all.filter((one) => { say.textContent = one; return say.getBoundingClientRect().height !== height; });
        }, sentences);
        assert.ok(sentences.length > 20);
        assert.deepEqual(tall, []);
        // And for any stock: the line does not fold as the numbers shrink.
        const params = (n) => ({ left: n, all: n, n });
        const stocks = ['stock.units', 'stock.none', 'stock.last', 'stock.of'].flatMap((key) => ['1', '99,999'].map((n) => (typeof words[key] === 'function' ? words[key](params(n)) : words[key].replace(/\{\w+\}/g, n))));
        const folded = await page.evaluate((all) => {
          const panel = document.querySelector('#panel'), { height } = panel.getBoundingClientRect();
          return all.filter((one) => { document.querySelector('#stock').textContent = one; return panel.getBoundingClientRect().height !== height; });
        }, stocks);
        assert.deepEqual(folded, []);

        assert.deepEqual(EVERY.filter((name) => !seen.has(name)), []);
        const labels = [...seen].map(([name, { label, say }]) => [`${label}|${say}`, name]);
        const alike = labels.filter(([words], index) => labels.findIndex(([other]) => other === words) !== index);
        assert.deepEqual(alike, [], 'no two states say the same');
        await page.leave();
      });
    }
  });

  it('the countdown keeps the server’s time: no second is skipped or shown twice, and no clock of the visitor’s moves it', async () => {
    const opens = Date.now() + 20_000;
    const sale = await stage.server.sale({ opens_at: new Date(opens).toISOString() });
    const page = await stage.visit();
    await page.addInitScript(() => {
      let wrong = 0;
      const real = Date.now;
      Date.now = () => real() + wrong;
      globalThis.setClock = (ms) => { wrong = ms; };
      globalThis.shown = []; // [seconds left, when it began to show, on a clock that nobody sets]
      addEventListener('DOMContentLoaded', () => new MutationObserver(() => {
        const [, minutes, seconds] = /^(\d\d):(\d\d)$/.exec(document.querySelector('#clock').textContent) ?? [];
        if (minutes && document.querySelector('#panel').dataset.state === 'not_open') globalThis.shown.push([minutes * 60 + Number(seconds), performance.timeOrigin + performance.now()]);
      }).observe(document.querySelector('#clock'), { childList: true, characterData: true, subtree: true }));
    });
    await page.goto(`/sales/${sale.id}`);
    await state(page, 'not_open');
    const left = (seconds) => page.waitForFunction((n) => globalThis.shown.some(([shown]) => shown <= n), seconds, { timeout: 30_000 });
    await left(13);
    await page.evaluate(() => globalThis.setClock(-7_200_000)); // the system “corrects” its clock by two hours
    await left(9);
    await page.evaluate(() => globalThis.setClock(86_400_000));
    await left(1);
    const shown = await page.evaluate(() => globalThis.shown);
    const seconds = shown.map(([one]) => one);
    assert.deepEqual(seconds, seconds.map((_, index) => seconds[0] - index), 'each second once');
    // “n” begins n seconds before the opening. A busy machine may paint it late, but nothing may be
    // early.
    const early = Math.max(...shown.slice(1).map(([one, at]) => opens - one * 1000 - at));
    assert.ok(early < 1000, `${early} ms early`);
    await page.leave();
  });

  it('at an opening, pages ask for news after different delays, and so they do after a lost connection', async () => {
    // Two visitors with opposite luck stand for the two ends of a crowd. How evenly a crowd is
    // spread: tests/pages/.
    const visit = async (luck) => {
      const page = await stage.visit({ expected: ['net::ERR_'] });
      await page.addInitScript((value) => {
        Math.random = () => value;
        const real = setTimeout;
        globalThis.delays = [];
        globalThis.setTimeout = (work, ms, ...more) => { globalThis.delays.push(ms); return real(work, ms, ...more); };
      }, luck);
      const asksAfter = (ms) => page.waitForFunction((one) => globalThis.delays.some((other) => Math.abs(other - one) < 1), ms, { timeout: 60_000 });
      return { page, luck, asksAfter };
    };
    const visitors = await Promise.all([0.02, 0.98].map(visit));

    const opens = Date.now() + 12_000;
    const sale = await stage.server.sale({ title: `Opens for many ${opens}`, opens_at: new Date(opens).toISOString() });
    await Promise.all(visitors.map(async ({ page, luck, asksAfter }) => {
      await page.goto('/');
      await page.locator('.card', { hasText: sale.title }).first().waitFor();
      await page.route('**/api/v1/sales', (route) => route.abort()); // only the clock tells of the opening
      await page.waitForFunction((id) => document.querySelector(`.card a[href="/sales/${id}"]`).closest('.card').dataset.state === 'open', sale.id, { timeout: 60_000 });
      await asksAfter(300 + luck * 1500);
    }));

    const other = await stage.server.sale({ title: 'Loses its connection' });
    await Promise.all(visitors.map(async ({ page, luck, asksAfter }) => {
      await page.goto(`/sales/${other.id}`);
      await page.waitForSelector('#link.live');
      await page.route('**/events', (route) => route.abort());
      await page.evaluate(() => { // put aside and shown again, as by the back button: the stream is opened anew, and fails
        dispatchEvent(new PageTransitionEvent('pagehide'));
        dispatchEvent(new PageTransitionEvent('pageshow'));
      });
      for (const most of [1500, 3000]) await asksAfter(250 + luck * most);
      await page.leave();
    }));
  });

  describe('one intent', () => {
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
      await Promise.all(people.map((page) => page.dispatchEvent('#buy', 'click'))); // a real click would wait for ever where the other one was faster
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
