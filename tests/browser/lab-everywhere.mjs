// What holds on every page of the lab: both languages, both themes, all widths, accessible, light,
// and silent.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { it } from 'node:test';
import { axe, escaped, loaded, raced, reads, staged, visitorOf } from './lab-support.mjs';
import { tooSmall, typeSizes } from './support.mjs';

const HEAVIEST = 60_000; // bytes over the wire on a first visit

export function everywhere(stage) {
  const visit = visitorOf(stage);

  const EVERY = [
    ['lab', '/lab?s=naive,token-lock', async (page) => { await loaded(page); await page.waitForSelector('.lesson-card'); await page.click('#options summary'); await reads(page); }],
    ['lab-raced', '/lab?s=naive,conditional-update', async (page) => { await loaded(page); await page.click('#start'); await page.waitForSelector('#table tr:nth-child(2)'); await page.waitForSelector('.lane.bad'); }],
    ['lesson', '/lab/lessons/b03#4', async (page) => { await staged(page); await page.waitForSelector('#marks .marked', { state: 'attached' }); await page.click('details summary'); }],
    ['locks', '/lab/locks', async (page) => { await loaded(page); await page.locator('.open').first().click(); }],
    ['lab-off', '/static/lab-off.html', (page) => page.waitForSelector('h1')],
    ['ids', '/lab/ids', (page) => page.waitForSelector('.idea')],
    ['why', '/lab/why', async (page) => { await raced(page); for (let n = 0; n < 3; n++) await page.keyboard.press('ArrowRight'); await page.waitForSelector('.glows'); }],
  ];

  it('what the server itself tells fits every screen and is accessible, and on Chinese pages there is no English left', async () => {
    const page = await stage.visit({ locale: 'zh-CN', reducedMotion: 'reduce' });
    const long = { timeout: 90_000 };
    const played = (own) => page.waitForSelector(own, long);
    const { lessons } = await stage.server.call('GET', '/api/v1/lab/lessons');
    const places = [
      ['/lab?s=naive,process-mutex,lock-and-hincrby,lua-sync&stock=5&buyers=30&nodes=2', async () => {
        await played('#page:not([hidden])');
        await page.click('#options summary');
        await page.click('#start');
        await page.waitForFunction(() => document.querySelectorAll('#table tr').length === 4, null, long);
      }],
      ['/lab/locks', () => played('#page:not([hidden])')],
      ['/lab/ids', () => played('.idea')],
      ...lessons.map(({ id }) => [`/lab/lessons/${id}`, async () => { await played('#theatre:not([hidden])'); await page.locator('details summary').click(); }]),
    ];
    for (const [path, ready] of places) {
      await page.setViewportSize({ width: 1280, height: 900 });
      await page.goto(path);
      await ready();
      const english = await page.evaluate(() => {
        const sentence = /[a-z]{2,}(?:,? [a-z]{2,}){1,}/, names = /fencing token|fail point/g; // two small words in a row; and terms of the field
        const found = [];
        const look = (words, where) => { if (sentence.test(words.replace(names, '').replace(/“[^”]*”|《[^》]*》/g, ''))) found.push(`${where}: ${words.trim()}`); };
        const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        for (let node = walker.nextNode(); node; node = walker.nextNode()) {
          // What goes over the wire and what is source stay as they are.
          if (!node.parentElement.closest('pre, #lang, script, .diagram .command, .diagram .meaning') && !(node.parentElement.closest('code') && !node.parentElement.closest('#keys th'))) look(node.textContent, node.parentElement.tagName);
        }
        for (const name of ['aria-label', 'title', 'placeholder', 'alt']) for (const element of document.querySelectorAll(`[${name}]`)) look(element.getAttribute(name), name);
        return found;
      });
      assert.deepEqual(english, [], path);
      for (const width of [360, 768, 1280, 1920, 2560]) {
        await page.setViewportSize({ width, height: width < 500 ? 780 : 1200 });
        const wide = await page.evaluate(() => document.documentElement.scrollWidth);
        assert.ok(wide <= width, `${path} at ${width}: ${wide}`);
      }
      if (path.includes('lessons/') && !path.endsWith('b11')) continue; // they differ in length, and b11 has most of everything
      await page.setViewportSize({ width: 1280, height: 900 });
      await page.evaluate(axe);
      const { violations } = await page.evaluate(() => globalThis.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'], resultTypes: ['violations'] }));
      assert.deepEqual(violations.map(({ id, nodes }) => `${path}: ${id}: ${nodes.map(({ html }) => html).join(' ')}`), []);
    }
    await page.leave();
  });

  for (const [locale, lang] of [['en-US', 'en'], ['zh-CN', 'zh-Hans']]) {
    it(`the lab is accessible in both themes, fits every screen and says nothing in the console: ${lang}`, async () => {
      const page = await visit({ locale, reducedMotion: 'reduce' });
      for (const [name, path, ready] of EVERY) {
        await page.setViewportSize({ width: 1280, height: 900 });
        await page.goto('about:blank');
        await page.goto(path);
        await ready(page);
        assert.equal(await page.getAttribute('html', 'lang'), lang, name);
        assert.doesNotMatch(await page.evaluate(() => { // what is source code may look like a key
          const copy = document.body.cloneNode(true);
          copy.querySelectorAll('code').forEach((code) => code.remove());
          return copy.textContent;
        }), /NaN|undefined|\bnull\b|Invalid|\[object|\{\w+\}|\b(?:lab|lesson|locks|ids)\.[a-z_]+\b/, `${name}: a value or a key shows through`);
        await page.evaluate(axe);
        for (const [theme, options] of [
          ['light', { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] }],
          ['dark', { runOnly: { type: 'rule', values: ['color-contrast'] } }],
        ]) {
          await page.emulateMedia({ colorScheme: theme });
          const { violations } = await page.evaluate((how) => globalThis.axe.run(document, how), { ...options, resultTypes: ['violations'] });
          assert.deepEqual(violations.map(({ id, nodes }) => `${name} ${theme}: ${id}: ${nodes.map(({ html, failureSummary }) => `${html}\n${failureSummary}`).join('\n')}`), []);
          await page.screenshot({ path: join(stage.shots, `${name}-${lang}-${theme}.png`), fullPage: theme === 'light' });
        }
        await page.emulateMedia({ colorScheme: 'light' });
        const sizes = await typeSizes(page);
        assert.ok(sizes.length <= 3, `${name} has ${sizes.length} sizes of type: ${sizes.join('\n')}`);
        for (const width of [360, 768, 1280, 1920, 2560]) {
          await page.setViewportSize({ width, height: width < 500 ? 780 : 1200 });
          const wide = await page.evaluate(() => document.documentElement.scrollWidth);
          assert.ok(wide <= width, `${name} at ${width}: ${wide}`);
        }
      }
      await page.leave();
    });
  }

  it('above 1600 pixels nothing on the lab’s pages is written too small for the last row of a room', async () => {
    const page = await visit({ width: 1920, height: 1080, reducedMotion: 'reduce' });
    for (const [name, path, ready] of EVERY) {
      await page.goto('about:blank');
      await page.goto(path);
      await ready(page);
      assert.deepEqual(await tooSmall(page), [], name);
    }
    await page.leave();
  });

  it('on a phone the place where one is in the lab is in sight', async () => {
    const page = await visit({ width: 390, height: 780 });
    await page.goto('/lab/ids');
    await page.waitForSelector('.idea');
    const { left, right } = await page.locator('.rooms [aria-current]').evaluate((link) => { const { left: from, right: to } = link.getBoundingClientRect(); return { left: from, right: to }; });
    assert.ok(left >= 0 && right <= 390, `${left} to ${right}`);
    await page.leave();
  });

  it('red means only that something is wrong, in both themes', async () => {
    const page = await visit({ reducedMotion: 'reduce' });
    for (const [name, path, ready] of EVERY) {
      await page.goto('about:blank');
      await page.goto(path);
      await ready(page);
      for (const colorScheme of ['light', 'dark']) {
        await page.emulateMedia({ colorScheme });
        const red = await page.evaluate(() => {
          const wrong = '.bad, .flaw, .no, .reason.no, .error, .overlap, .collision, .over, .excess, .acts .quiet, .violation, .wrong';
          const isRed = (colour) => { const [r, g, b, a = 1] = (colour.match(/[\d.]+/g) ?? []).map(Number); return a > 0 && r > 140 && r - g > 90 && r - b > 90 && Math.abs(g - b) < 60; };
          return [...document.querySelectorAll('main *, .top a, .top button')].filter((element) => element.checkVisibility() && !element.closest(wrong))
            .filter((element) => { const { color, backgroundColor, borderLeftColor, borderLeftWidth, fill } = getComputedStyle(element); return [color, backgroundColor, parseFloat(borderLeftWidth) ? borderLeftColor : '', element.closest('svg') ? fill : ''].some(isRed); })
            .map((element) => element.outerHTML.slice(0, 160));
        });
        assert.deepEqual(red, [], `${name}, ${colorScheme}`);
      }
    }
    await page.leave();
  });

  it('headings and numerals have a face of their own, with Chinese ones behind it', async () => {
    const page = await visit();
    const fetched = new Set();
    page.on('request', (request) => { if (request.resourceType() === 'font') fetched.add(request.url()); });
    for (const [name, path, ready] of EVERY.filter(([one]) => one !== 'lab-off')) {
      await page.goto('about:blank');
      await page.goto(path);
      await ready(page);
      assert.ok(await page.evaluate(() => document.fonts.ready.then((fonts) => [...fonts].some(({ family, status }) => family === 'Archivo Narrow' && status === 'loaded'))), name);
      const faces = await page.evaluate(() => ['body', ...['h1', 'h2', '.score strong', '.count strong'].filter((one) => document.querySelector(`main ${one}`))].map((one) => getComputedStyle(document.querySelector(one === 'body' ? one : `main ${one}`)).fontFamily));
      const [body, ...display] = faces;
      for (const face of display) assert.ok(face !== body && /Archivo Narrow.*PingFang SC.*Noto Sans CJK SC/.test(face), `${name}: ${face}`);
    }
    assert.equal(fetched.size, 1, [...fetched].join());
    await page.leave();
  });

  it('a link to /lab/why or to a lesson shows a title and a picture where it is shared', async () => {
    const { url } = stage.server;
    const shown = async (path, headers = {}) => {
      const html = await (await fetch(url + path, { headers })).text();
      return Object.fromEntries([...html.matchAll(/<meta property="([\w:]+)" content="([^"]*)">/g)].map(([, name, content]) => [name, content]));
    };
    const why = await shown('/lab/why'), { lessons } = await stage.server.call('GET', '/api/v1/lab/lessons?lang=en'), b03 = lessons.find(({ id }) => id === 'b03');
    assert.match(why['og:title'], /^\d+ sold\. 10 existed\.$/);
    assert.equal(why['og:url'], `${url}/lab/why`);
    const lesson = await shown('/lab/lessons/b03');
    assert.deepEqual([escaped(b03.title), escaped(b03.lead)], [lesson['og:title'], lesson['og:description']].map((one) => one.replaceAll('&quot;', '"')));
    assert.deepEqual([(await shown('/lab'))['og:title'], (await shown('/lab'))['og:image']], [why['og:title'], why['og:image']]);
    const chinese = await shown('/lab/lessons/b03', { 'accept-language': 'zh-CN' });
    assert.match(chinese['og:title'], /[\u4e00-\u9fff]/);
    for (const picture of [why['og:image'], lesson['og:image']]) {
      const answer = await fetch(picture), bytes = Buffer.from(await answer.arrayBuffer());
      assert.deepEqual([answer.status, answer.headers.get('content-type'), bytes.readUInt32BE(16), bytes.readUInt32BE(20)], [200, 'image/png', 1200, 630], picture);
      assert.ok(bytes.length < 60_000, `${bytes.length} bytes`);
    }
    assert.deepEqual(await shown('/lab/lessons/nonsense'), {}, 'of what there is not, nothing');
  });

  it('a first visit to the lab costs less than 60 KB without what the server tells, and less than 110 KB with it', async () => {
    for (const path of ['/lab', '/lab/lessons/b03', '/lab/why']) {
      const page = await visit();
      const wire = await page.context().newCDPSession(page);
      // By address: the browser asks for the icon as often as it likes.
      const [asked, weights] = [new Map(), new Map()];
      await wire.send('Network.enable');
      wire.on('Network.requestWillBeSent', ({ requestId, request }) => { if (!/\/api\/|\.woff2$/.test(request.url)) asked.set(requestId, request.url); }); // the font is the shop's, too
      wire.on('Network.loadingFinished', ({ requestId, encodedDataLength }) => { if (asked.has(requestId)) weights.set(asked.get(requestId), encodedDataLength); });
      await page.goto(path, { waitUntil: 'load' });
      await page.waitForSelector('#page:not([hidden]), #crowd i');
      const bytes = [...weights.values()].reduce((sum, weight) => sum + weight, 0);
      assert.ok(bytes > 5_000 && bytes < HEAVIEST, `${path}: ${bytes} bytes`);
      await page.leave();
    }
    const page = await stage.visit();
    const wire = await page.context().newCDPSession(page);
    let all = 0;
    await wire.send('Network.enable');
    const fonts = new Set();
    wire.on('Network.requestWillBeSent', ({ requestId, request }) => { if (request.url.endsWith('.woff2')) fonts.add(requestId); });
    wire.on('Network.loadingFinished', ({ requestId, encodedDataLength }) => { if (!fonts.has(requestId)) all += encodedDataLength; });
    await page.goto('/lab', { waitUntil: 'load' });
    await page.waitForSelector('.lesson-card');
    assert.ok(all > 50_000 && all < 110_000, `${all} bytes: the texts and sources of all strategies travel compressed`);
    await page.leave();
  });
}
