// The comparison of locks, and the page of order numbers.

import assert from 'node:assert/strict';
import { it } from 'node:test';
import { loaded, visitorOf } from './lab-support.mjs';

export function locks(stage) {
  const visit = visitorOf(stage);

  it('the comparison of locks is one screen of signs, and each row opens to a reason and a test for each', async () => {
    const page = await visit({ width: 1280, height: 800 });
    await page.goto('/lab/locks');
    await loaded(page);
    assert.equal(await page.locator('#rows .answer').count(), 12);
    for (const cell of await page.locator('#rows .answer').allTextContents()) assert.match(cell, /^(✓yes|✕no|~partly)$/);
    assert.match(await page.locator('#rows .lock').first().textContent(), /84 µs, n = 500/, 'a cost says of how many');
    assert.equal(await page.locator('#rows .reason:visible').count(), 0);
    const open = page.getByRole('button', { name: 'Token lock' });
    await open.focus();
    await page.keyboard.press('Enter');
    assert.equal(await open.getAttribute('aria-expanded'), 'true');
    const reasons = await page.locator('#rows .reason:visible').allTextContents();
    assert.equal(reasons.length, 4);
    for (const reason of reasons) assert.match(reason, /(yes|no|partly).+Test: locks::/);
    await page.locator('#rows .more:visible').getByText('Use it when').waitFor();
    await page.getByText('A lock is a belief').waitFor();
    await page.leave();
  });

  it('how the costs were measured is said as the server says it, and on paper every row is open', async () => {
    const page = await visit();
    await page.goto('/lab/locks');
    await loaded(page);
    await page.getByText('Median of 500 rounds, the locks in turns.').waitFor();
    await page.emulateMedia({ media: 'print' });
    assert.equal(await page.locator('#rows .reason:visible').count(), 12);
    await page.leave();
  });

  it('locks are compared in four properties each, and order numbers explained', async () => {
    const page = await stage.visit();
    await page.goto('/lab/locks');
    await page.waitForSelector('#page:not([hidden])', { timeout: 60_000 });
    const locks = await page.locator('#rows .lock').count();
    assert.ok(locks >= 10, `${locks} locks`);
    for (const [width, height] of [[1280, 800], [1920, 1080]]) {
      await page.setViewportSize({ width, height });
      const bottom = await page.locator('#rows .lock').last().evaluate((row) => row.getBoundingClientRect().bottom);
      assert.ok(bottom <= height, `the last lock ends at ${bottom} of ${height}`);
    }
    assert.equal(await page.locator('#rows .answer:is(.yes, .no, .partly)').count(), locks * 4);
    await page.goto('/lab/ids');
    await page.waitForSelector('.idea', { timeout: 60_000 });
    assert.doesNotMatch(await page.locator('main').innerText(), /undefined|NaN|\[object/);
    await page.leave();
  });
}
