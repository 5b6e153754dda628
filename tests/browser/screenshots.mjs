// The pictures of README and docs, taken from a real server. Run: scripts/screenshots.sh [folder]

import { mkdir, writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { eventually, inMs, launch, ROOT, Server, visitor } from './support.mjs';

const FOLDER = resolve(process.argv[2] ?? join(ROOT, 'docs/img'));
const LARGEST = 120_000; // bytes; a README is read over the network too
const LOAD_MS = 25_000;

const [server, browser] = await Promise.all([Server.start(), launch()]);
await mkdir(FOLDER, { recursive: true });
const encoder = await (await browser.newContext()).newPage();

/** PNG → WebP by the browser itself, so that no other tool is needed; as good as fits. */
async function keep(name, page, what = page) {
  page.verify();
  const png = (await what.screenshot()).toString('base64');
  for (const quality of [0.92, 0.85, 0.75, 0.6]) {
    const webp = Buffer.from(await encoder.evaluate(async ([source, how]) => {
      const image = new Image();
      image.src = `data:image/png;base64,${source}`;
      await image.decode();
      const canvas = Object.assign(document.createElement('canvas'), { width: image.width, height: image.height });
      canvas.getContext('2d').drawImage(image, 0, 0);
      return canvas.toDataURL('image/webp', how).split(',')[1];
    }, [png, quality]), 'base64');
    if (webp.length >= LARGEST) continue;
    await writeFile(join(FOLDER, `${name}.webp`), webp);
    console.log(`${name}.webp  ${Math.round(webp.length / 1024)} KB at ${quality}`);
    return;
  }
  throw new Error(`${name} does not fit into ${LARGEST} bytes`);
}

const visit = (options) => visitor(browser, server, { width: 1280, height: 800, deviceScaleFactor: 1.5, ...options });
const settled = (page) => page.evaluate(() => Promise.all(document.getAnimations().filter(({ effect }) => effect.getTiming().iterations !== Infinity).map(({ finished }) => finished)));

/** Buys as fast as the server answers, until told to stop: mostly newcomers, some who come again. */
function storm(sale) {
  let going = true;
  const buyers = Promise.all(Array.from({ length: 24 }, async () => {
    while (going) {
      const token = await server.buyer();
      for (let n = 0; n < 3 && going; n++) {
        await (await fetch(`${server.url}/api/v1/sales/${sale.id}/orders`, { method: 'POST', headers: { authorization: `Bearer ${token}` } })).text();
      }
    }
  }));
  return () => { going = false; return buyers; };
}

try {
  const { sales } = await server.call('GET', '/api/v1/sales');
  const named = (part) => sales.find(({ title }) => title.includes(part));
  const concert = await server.sale({ title: 'Midnight concert, front row', description: 'One evening, one stage, two seats.', image_url: '/static/img/ticket.svg', price_cents: 4900, original_price_cents: 12_900, stock: 2 });
  const phones = named('Ten phones');
  for (let n = 0; n < 2; n++) await server.buy(concert);
  for (let n = 0; n < 7; n++) await server.buy(phones);

  const page = await visit();
  await page.goto('/');
  await page.waitForSelector('.card[data-state="sold_out"]');
  await settled(page);
  await keep('catalogue', page);

  await page.goto(`/sales/${phones.id}`);
  await page.waitForSelector('#link.live');
  await page.waitForSelector('#buy[data-action="buy"]');
  await settled(page);
  await keep('sale-open', page);
  await page.click('#buy');
  await page.waitForSelector('#buy[data-action="pay"]');
  await settled(page);
  await keep('sale-bought', page);
  await page.click('#buy');
  await page.waitForSelector('#panel[data-state="paid"]');

  await page.goto(`/sales/${named('headphones').id}`);
  await page.click('#buy[data-action="buy"]');
  await page.waitForSelector('#buy[data-action="pay"]');
  await page.goto('/orders');
  await page.waitForSelector('#open .order');
  await page.waitForSelector('#history .order');
  await keep('orders', page);
  await page.leave();

  const zh = await visit({ locale: 'zh-CN', theme: 'dark' });
  const soon = await server.sale({ title: '极光耳机 · 整点秒杀', description: '主动降噪，充一次电听四十小时。', image_url: '/static/img/headphones.svg', currency: 'CNY', price_cents: 49_900, original_price_cents: 139_900, stock: 200, opens_at: inMs(125_000) });
  await zh.goto(`/sales/${soon.id}`);
  await zh.waitForSelector('#link.live');
  await settled(zh);
  await keep('sale-zh', zh);
  await zh.leave();

  const rush = await server.sale({ title: 'Sneakers, 6,000 pairs', image_url: '/static/img/sneakers.svg', price_cents: 4900, original_price_cents: 12_900, stock: 6000 });
  const wall = await visit({ width: 1440, height: 960, theme: 'dark', deviceScaleFactor: 1 });
  await wall.goto(`/sales/${rush.id}/live`);
  await wall.waitForSelector('#link.live');
  await wall.waitForSelector('#latest tr:nth-child(3)', { state: 'attached' });
  const calm = storm(rush); // photographed while it rages
  const began = Date.now();
  await eventually(async () => Date.now() - began > LOAD_MS || Number((await wall.textContent('#remaining')).replace(/\D/g, '')) < rush.stock / 5, 'the storm', LOAD_MS + 5000);
  await keep('wall', wall);
  await calm();
  await wall.leave();

  const desk = await visit();
  await desk.goto('/admin');
  await desk.fill('#token', server.adminToken);
  await desk.keyboard.press('Enter');
  await desk.locator('#rows tr', { hasText: 'Ten phones' }).getByRole('button', { name: /Inspect/ }).click();
  await desk.waitForSelector('.invariants li');
  await desk.waitForSelector('#orders tbody tr');
  await keep('admin-audit', desk, desk.locator('#inspect'));
  await desk.leave();
} finally {
  await browser.close();
  await server.close();
}
