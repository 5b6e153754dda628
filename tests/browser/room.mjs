// The waiting room, a puzzle and a pass, as a visitor meets them: by mouse and by keyboard, in both
// languages.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { inMs } from './support.mjs';

const state = (page, name) => page.waitForSelector(`#panel[data-state="${name}"]`);
const labelled = (page, text, options) => page.waitForFunction((wanted) => document.querySelector('#buy').textContent.startsWith(wanted), text, options);
const says = (page, text) => page.waitForFunction((wanted) => document.querySelector('#say').textContent.includes(wanted), text);
const REFUSED = ['the server responded with a status of']; // who has no place yet hears 404

export function room(stage) {
  const open = async (sale, options) => {
    const page = await stage.visit({ expected: REFUSED, ...options });
    await page.goto(`/sales/${sale.id}`);
    await page.waitForSelector('#page:not([aria-busy])');
    return page;
  };

  /** Somebody without a browser, and their turn. */
  const turn = async (sale) => {
    const token = await stage.server.buyer();
    const path = `/api/v1/sales/${sale.id}/waiting-room`;
    let place = await stage.server.call('POST', path, undefined, token);
    while (place.state !== 'turn') {
      await new Promise((resolve) => { setTimeout(resolve, 50); });
      place = await stage.server.call('GET', path, undefined, token);
    }
    return { token, admission: place.admission_token };
  };

  describe('the waiting room', { concurrency: 3 }, () => {
    it('lets one join, gives a turn and sells, with the keyboard alone', async () => {
      const page = await open(await stage.server.sale({ waiting_room: {} }));
      await labelled(page, 'Join the waiting room');
      await page.focus('#buy');
      await page.keyboard.press('Enter');
      await labelled(page, 'Buy now');
      assert.equal(await page.textContent('#clock-label'), 'Your turn ends in');
      assert.equal(await page.getAttribute('#say', 'role'), 'status', 'a screen reader hears of the turn');
      await page.keyboard.press('Enter');
      await state(page, 'pending_payment');
      await page.leave();
    });

    it('keeps early ones together until the opening, and tells them then', async () => {
      const page = await open(await stage.server.sale({ opens_at: inMs(12_000), waiting_room: {} }));
      await labelled(page, 'Join the waiting room');
      await page.click('#buy');
      await labelled(page, 'In the draw, with 1');
      await labelled(page, 'Buy now', { timeout: 20_000 });
      await page.leave();
    });

    it('has one place for two tabs, and tells both at once that nothing is left', async () => {
      const sale = await stage.server.sale({ stock: 1, waiting_room: { overbooking_percent: 0 } });
      const { token, admission } = await turn(sale);
      const page = await open(sale);
      await labelled(page, 'Join the waiting room');
      await page.click('#buy');
      await labelled(page, 'Your place: 1');
      await says(page, 'more people ahead of you than units');
      const asked = [];
      page.on('request', (request) => asked.push(request.method()));
      await page.dispatchEvent('#buy', 'click'); // shows the place, and buys nothing
      const tab = await page.context().newPage();
      await tab.goto(`/sales/${sale.id}`);
      await labelled(tab, 'Your place: 1');
      const bought = await fetch(`${stage.server.url}/api/v1/sales/${sale.id}/orders`, {
        method: 'POST', headers: { authorization: `Bearer ${token}`, 'admission-token': admission },
      });
      assert.equal(bought.status, 202);
      for (const one of [page, tab]) await says(one, 'Every unit is taken. Your place is kept');
      assert.ok(!asked.includes('POST'), `${asked}`);
      await page.leave();
    });

    it('offers a new place to who let their turn pass, in Chinese as well', async () => {
      const page = await open(await stage.server.sale({ waiting_room: { turn_secs: 1 } }), { locale: 'zh-CN' });
      await labelled(page, '进入等候室');
      await page.click('#buy');
      await labelled(page, '重新排队');
      await says(page, '你的购买时间已过');
      await page.leave();
    });
  });

  describe('what a sale asks for besides', { concurrency: 2 }, () => {
    it('is brought by the page: a solved puzzle and a pass', async () => {
      const page = await open(await stage.server.sale({ challenge_bits: 12, purchase_pass: true }));
      await page.click('#buy[data-action="buy"]');
      await state(page, 'pending_payment');
      await page.leave();
    });

    it('is brought for a place in the waiting room too', async () => {
      const page = await open(await stage.server.sale({ challenge_bits: 12, waiting_room: {} }));
      await labelled(page, 'Join the waiting room');
      await page.click('#buy');
      await labelled(page, 'Buy now');
      await page.leave();
    });
  });
}
