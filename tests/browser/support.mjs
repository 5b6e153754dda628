// What the browser tests and the screenshots stand on: a private server of their own, and Chromium
// pages that complain.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmod, mkdtemp, readFile, rm } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

export const ROOT = fileURLToPath(new URL('../../', import.meta.url));
const require = createRequire(join(ROOT, '.tools/browser/')); // where scripts/browser_test.sh installs them
const { chromium } = require('playwright-core');
export const AXE = require.resolve('axe-core/axe.min.js');

export const PROGRAM = resolve(ROOT, process.env.FLASH_SALE_BIN ?? 'target/debug/flash-sale');
const CHROMIUM = process.env.CHROMIUM_BIN ?? '/usr/bin/chromium';
const ADMIN_TOKEN = 'a token for the browser tests only';

// ---- the server ---------------------------------------------------------------------------------

const CLEAN = Object.fromEntries(Object.entries(process.env).filter(([name]) => ['PATH', 'HOME', 'LANG', 'TMPDIR', 'USER'].includes(name)));

/** Starts a command of the program, and waits for the address that its ready line tells. */
async function command(words, cwd, env) {
  const started = spawn(PROGRAM, words, { cwd, env: { ...CLEAN, RUST_LOG: 'warn', ...env }, stdio: ['ignore', 'pipe', 'pipe'] });
  let said = '';
  started.stderr.on('data', (chunk) => { said = (said + chunk).slice(-20_000); });
  for await (const line of createInterface({ input: started.stdout })) {
    const [, url] = / ready on (http:\S+)/.exec(line) ?? [];
    if (!url) continue;
    started.stdout.resume();
    return { started, url };
  }
  throw new Error(`${words[0]} did not get ready:\n${said}`);
}

/** Stops it as an operator would, and waits until it has gone. */
async function stop(started) {
  if (!started || started.exitCode !== null || started.signalCode !== null) return;
  const gone = once(started, 'exit');
  started.kill('SIGTERM');
  await gone;
}

const freePort = () => new Promise((resolve, reject) => {
  const listener = createServer().on('error', reject).listen(0, '127.0.0.1', () => {
    const { port } = listener.address();
    listener.close(() => resolve(port));
  });
});

/** A payment provider: the sandbox, for a shop on this port. */
export class Provider {
  static async start(folder, port) {
    const provider = new Provider();
    provider.env = { PAYMENT_KEY: 'a key', PAYMENT_WEBHOOK_SECRET: 'a secret' };
    const { started, url } = await command(['sandbox-pay', '--listen-addr', '127.0.0.1:0', '--webhook-url', `http://127.0.0.1:${port}/api/v1/webhooks/payments`], folder, provider.env);
    Object.assign(provider, { process: started, url });
    provider.env.PAYMENT_URL = url;
    return provider;
  }

  /** What goes wrong from now on; what is not named goes right. */
  async faults(faults) {
    const response = await fetch(`${this.url}/v1/faults`, { method: 'PUT', headers: { authorization: `Bearer ${this.env.PAYMENT_KEY}`, 'content-type': 'application/json' }, body: JSON.stringify(faults) });
    assert.equal(response.status, 200);
  }

  close() { return stop(this.process); }
}

/**
 * An embedded server in a folder of its own, on a port of its own. Nothing of it is left after
 * close().
 */
export class Server {
  /** With `provider`, it pays with a sandbox. */
  static async start({ provider = false } = {}) {
    const server = new Server();
    server.folder = await mkdtemp(join(tmpdir(), 'flash-sale-pages.'));
    await chmod(server.folder, 0o711); // run as root, it starts Postgres as another user, who has to walk in here
    if (provider) {
      server.port = await freePort(); // the provider has to know it first
      server.provider = await Provider.start(server.folder, server.port);
    }
    await server.up();
    return server;
  }

  async up() {
    const { started, url } = await command(['serve'], this.folder, { // no .env of the checkout
      DATA_DIR: join(this.folder, 'data'), LISTEN_ADDR: `127.0.0.1:${this.port ?? 0}`, ADMIN_TOKEN, RATE_LIMIT: 'off', LAB: 'on', ...this.provider?.env,
    });
    Object.assign(this, { process: started, url, port: new URL(url).port });
  }

  async down() { await stop(this.process); }

  async close() {
    await this.down();
    await this.provider?.close();
    await rm(this.folder, { recursive: true, force: true });
  }

  async call(method, path, body, bearer) {
    const response = await fetch(this.url + path, {
      method, headers: { ...(bearer && { authorization: `Bearer ${bearer}` }), ...(body && { 'content-type': 'application/json' }) },
      body: body && JSON.stringify(body),
    });
    const answer = await response.json();
    assert.ok(response.ok, `${method} ${path}: ${JSON.stringify(answer)}`);
    return answer;
  }

  admin(method, path, body) { return this.call(method, `/api/v1/admin/sales${path}`, body, ADMIN_TOKEN); }

  /** A sale, open now and for an hour unless `more` says otherwise. */
  sale(more = {}) {
    return this.admin('POST', '', { title: 'A test sale', price_cents: 1999, original_price_cents: 4999, stock: 5, image_url: '/static/img/phone.svg', payment_timeout_secs: 300, ...more });
  }

