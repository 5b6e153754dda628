// What `lab export` writes, from a plain file server below another path: no server of ours, and all
// of it still there.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { extname, join, normalize } from 'node:path';
import { promisify } from 'node:util';
import { after, before, describe, it } from 'node:test';
import { PROGRAM, visitor } from './support.mjs';

const BELOW = '/some/sub-path/';
const TYPES = { '.css': 'text/css', '.html': 'text/html', '.js': 'text/javascript', '.json': 'application/json', '.svg': 'image/svg+xml' };

/** Files as they are, and nothing else. `asked` is what was asked for, with its status. */
async function hostOf(folder) {
  const asked = [];
  const server = createServer(async ({ url }, response) => {
    const { pathname } = new URL(url, 'http://host');
    const file = pathname === BELOW ? 'index.html' : normalize(pathname.slice(BELOW.length));
    const content = pathname.startsWith(BELOW) && !file.startsWith('..') ? await readFile(join(folder, file)).catch(() => null) : null;
    asked.push(`${content ? 200 : 404} ${pathname}`);
    response.writeHead(content ? 200 : 404, { 'content-type': TYPES[extname(file)] ?? 'text/plain' }).end(content);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return { asked, url: `http://127.0.0.1:${server.address().port}`, close: () => server.close() };
}

export function exported(stage) {
  describe('exported pages', () => {
    let folder, site, host, files;
    const visit = async (options) => {
      const page = await visitor(stage.browser, host, options), base = host.url + BELOW;
      page.strayed = [];
      page.on('request', (request) => { if (!/^(?:blob|data):/.test(request.url()) && !request.url().startsWith(base)) page.strayed.push(request.url()); });
      page.open = (file) => page.goto(BELOW + file);
      return page;
    };

    before(async () => {
      folder = await mkdtemp(join(tmpdir(), 'flash-sale-export.'));
      site = join(folder, 'site');
      const { stdout, stderr } = await promisify(execFile)(PROGRAM, ['lab', 'export', site], { cwd: folder, env: { ...process.env, ...stage.server.stores, RUST_LOG: 'error' } });
      assert.match(stdout, /\d+ files, \d+ KB/);
      assert.match(stderr, /recording 13 lessons and \d+ lanes/);
      files = (await readdir(site)).filter((name) => name.endsWith('.html'));
      host = await hostOf(site);
    });
    after(async () => {
      host?.close();
      await rm(folder, { recursive: true, force: true });
    });

    it('is no more than a host takes, and is not written over what is not its own', async () => {
      const all = await readdir(site, { recursive: true, withFileTypes: true });
      const sizes = await Promise.all(all.filter((one) => one.isFile()).map(async (one) => (await readFile(join(one.parentPath, one.name))).length));
      const bytes = sizes.reduce((sum, size) => sum + size, 0);
      assert.ok(bytes > 1_000_000 && bytes < 5_000_000, `${bytes} bytes`);
      await writeFile(join(site, 'mine.txt'), 'precious');
      const again = await promisify(execFile)(PROGRAM, ['lab', 'export', site], { cwd: folder }).catch((error) => error);
      assert.equal(again.code, 2);
      assert.match(again.stderr, /site is not empty/);
      await rm(join(site, 'mine.txt'));
    });

    for (const [locale, lang, note, over] of [['en-US', 'en', /This is a recording of \d{4}-\d\d-\d\d, by flash-sale [\d.]+\./, 'Over.'], ['zh-CN', 'zh-Hans', /flash-sale [\d.]+ 于 \d{4}-\d\d-\d\d 录制的回放/, '结束了。']]) {
      it(`every page says what it is, shows all, leads nowhere else and offers nothing that needs a server: ${lang}`, async () => {
        const page = await visit({ locale, reducedMotion: 'reduce' });
        assert.deepEqual(files.length, 13 + 4);
        for (const file of ['', ...files]) {
          await page.open(file);
          await page.waitForSelector('#page:not([hidden]) #presets, #page:not([hidden]) .locks, #theatre:not([hidden]), .idea, #crowd i');
          assert.equal(await page.getAttribute('html', 'lang'), lang, file);
          const notes = await page.locator('.recording:visible').allTextContents();
          assert.ok(notes.length === 1 && note.test(notes[0]), `${file}: ${notes}`);
          const absolute = await page.evaluate(() => [...document.querySelectorAll('[href], [src]')].map((one) => one.getAttribute('href') ?? one.getAttribute('src')).filter((address) => /^(?:\/|https?:)/.test(address)));
          assert.deepEqual(absolute.filter((address) => !address.startsWith(host.url + BELOW)), [], file); // where a script has set it
          const needy = await page.locator('#start, #setup, #picker, #server, .shows, #again, #measure, #report, #wall').evaluateAll((found) => found.filter((one) => one.checkVisibility()).map(({ id }) => id));
          assert.deepEqual(needy, [], file);
          for (const link of await page.locator('main a[href], nav a[href]').evaluateAll((links) => links.map(({ href }) => href))) assert.ok(files.includes(new URL(link).pathname.slice(BELOW.length)), `${file} leads to ${link}`);
        }
        assert.deepEqual(page.strayed, []);
        await page.leave();
      });

      it(`${lang === 'en' ? 'a race of every preset runs' : 'a race runs'} to its verdicts: ${lang}`, async () => {
        const page = await visit({ locale, reducedMotion: 'reduce' });
        await page.open('');
        await page.waitForSelector('#page:not([hidden])');
        const presets = page.locator('#presets button'), races = lang === 'en' ? await presets.count() : 1; // they take as long as they took
        for (let nth = 0; nth < races; nth++) {
          await presets.nth(nth).click();
          await page.waitForFunction((words) => document.querySelector('#race-state').textContent !== words, over); // of the race before
          await page.waitForFunction((words) => document.querySelector('#race-state').textContent === words, over, { timeout: 120_000 });
          const verdicts = await page.locator('.lane .predicted').allTextContents();
          assert.ok(verdicts.length > 1 && verdicts.every(Boolean), `${nth}: ${verdicts}`);
        }
        assert.ok(await page.locator('#table tr').count() >= 2 * races);
        await page.leave();
      });
    }

    it('the projector’s page races and leads on, a lesson plays to its end, and the other language is a click away', async () => {
      const page = await visit({ reducedMotion: 'reduce' });
      await page.open('why.html');
      await page.waitForSelector('#crowd i');
      await page.click('#go');
      await page.waitForSelector('#main[data-scene="raced"] #go[aria-disabled="false"]', { timeout: 60_000 });
      assert.ok(Number(await page.textContent('#left .count strong')) > 10, 'oversold');
      assert.ok(await page.isHidden('#recorded'), 'it is the race of the export');
      for (let n = 0; n < 7; n++) await page.keyboard.press('ArrowRight'); // not more: the race may already be over
      await page.waitForSelector('#main[data-scene="again"] #go[aria-disabled="false"]', { timeout: 60_000 });
      await page.keyboard.press('ArrowRight');
      assert.equal(await page.locator('#doors a:visible').count(), 2);
      await page.locator('#doors a').first().click();
      await page.waitForSelector('#table tr', { timeout: 60_000 });
      await page.locator('.rooms [data-room="lesson"]').click();
      await page.waitForSelector('#theatre:not([hidden])');
      await page.selectOption('#speed', '4');
      await page.locator('#seek').evaluate((seek) => { seek.value = seek.max - 4; seek.dispatchEvent(new Event('input')); });
      await page.click('#play');
      await page.waitForSelector('#end:disabled', { timeout: 120_000 });
      await page.locator('#verdict').waitFor();
      await page.locator('#prices').getByText(/n = \d/).first().waitFor(); // measured when it was exported
      await page.click('#strip li:nth-child(3) a');
      await page.waitForURL(/\/b03\.html(?:#1)?$/);
      await page.waitForSelector('#theatre:not([hidden])');
      const title = await page.textContent('#title');
      await page.click('#lang');
      await page.waitForSelector('html[lang="zh-Hans"] #theatre:not([hidden])');
      assert.notEqual(await page.textContent('#title'), title);
      assert.deepEqual(page.strayed, []);
      await page.leave();
    });

    it('nothing was asked for that is not there', () => {
      assert.deepEqual(host.asked.filter((one) => !one.startsWith(`200 ${BELOW}`)), []);
    });
  });
}
