// The server goes away and comes back: pages say so, and mend themselves.

import assert from 'node:assert/strict';
import { it } from 'node:test';
import { buysInAnOutage } from './shop.mjs';

const LOST = ['net::ERR_', 'status of 503'];

export function outages(stage) {
  it('a purchase in an outage goes through by itself when it is over, once', () => buysInAnOutage(stage));

  it('a restart: the sale page says it reconnects, then is live again and true', async () => {
    const sale = await stage.server.sale({ stock: 5 });
    const page = await stage.visit({ expected: LOST });
    await page.goto(`/sales/${sale.id}`);
    const list = await stage.visit({ expected: LOST });
    await list.goto('/');
    await list.waitForSelector('.card h3');
    await page.waitForSelector('#link.live');
    const marker = await page.evaluate(() => (globalThis.here = Math.random()));
    await stage.server.down();
    await page.waitForSelector('#link.reconnecting');
    assert.equal(await page.textContent('#link'), 'Reconnecting…');
    await list.waitForSelector('#banner.shown');
    await stage.server.up();
    await page.waitForSelector('#link.live', { timeout: 30_000 });
    await list.waitForSelector('#banner:not(.shown)', { state: 'attached', timeout: 40_000 });
    await stage.server.buy(sale);
    await page.waitForFunction(() => document.querySelector('#stock').textContent === '4 of 5 left');
    await page.click('#buy[data-action="buy"]');
    await page.waitForSelector('#panel[data-state="pending_payment"]');
    assert.equal(await page.evaluate(() => globalThis.here), marker, 'without a reload');
    await page.leave();
    await list.leave();
  });
}
