// What the browser tests of the lab's pages share.

import { readFileSync } from 'node:fs';
import { stubLab } from './lab-stubs.mjs';
import { AXE } from './support.mjs';

export const axe = readFileSync(AXE, 'utf8');

export const loaded = (page) => page.waitForSelector('#page:not([hidden])');
export const staged = (page) => page.waitForSelector('#theatre:not([hidden])');

/** Makes visitors of a lab that answers as lab-stubs.mjs has it. */
export const visitorOf = (stage) => async (options = {}, how = {}) => {
  const page = await stage.visit(options);
  page.asked = await stubLab(page, how);
  return page;
};

/** As a text stands in HTML. */
export const escaped = (words) => words.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');

/** /lab/why after its race, which is shown square by square. */
export async function raced(page) {
  await page.waitForSelector('#crowd i');
  await page.click('#go');
  await page.waitForSelector('#main[data-scene="raced"] #go[aria-disabled="false"]', { timeout: 60_000 });
}

/** The reader, which is fetched when one comes near. */
export async function reads(page) {
  await page.locator('#reader').scrollIntoViewIfNeeded();
  await page.waitForSelector('#read-code .line');
}