  /** The token of a buyer who uses no browser. */
  async buyer() { return (await this.call('POST', '/api/v1/session', {})).token; }
  async buy(sale, token) { return this.call('POST', `/api/v1/sales/${sale.id}/orders`, undefined, token ?? await this.buyer()); }
  order(id, token) { return this.call('GET', `/api/v1/orders/${id}`, undefined, token); }
  /** For commands beside it. */
  get stores() { return { DATA_DIR: join(this.folder, 'data') }; }
  get adminToken() { return ADMIN_TOKEN; }
}

/** An instant this many milliseconds from now, as the API wants it. */
export const inMs = (ms) => new Date(Date.now() + ms).toISOString();

// ---- the browser --------------------------------------------------------------------------------

export const launch = () => chromium.launch({
  executablePath: CHROMIUM,
  args: ['--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});

/**
 * A visitor: a context of its own (cookies, storage) and a page that notes whatever it should not
 * have said. `expected` names failures that the test itself brings about, by a part of the message.
 * Without `hosted` the shop's pages pay at once, as where there is no payment page.
 */
export async function visitor(browser, server, { locale = 'en-US', theme = 'light', width = 1280, height = 900, expected = [], hosted = false, ...more } = {}) {
  const context = await browser.newContext({ baseURL: server.url, locale, colorScheme: theme, viewport: { width, height }, ...more });
  context.setDefaultTimeout(10_000);
  const page = await context.newPage();
  const complaints = [];
  page.on('console', (message) => {
    // What the policy forbids, Chromium reports as a console error too.
    if (['error', 'warning'].includes(message.type())) complaints.push(`${message.type()}: ${message.text()} (${message.location().url})`);
  });
  page.on('pageerror', (error) => complaints.push(`uncaught: ${error.message}`));
  page.context().on('requestfailed', (request) => {
    if (![server.url, server.provider?.url].includes(new URL(request.url()).origin)) complaints.push(`a request left this site: ${request.url()}`);
  });
  await context.addInitScript(() => {
    document.addEventListener('securitypolicyviolation', (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
  });
  if (!hosted) {
    await context.addInitScript(() => new MutationObserver((_, observer) => {
      document.querySelector('meta[name="payment-page"]')?.remove();
      if (document.body) observer.disconnect();
    }).observe(document, { childList: true, subtree: true }));
  }
  page.verify = () => assert.deepEqual(complaints.filter((one) => !expected.some((part) => one.includes(part))), []);
  page.leave = async () => {
    page.verify();
    await page.unrouteAll({ behavior: 'ignoreErrors' }); // of a question that is still on its way, a closed page wants no answer, so no handler may assert
    await context.close();
  };
  return page;
}

/** Until `check` answers something true; the test fails by its own time limit. */
export async function eventually(check, what = 'it', withinMs = 15_000) {
  for (const end = Date.now() + withinMs; Date.now() < end;) {
    const found = await check();
    if (found) return found;
    await new Promise((tick) => { setTimeout(tick, 50); });
  }
  assert.fail(`${what} did not happen within ${withinMs} ms`);
}

// ---- type ---------------------------------------------------------------------------------------

/** [{px, family, html}] of whatever is written where one sees it, below these. */
const written = (page, within) => page.evaluate((roots) => [...document.querySelectorAll(roots)]
  .filter((element) => element.checkVisibility() && !element.closest('.unseen, .skip') && [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
  .map((element) => ({ px: parseFloat(getComputedStyle(element).fontSize), family: getComputedStyle(element).fontFamily, html: element.outerHTML.slice(0, 200), drawn: Boolean(element.closest('svg')) })), within);

/** What is written in less than 24 pixels, below these: too small for the last row of a room. */
export const tooSmall = async (page, within = 'main *, .top *, footer *') => (await written(page, within)).filter(({ px }) => px < 24).map(({ html }) => html);

/** The sizes of a page's words, evidence in monospace and drawings apart. */
export const typeSizes = async (page) => [...new Map((await written(page, 'main *, .top *, footer *')).filter(({ family, drawn }) => !drawn && !/mono/i.test(family)).map(({ px, html }) => [px, `${px}: ${html}`])).values()];

// ---- pictures -----------------------------------------------------------------------------------

/** The picture that a click saves: {name, width, height, red}, the last in pixels. */
export async function saved(page, click) {
  const [download] = await Promise.all([page.waitForEvent('download'), click()]);
  const png = await readFile(await download.path(), 'base64');
  const seen = await page.evaluate(async (base64) => {
    const image = Object.assign(new Image(), { src: `data:image/png;base64,${base64}` });
    await image.decode();
    const { width, height } = image, pen = Object.assign(document.createElement('canvas'), { width, height }).getContext('2d');
    pen.drawImage(image, 0, 0);
    const { data } = pen.getImageData(0, 0, width, height);
    let red = 0;
    for (let at = 0; at < data.length; at += 4) if (data[at] - data[at + 1] > 90 && data[at] - data[at + 2] > 90) red++;
    return { width, height, red };
  }, png);
  return { name: download.suggestedFilename(), ...seen };
}
