// A server of the visitor's own as a lane beside the built-in strategies: the real judge, and the
// servers of examples/.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { axe, loaded } from './lab-support.mjs';
import { ROOT, eventually } from './support.mjs';

const LONG = { timeout: 90_000 };

async function listening(server) {
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return server.address().port;
}

async function freePort() {
  const probe = createServer(), port = await listening(probe);
  probe.close();
  await once(probe, 'close');
  return port;
}

/** A server of examples/node/, in a folder of its own; `run(address)` meanwhile. */
async function beside(name, run) {
  const folder = await mkdtemp(join(tmpdir(), 'flash-sale-example.')), port = await freePort();
  const server = spawn(process.execPath, [join(ROOT, `examples/node/${name}.mjs`)], { cwd: folder, env: { PORT: String(port) }, stdio: ['ignore', 'pipe', 'inherit'] });
  const gone = once(server, 'exit');
  try {
    await Promise.race([once(server.stdout, 'data'), gone.then(() => assert.fail(`${name} did not start`))]);
    await run(`http://127.0.0.1:${port}`);
  } finally {
    server.kill();
    await gone;
    await rm(folder, { recursive: true });
  }
}

const SMALL = 'stock=20&buyers=150&concurrency=32';

export function ownServers(stage) {
  describe('a server of one’s own', () => {
    const laneOf = (page) => page.locator('.lane').filter({ has: page.locator('.demonstrates code') });

    it('races beside a built-in strategy: the naive one turns red, with the requests that prove it, and the cured one holds', async () => {
      const page = await stage.visit({ reducedMotion: 'reduce' });
      await page.goto(`/lab?s=conditional-update&${SMALL}`);
      await loaded(page);
      const field = page.getByRole('textbox', { name: 'Your own server' }), start = page.locator('#start'), lane = laneOf(page);
      await beside('naive', async (address) => {
        await field.fill(address.replace('http://', ''));
        await field.press('Tab');
        assert.ok(await page.isChecked('#pick-own-server'), 'an address is a lane');
        assert.equal(await field.inputValue(), address);
        assert.ok(page.url().includes(`s=conditional-update,own-server&server=${address}`), page.url());
        await start.click();
        await lane.locator('.lane-state', { hasText: 'Oversold by' }).waitFor(LONG);
        await page.locator('.lane.good', { hasText: 'Sold exactly' }).waitFor(LONG);
        assert.match(await lane.getAttribute('class'), /\bbad\b/);
        assert.ok(await lane.locator('.excess i').count() > 0);
        assert.match(await lane.locator('.explains').textContent(), /Orders beyond the stock: \d+\./);
        await lane.getByRole('button', { name: 'Why? Your server' }).click();
        const proof = await lane.locator('.asked tbody tr').allTextContents();
        assert.ok(proof.length > 2 && proof.every((row) => /^u\d+.*201 · sold · /.test(row)), proof.join('\n'));
        await page.evaluate(axe);
        const { violations } = await page.evaluate(() => globalThis.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'], resultTypes: ['violations'] }));
        assert.deepEqual(violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(' ')}`), []);
        const [report] = await Promise.all([page.waitForEvent('download'), lane.getByRole('link', { name: 'The whole report' }).click()]);
        assert.match(readFileSync(await report.path(), 'utf8'), /BROKEN \(oversold/);
        await page.waitForSelector('#table tr:nth-child(2)');
        assert.match(await page.textContent('#table'), /Your server.*Oversold by/);
      });
      await beside('cured', async (address) => {
        await page.goto('about:blank');
        await page.goto(`/lab?s=own-server&server=${address}&${SMALL}`); // a shared link
        await loaded(page);
        assert.equal(await field.inputValue(), address);
        await start.click();
        await page.locator('.lane.good', { hasText: 'Your server' }).waitFor(LONG);
        assert.equal(await lane.locator('.lane-state').textContent(), 'Sold exactly');
        assert.equal(await lane.locator('.explains').textContent(), 'Every answer fits what is stored.');
        assert.ok(await lane.getByText('Per second').isVisible(), 'alone, its speed says something');
      });
      await page.leave();
    });

    it('that does not answer is not judged, and the page says which call failed and what is wanted', async () => {
      const page = await stage.visit({ locale: 'zh-CN' });
      const port = await freePort();
      await page.goto(`/lab?s=own-server&server=http://localhost:${port}&${SMALL}`);
      await loaded(page);
      await page.click('#start');
      const lane = laneOf(page);
      await lane.locator('.lane-state', { hasText: '无法裁决' }).waitFor(LONG);
      assert.match(await lane.getAttribute('class'), /\bwarn\b/, 'red is for what is wrong');
      assert.match(await lane.locator('.explains').textContent(), /抢购没能进行下去（.*POST \/reset.*docs\/judge\.md/);
      await page.waitForFunction(() => document.querySelector('#race-state').textContent === '结束了。');
      assert.ok(await page.isHidden('#results'), 'no verdict, no result');
      await page.leave();
    });

    it('goes on in the other language, and is left alone as soon as the race is stopped or the page has gone', async () => {
      let buying = 0; // purchases that nobody has given up
      const server = createServer((request, response) => {
        if (request.url === '/reset') return response.writeHead(204).end();
        if (request.method === 'GET') return response.end('{"orders":[],"remaining":20}');
        buying += 1;
        request.socket.once('close', () => { buying -= 1; });
      });
      const port = await listening(server);
      const page = await stage.visit();
      let begun = 0;
      page.on('request', (request) => { if (request.method() === 'POST' && request.url().endsWith('/judgements')) begun += 1; });
      await page.goto(`/lab?s=own-server&server=http://127.0.0.1:${port}&${SMALL}`);
      await loaded(page);
      await page.click('#start');
      await eventually(() => buying > 0, 'the storm');
      await page.getByRole('button', { name: '中文' }).click();
      await page.waitForSelector('html[lang="zh-Hans"]');
      await page.getByText('正在卖').waitFor();
      assert.equal(begun, 1, 'it is the same storm');
      await page.getByRole('button', { name: '停止' }).click();
      await eventually(() => buying === 0, 'its end');
      await page.getByRole('button', { name: '运行', exact: true }).click();
      await eventually(() => buying > 0, 'another storm');
      await page.goto('/lab/ids');
      await eventually(() => buying === 0, 'its end');
      await page.leave();
      server.close();
    });

    it('has to be on this machine, and so has its visitor', async () => {
      const page = await stage.visit({ expected: ['Cross-Origin-Opener-Policy'] }); // a page without HTTPS from elsewhere
      await page.goto('/lab?s=naive');
      await loaded(page);
      const top = async () => (await page.locator('#picker').boundingBox()).y, before = await top();
      await page.fill('#server', 'http://shop.example:9000');
      await page.locator('#server').blur();
      await page.getByText('This is no address of this machine.').waitFor();
      assert.equal(await page.getAttribute('#server', 'aria-invalid'), 'true');
      assert.ok(!await page.isChecked('#pick-own-server'));
      assert.equal(await top(), before, 'nothing moves');
      await page.route('http://shop.example/**', async (route) => route.fulfill({ response: await route.fetch({ url: route.request().url().replace('http://shop.example', stage.server.url) }) }));
      await page.goto('http://shop.example/lab?s=naive,own-server&server=http://127.0.0.1:9001');
      await loaded(page);
      assert.ok(await page.isDisabled('#server') && await page.isDisabled('#pick-own-server'));
      assert.match(await page.textContent('#t-server'), /flash-sale judge http:\/\/127\.0\.0\.1:9001/);
      assert.equal(await page.textContent('#start'), 'Run');
      await page.leave();
    });
  });
}
