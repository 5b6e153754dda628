// The pages in real Chromium against a real server. Run: scripts/browser_test.sh
//
// One server and one browser for all; every test has visitors (cookies, storage) and sales of its
// own. Nothing waits a while and hopes: a test waits for what it wants to see, or for the server's
// clock.

import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before } from 'node:test';
import { admin } from './admin.mjs';
import { buying } from './buying.mjs';
import { lab } from './lab.mjs';
import { orders } from './orders.mjs';
import { outages } from './outages.mjs';
import { pages } from './pages.mjs';
import { payments } from './payments.mjs';
import { room } from './room.mjs';
import { shop } from './shop.mjs';
import { launch, ROOT, Server, visitor } from './support.mjs';
import { wall } from './wall.mjs';

/** What the suites share; filled before the first test. */
const stage = {
  shots: process.env.SHOTS ?? join(ROOT, 'target/browser-shots'),
  visit: (options) => visitor(stage.browser, stage.server, options),
};

before(async () => {
  await mkdir(stage.shots, { recursive: true });
  [stage.server, stage.browser] = await Promise.all([Server.start(), launch()]);
});

after(async () => {
  await stage.browser?.close();
  await stage.server?.close();
});

pages(stage); // first, while the lists are short: axe looks at every row
buying(stage);
room(stage);
shop(stage);
orders(stage);
payments(stage);
admin(stage);
wall(stage);
lab(stage);
outages(stage); // last, because it takes the server away
