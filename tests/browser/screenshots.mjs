// The pictures of README and docs, taken from a real server. Run: scripts/screenshots.sh [folder]

import { mkdir, writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { animated } from './animation.mjs';
import { shareImages } from './share-images.mjs';
import { eventually, inMs, launch, ROOT, Server, visitor } from './support.mjs';

const FOLDER = resolve(process.argv[2] ?? join(ROOT, 'docs/img'));
const LARGEST = 120_000; // bytes; a README is read over the network too
const LARGEST_MOVING = 800_000;
const LOAD_MS = 25_000;

const [server, browser] = await Promise.all([Server.start(), launch()]);
await mkdir(FOLDER, { recursive: true });
const encoder = await (await browser.newContext()).newPage();
await encoder.goto(`${server.url}/`); // ImageDecoder wants a secure context, which about:blank is not

/** PNG → WebP by the browser itself, so that no other tool is needed; `wide` makes it smaller. */
async function webp(png, quality, wide) {
  const [data, width, height] = await encoder.evaluate(async ([source, how, most]) => {
    const image = new Image();
    image.src = `data:image/png;base64,${source}`;
    await image.decode();
    const scale = Math.min(1, (most ?? Infinity) / image.width);
    const canvas = Object.assign(document.createElement('canvas'), { width: Math.round(image.width * scale), height: Math.round(image.height * scale) });
    const context = canvas.getContext('2d');
    context.imageSmoothingQuality = 'high';
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    return [canvas.toDataURL('image/webp', how).split(',')[1], canvas.width, canvas.height];
  }, [png.toString('base64'), quality, wide]);
  return { webp: Buffer.from(data, 'base64'), width, height };
}

/** As good as fits. */
async function keep(name, page, what = page) {
  page.verify();
  const png = await what.screenshot();
  for (const quality of [0.92, 0.85, 0.75, 0.6]) {
    const { webp: picture } = await webp(png, quality);
    if (picture.length >= LARGEST) continue;
    await writeFile(join(FOLDER, `${name}.webp`), picture);
    console.log(`${name}.webp  ${Math.round(picture.length / 1024)} KB at ${quality}`);
    return;
  }
  throw new Error(`${name} does not fit into ${LARGEST} bytes`);
}

/**
 * The box grows when verdicts come: all frames get its last size, the earlier ones with their own
 * background below.
 */
const sameSize = (frames, width, height) => Promise.all(frames.map(async ({ png, ms }) => ({
  ms, png: Buffer.from(await encoder.evaluate(async ([source, w, h]) => {
    const image = new Image();
    image.src = `data:image/png;base64,${source}`;
    await image.decode();
    const canvas = Object.assign(document.createElement('canvas'), { width: w, height: h });
    const context = canvas.getContext('2d');
    context.drawImage(image, 2, image.height - 30, 1, 1, 0, 0, w, h);
    context.drawImage(image, 0, 0);
    return canvas.toDataURL().split(',')[1];
  }, [png.toString('base64'), width, height]), 'base64'),
})));

/**
 * Frames ([{png, ms}]) as one moving picture; what does not move costs only the frames in which it
 * stood still.
 */
async function keepMoving(name, frames) {
  const still = frames.filter(({ png }, index) => index === 0 || !png.equals(frames[index - 1].png));
  for (const [quality, wide, every] of [[0.7, 800, 1], [0.6, 720, 2], [0.5, 640, 2], [0.4, 640, 3], [0.3, 560, 4]]) {
    const encoded = [];
    for (const [index, { png, ms }] of still.entries()) {
      if (index % every === 0 || index === still.length - 1) encoded.push({ ...await webp(png, quality, wide), ms });
      else encoded.at(-1).ms += ms; // left out: the one before it stands for it
    }
    const picture = animated(encoded, encoded[0].width, encoded[0].height);
    if (picture.length >= LARGEST_MOVING) continue;
    const count = await encoder.evaluate(async (source) => {
      const bytes = Uint8Array.from(atob(source), (char) => char.charCodeAt(0));
      const decoder = new ImageDecoder({ data: bytes, type: 'image/webp' });
      await decoder.tracks.ready;
      return decoder.tracks.selectedTrack.frameCount;
    }, picture.toString('base64'));
    if (count !== encoded.length) throw new Error(`${name}: ${count} frames of ${encoded.length} can be read again`);
    await writeFile(join(FOLDER, `${name}.webp`), picture);
    console.log(`${name}.webp  ${Math.round(picture.length / 1024)} KB, ${count} frames`);
    return;
  }
  throw new Error(`${name} does not fit into ${LARGEST_MOVING} bytes`);
}

const visit = (options) => visitor(browser, server, { width: 1280, height: 800, deviceScaleFactor: 1.5, ...options });
const settled = (page) => page.evaluate(() => Promise.all(document.getAnimations().filter(({ effect }) => effect.getTiming().iterations !== Infinity).map(({ finished }) => finished)));

/**
 * Buys as fast as the server answers, until told to stop: mostly newcomers, some who come again.
 */
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
  const lab = await visit({ width: 1200, height: 1000, deviceScaleFactor: 1 });
  await lab.goto('/lab?s=naive,process-mutex,row-lock,conditional-update&stock=100&buyers=2500&concurrency=64&nodes=3');
  await lab.waitForSelector('#page:not([hidden])');
  await lab.click('#start');
  await lab.waitForSelector('.lane:nth-child(4)');
  const frames = [];
  const over = () => lab.locator('.explains:not(:empty)').count().then((n) => n === 4);
  for (let last = false; frames.length < 40 && !last;) {
    last = await over();
    frames.push({ png: await lab.locator('#race').screenshot({ animations: 'disabled' }), ms: last ? 4000 : 250 });
    await new Promise((tick) => { setTimeout(tick, 200); });
  }
  const { width, height } = await lab.locator('#race').boundingBox();
  await keepMoving('lab-race', await sameSize(frames, Math.round(width), Math.round(height)));
  await lab.setViewportSize({ width: 1560, height: 1000 }); // so that the whole table is seen
  await keep('lab-results', lab, lab.locator('#results'));
  await lab.leave();

  const why = await visit({ width: 1440, height: 900, deviceScaleFactor: 1 });
  await why.goto('/lab/why');
  await why.waitForSelector('#crowd i');
  await why.click('#go');
  await why.waitForSelector('#main[data-scene="raced"] #go[aria-disabled="false"]', { timeout: 60_000 });
  await settled(why);
  await keep('why', why);
  await why.leave();

  const theatre = await visit({ width: 1440, height: 1000, deviceScaleFactor: 1 });
  await theatre.goto('/lab/lessons/b03');
  await theatre.waitForSelector('#theatre:not([hidden])');
  await theatre.locator('.acts .quiet').first().click(); // the moment when two hold the lock
  await settled(theatre);
  await keep('lesson', theatre);
  await theatre.leave();
  await shareImages(browser, join(ROOT, 'static/img'), server);
} finally {
  await browser.close();
  await server.close();
}
