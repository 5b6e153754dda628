// What holds on every page: both languages, both themes, all widths, accessible, light, and silent
// in the console.

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { AXE, eventually, inMs, ROOT, tooSmall, typeSizes } from './support.mjs';

const axe = readFileSync(AXE, 'utf8');
const HEAVIEST = 60_000; // bytes over the wire on a first visit, without the font
const HEAVIEST_FONT = 30_000;

export function pages(stage) {
  let all;
  /** [name, path, what to do and wait for], made once. */
  async function everyPage() {
    if (all) return all;
    const { server } = stage;
    const [open, soon, ended] = [
      await server.sale({ title: 'Pages: open', stock: 100 }), await server.sale({ title: 'Pages: soon', opens_at: inMs(3_600_000) }), await server.sale({ title: 'Pages: over' }),
    ];
    await server.admin('POST', `/${ended.id}/close`);
    const loaded = (page) => page.waitForSelector('#page:not([aria-busy])');
    return all = [
      ['catalogue', '/', (page) => page.waitForSelector('.card h3')],
      ['sale', `/sales/${open.id}`, loaded],
      ['sale-soon', `/sales/${soon.id}`, loaded],
      ['sale-over', `/sales/${ended.id}`, loaded],
      ['bought', `/sales/${open.id}`, async (page) => {
        await page.click('#buy[data-action="buy"]');
        await page.waitForSelector('#buy[data-action="pay"]');
      }],
      ['orders', '/orders', (page) => page.waitForSelector('.order')],
      ['wall', `/sales/${open.id}/live`, (page) => page.waitForSelector('#latest tr', { state: 'attached' })],
      ['admin-sign-in', '/admin', (page) => page.waitForSelector('#sign-in:not([hidden])')],
      ['admin', '/admin', async (page) => {
        await page.fill('#token', server.adminToken);
        await page.keyboard.press('Enter');
        await page.locator('#rows tr', { hasText: 'Pages: open' }).getByRole('button').first().click();
        await page.waitForSelector('.invariants li');
        await page.waitForSelector('#orders tbody tr');
      }],
      ['docs', '/docs/#purchase', (page) => page.waitForSelector('#purchase[open] pre')],
      ['nowhere', '/nothing/here', (page) => page.waitForSelector('html:not(.wordless) .empty h1')],
      ['missing', '/sales/999999', (page) => page.waitForSelector('#missing:not([hidden])')],
    ];
  }

  /** Fails with what axe finds, and where. */
  async function accessible(page, name, options) {
    const { violations, passes } = await page.evaluate((how) => globalThis.axe.run(document, how), options);
    assert.deepEqual(violations.map(({ id, nodes }) => `${name}: ${id}: ${nodes.map(({ html, failureSummary }) => `${html}\n${failureSummary}`).join('\n')}`), []);
    assert.ok(passes.length > 0, `${name}: axe looked at nothing`);
  }

  for (const [locale, lang] of [['en-US', 'en'], ['zh-CN', 'zh-Hans']]) {
    it(`every page is accessible in both themes and says nothing in the console: ${lang}`, async () => {
      const page = await stage.visit({ locale, expected: ['status of 404'], reducedMotion: 'reduce' });
      for (const [name, path, ready] of await everyPage()) {
        await page.goto(path);
        await ready(page);
        assert.equal(await page.getAttribute('html', 'lang'), lang, name);
        assert.ok(await page.title(), name);
        if (name !== 'docs') assert.doesNotMatch(await page.innerText('body'), /NaN|undefined|null|Invalid|\{\w+\}|\b[a-z]+\.[a-z]+_[a-z]+\b/, `${name}: a value or a key shows through`);
        await page.evaluate(axe); // as the debugger does it: the policy would forbid a script element
        for (const [theme, options] of [
          ['light', { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] }],
          ['dark', { runOnly: { type: 'rule', values: ['color-contrast'] } }], // a theme changes colours and nothing else
        ]) {
          await page.emulateMedia({ colorScheme: theme });
          await accessible(page, `${name} ${theme}`, { ...options, resultTypes: ['violations'] });
          await page.screenshot({ path: join(stage.shots, `${name}-${lang}-${theme}.png`), fullPage: theme === 'light' });
        }
        await page.emulateMedia({ colorScheme: 'light' });
      }
      await page.leave();
    });
  }

  const lab = (selector) => (one) => one.waitForSelector(selector, { timeout: 60_000 }); // the server plays the lesson, and measures the locks
  const rooms = [['lab', '/lab', lab('.pick')], ['lesson', '/lab/lessons/b01', lab('#theatre:visible')], ['locks', '/lab/locks', lab('table tbody tr')], ['why', '/lab/why', lab('#left .frame i')], ['ids', '/lab/ids', lab('main h1:visible')]];

  for (const [width, height] of [[390, 780], [1280, 800], [1920, 1080]]) {
    it(`every page is accessible and nothing on it moves by itself, ${width} pixels wide`, async () => {
      const page = await stage.visit({ width, height, expected: ['status of 404'], reducedMotion: 'reduce' });
      await page.addInitScript(() => {
        globalThis.shifts = [];
        const note = (entries) => entries.filter(({ hadRecentInput }) => !hadRecentInput).forEach(({ value, sources }) => globalThis.shifts.push(`${value} ${sources.map(({ node }) => node?.outerHTML?.slice(0, 80) ?? node?.nodeName).join(' | ')}`));
        const observer = new PerformanceObserver((list) => note(list.getEntries()));
        observer.observe({ type: 'layout-shift', buffered: true });
        globalThis.allShifts = () => { note(observer.takeRecords()); return globalThis.shifts; };
      });
      for (const [name, path, ready] of [...await everyPage(), ...rooms]) {
        await page.goto(path);
        await ready(page);
        await page.evaluate(async () => { for (let frame = 0; frame < 3; frame++) await new Promise(requestAnimationFrame); });
        assert.deepEqual(await page.evaluate(() => globalThis.allShifts()), [], `${name}: layout shifts`);
        const sizes = await typeSizes(page);
        assert.ok(sizes.length <= 3, `${name} has ${sizes.length} sizes of type: ${sizes.join('\n')}`);
        if (width > 1600) assert.deepEqual(await tooSmall(page), [], name);
        await page.evaluate(axe);
        await accessible(page, `${name} ${width}`, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'], resultTypes: ['violations'] });
      }
      await page.leave();
    });
  }

  it('nothing moves but what changes hands', async () => {
    const page = await stage.visit({ expected: ['status of 404'] });
    for (const [name, path, ready] of [...await everyPage(), ...rooms]) {
      await page.goto(path);
      await ready(page);
      const moving = await page.evaluate(() => [...document.querySelectorAll('body, body *')].flatMap((element) => ['', '::before', '::after'].map((part) => [element, part, getComputedStyle(element, part)]))
        .filter(([element, , { animationName, transitionDuration }]) => !element.matches('.bar i, .lease-bar i, .count strong') && (animationName !== 'none' || parseFloat(transitionDuration) > 0))
        .map(([element, part]) => element.outerHTML.slice(0, 120) + part));
      assert.deepEqual(moving, [], name);
    }
    await page.leave();
  });

  it('the API’s document weighs less than 100 KB with all it needs, and can be searched', async () => {
    const page = await stage.visit({ width: 390 });
    const wire = await page.context().newCDPSession(page);
    let bytes = 0;
    await wire.send('Network.enable');
    wire.on('Network.loadingFinished', ({ encodedDataLength }) => { bytes += encodedDataLength; });
    await page.goto('/docs');
    await page.waitForSelector('.operation');
    assert.equal(new URL(page.url()).pathname, '/docs/');
    assert.ok(bytes > 5_000 && bytes < 100_000, `${bytes} bytes`);
    const document = await (await fetch(`${stage.server.url}/openapi.json`)).json();
    const operations = Object.values(document.paths).flatMap((item) => Object.values(item).filter(({ operationId }) => operationId));
    assert.deepEqual((await page.$$eval('.operation', (all) => all.map(({ id }) => id))).sort(), operations.map(({ operationId }) => operationId).sort(), 'every operation stands there');
    await page.fill('#find', '/waiting-room');
    await page.waitForFunction(() => [...document.querySelectorAll('.operation')].filter((one) => one.checkVisibility()).every((one) => one.textContent.includes('/waiting-room')));
    await page.fill('#find', 'no such thing');
    await page.getByText('Nothing of that name.').waitFor();
    await page.leave();
  });

  it('an unknown address has a page for people, and a problem for programs', async () => {
    const page = await stage.visit({ expected: ['status of 404'] });
    const response = await page.goto('/a/typo');
    assert.equal(response.status(), 404);
    await page.getByRole('heading', { name: 'There is nothing at this address' }).waitFor();
    await page.getByRole('link', { name: 'See what is on sale' }).click();
    await page.waitForSelector('.card h3');
    for (const [path, accept] of [['/a/typo', '*/*'], ['/api/v1/typo', 'text/html']]) {
      const answer = await fetch(stage.server.url + path, { headers: { accept } });
      assert.deepEqual([answer.status, (await answer.json()).code], [404, 'not_found'], path);
    }
    await page.leave();
  });

  it('no page of the shop wants a font for its symbols, and the text figures travel compressed', async () => {
    const ofTheLab = /(lab|lesson|locks|why|ids|compare|race|recording|theatre)[\w-]*\.(html|css)$/; // it has signs of its own
    const files = ['static', 'static/css', 'static/js', 'static/js/strings'].flatMap((folder) => readdirSync(join(ROOT, folder)).map((name) => join(folder, name))).filter((name) => /\.(html|css|js)$/.test(name) && !ofTheLab.test(name));
    assert.ok(files.length > 40);
    const symbols = files.flatMap((name) => [...readFileSync(join(ROOT, name), 'utf8').replaceAll(/^\s*(\/\/|\/?\*).*$|\/\/ .*$|\/\*.*?\*\//gm, '').matchAll(/[\u2190-\u21ff\u2300-\u23ff\u25a0-\u27bf\u2b00-\u2bff]|\p{Extended_Pictographic}/gu)].map(([symbol]) => `${name}: ${symbol}`));
    assert.deepEqual(symbols, []);
    const metrics = await fetch(`${stage.server.url}/metrics`);
    assert.equal(metrics.headers.get('content-encoding'), 'gzip');
    assert.match(await metrics.text(), /flash_sale_/);
  });

  it('no page is wider than the screen, from 360 to 2560 pixels', async () => {
    const page = await stage.visit({ expected: ['status of 404'] });
    for (const [name, path, ready] of await everyPage()) {
      await page.setViewportSize({ width: 1280, height: 900 });
      await page.goto(path);
      await ready(page);
      for (const width of [360, 768, 1280, 1920, 2560]) {
        await page.setViewportSize({ width, height: width < 500 ? 780 : 1200 });
        const wide = await page.evaluate(() => document.documentElement.scrollWidth);
        assert.ok(wide <= width, `${name} at ${width}: ${wide}`);
        await page.screenshot({ path: join(stage.shots, `${name}-${width}.png`), fullPage: width < 500 });
      }
    }
    await page.leave();
  });

  describe('language', () => {
    it('is the browser’s, else the one picked, and stays', async () => {
      const page = await stage.visit({ locale: 'fr-FR' });
      await page.goto('/');
      assert.equal(await page.getAttribute('html', 'lang'), 'en', 'neither of ours: English');
      await page.waitForSelector('.card h3'); // before, the button may not listen
      await page.getByRole('button', { name: '中文' }).click();
      await page.waitForSelector('html[lang="zh-Hans"]');
      await page.getByText('库存很少').waitFor();
      await page.goto('/orders');
      await page.waitForFunction(() => document.title === '我的订单 · 限时秒杀'); // words come after the load event
      await page.getByRole('button', { name: 'English' }).click();
      await page.getByRole('heading', { name: 'My orders' }).waitFor();
      await page.leave();
    });

    it('reaches prices, dates, numbers and errors', async () => {
      const sale = await stage.server.sale({ currency: 'CNY', price_cents: 1234500, original_price_cents: 2000000, stock: 12345, opens_at: '2020-01-02T03:04:05Z', closes_at: '2099-01-02T03:04:05Z' });
      for (const [locale, texts] of [['en-GB', [/CN¥12,345/, /12,345 of 12,345/, /2 Jan 2099/]], ['zh-CN', [/^¥12,345$/, /剩 12,345 件/, /2099年1月2日/]]]) {
        const page = await stage.visit({ locale, expected: ['status of 409'] });
        await page.goto(`/sales/${sale.id}`);
        await page.waitForSelector('#page:not([aria-busy])');
        for (const [place, pattern] of [['#price', texts[0]], ['#stock', texts[1]], ['#fact-window', texts[2]]]) assert.match(await page.textContent(place), pattern);
        await page.leave();
      }
      const page = await stage.visit({ locale: 'zh-CN', expected: ['status of 409'] });
      const last = await stage.server.sale({ stock: 1 });
      await page.goto(`/sales/${last.id}`);
      await page.waitForSelector('#buy[data-action="buy"]');
      await page.route('**/sales/*/orders', (route) => route.fulfill({ status: 409, contentType: 'application/problem+json', body: '{"code":"sold_out","status":409}' }), { times: 1 });
      await page.click('#buy');
      await page.waitForFunction(() => document.querySelector('#say').textContent.includes('有人更快一步')); // in every frame: the news of the sale takes it away
      await page.leave();
    });
  });

  it('a first visit costs less than 60 KB and the font, which is fetched once, and a second one next to nothing', async () => {
    for (const path of ['/', `/sales/${(await everyPage())[1][1].split('/').pop()}`]) {
      const page = await stage.visit();
      const wire = await page.context().newCDPSession(page);
      const fonts = new Set();
      let bytes = 0, font = 0;
      await wire.send('Network.enable');
      wire.on('Network.requestWillBeSent', ({ requestId, request }) => { if (request.url.endsWith('.woff2')) fonts.add(requestId); });
      wire.on('Network.loadingFinished', ({ requestId, encodedDataLength }) => { if (fonts.has(requestId)) font += encodedDataLength; else bytes += encodedDataLength; });
      await page.goto(path, { waitUntil: 'load' });
      await page.waitForSelector('.card h3, #page:not([aria-busy])');
      await eventually(() => font > 5_000, 'the font');
      assert.ok(font < HEAVIEST_FONT, `${font} bytes of font`);
      font = 0;
      const first = bytes;
      assert.ok(first > 5_000 && first < HEAVIEST, `${path}: ${first} bytes`);
      bytes = 0;
      await page.reload({ waitUntil: 'load' });
      assert.ok(bytes < first / 2, `${path}: ${bytes} bytes the second time`);
      assert.equal(font, 0, 'the font of the first visit');
      await page.leave();
    }
  });

  it('a first visit is usable after three round trips, and nothing jumps about', async (test) => {
    const sale = await stage.server.sale({ title: 'Few round trips' });
    for (const [path, usable] of [['/', '.card h3'], [`/sales/${sale.id}`, '#buy[data-action="buy"]']]) {
      const page = await stage.visit();
      await page.addInitScript((wanted) => {
        globalThis.moved = 0;
        const add = (entries) => entries.forEach(({ value }) => { globalThis.moved += value; });
        const observer = new PerformanceObserver((list) => add(list.getEntries()));
        observer.observe({ type: 'layout-shift', buffered: true });
        globalThis.addTheRest = () => add(observer.takeRecords());
        const look = () => { if (document.querySelector(wanted)) globalThis.usable = true; else requestAnimationFrame(look); };
        look();
      }, usable);
      // A request can begin once the one that asked for it has been answered: the page, what it
      // names, what that asks for.
      const depths = new Map();
      const wire = await page.context().newCDPSession(page);
      await wire.send('Network.enable');
      wire.on('Network.requestWillBeSent', ({ request, initiator }) => {
        const by = initiator.url ?? initiator.stack?.callFrames[0]?.url;
        depths.set(request.url, 1 + (depths.get(by) ?? 0));
      });
      await page.goto(path);
      await page.waitForFunction(() => globalThis.usable, null, { timeout: 30_000 });
      const deepest = Math.max(...depths.values());
      test.diagnostic(`${path}: ${[...depths].map(([url, depth]) => `${depth} ${new URL(url).pathname}`).join(', ')}`);
      assert.ok(deepest <= 3, `${path}: ${deepest} round trips`);
      await page.waitForLoadState('load');
      const moved = await page.evaluate(async () => {
        for (let frame = 0; frame < 3; frame++) await new Promise(requestAnimationFrame);
        globalThis.addTheRest();
        return globalThis.moved;
      });
      assert.ok(moved < 0.02, `${path}: ${moved} of the page moved`);
      await page.leave();
    }
  });

  it('every page is guarded by the same strict headers, and none complains of them', async () => {
    const page = await stage.visit({ expected: ['status of 404'] });
    const [, [, sale]] = await everyPage();
    for (const path of ['/', sale, `${sale}/live`, '/orders', '/admin', '/lab', '/lab/lessons/b01', '/lab/locks', '/lab/why', '/lab/ids', '/sales/999999', '/docs/']) {
      const response = await page.goto(path);
      const headers = response.headers(), policy = headers['content-security-policy'] ?? '';
      const directive = (name) => policy.split(';').map((one) => one.trim().split(' ')).find(([one]) => one === name)?.slice(1).join(' ');
      assert.equal(directive('script-src') ?? directive('default-src'), "'self'", path);
      for (const name of ['object-src', 'base-uri', 'frame-ancestors']) assert.equal(directive(name), "'none'", `${path}: ${name}`);
      assert.equal(directive('form-action'), "'self'", path);
      assert.equal(headers['x-content-type-options'], 'nosniff', path);
      assert.equal(headers['referrer-policy'], 'same-origin', path);
      assert.equal(headers['cross-origin-opener-policy'], 'same-origin', path);
      assert.match(headers['permissions-policy'], /camera=\(\).*payment=\(\)/, path);
      // Assets are asked for again and found unchanged, and travel compressed.
      assert.deepEqual([headers['cache-control'], headers['content-encoding'], /^W\/"[0-9a-f]{32}"$/.test(headers.etag)], ['no-cache', 'gzip', true], path);
      await page.waitForLoadState('load');
    }
    // The policy is at work: what it forbids does not run.
    await page.goto('/');
    const [ran] = await Promise.all([page.evaluate(() => {
      document.body.append(Object.assign(document.createElement('script'), { textContent: 'globalThis.ran = true' }));
      return globalThis.ran === true;
    }), page.waitForEvent('console', (message) => /Content Security Policy|policy:/.test(message.text()))]);
    assert.equal(ran, false);
    assert.throws(() => page.verify(), /Content Security Policy|policy:/, 'and a page that tried would be noticed by these tests');
    await page.context().close();
  });

  it('who wants less motion gets none', async () => {
    const page = await stage.visit({ reducedMotion: 'reduce' });
    await page.goto('/');
    await page.waitForSelector('.card h3');
    const moving = await page.evaluate(() => document.getAnimations().length);
    assert.equal(moving, 0);
    await page.leave();
  });
}
