// A few impatient people, each clicking again and again, all at once.
//
//   k6 run loadtest/duplicates.js                    50 people, 100 clicks each
//   k6 run -e SHORT=1 loadtest/duplicates.js         10 people, 40 clicks each
//
// Every other person sends an Idempotency-Key, the same with each click, and is answered with the
// same order each time. The others are told already_ordered and which order that is. There are
// units for everybody, so only the rule of one each keeps them from a second. The run fails unless
// everybody has exactly one order and was never told of another.

import exec from 'k6/execution';
import { buyer, findBuyers } from './lib/buyers.js';
import { buy } from './lib/flash.js';
import { createSale, judge, nothingLost } from './lib/operator.js';
import { always, alwaysTrue, guarded, promise } from './lib/promises.js';
import { summary } from './lib/report.js';
import { call, serverOrGiveUp } from './lib/requests.js';
import { SHORT, wholeNumber } from './lib/settings.js';

const PEOPLE = wholeNumber('PEOPLE', SHORT ? 10 : 50, 2);
const CLICKS = wholeNumber('CLICKS', SHORT ? 40 : 100, 2);
const WITH_KEY = Math.ceil(PEOPLE / 2);

export const options = {
  ...always,
  scenarios: {
    clicks: { executor: 'shared-iterations', iterations: PEOPLE * CLICKS, vus: Math.min(50, CLICKS), maxDuration: '5m' },
  },
  thresholds: {
    ...alwaysTrue,
    ...nothingLost,
    flash_won: [`count==${PEOPLE}`],
    flash_replayed: [`count==${WITH_KEY * (CLICKS - 1)}`],
    flash_already_ordered: [`count==${(PEOPLE - WITH_KEY) * (CLICKS - 1)}`],
  },
};

export function setup() {
  serverOrGiveUp();
  const buyers = findBuyers(PEOPLE);
  const sale = createSale({ title: 'Duplicate storm (k6)', stock: PEOPLE * 2, payment_timeout_secs: 900 });
  return { buyers, saleId: sale.id };
}

export default function ({ buyers, saleId }) {
  guarded(() => {
    // One person's clicks follow each other, so that the VUs send them at the same time.
    const person = Math.floor(exec.scenario.iterationInTest / CLICKS);
    const token = buyer(buyers, person);
    const { order_id } = buy(token, saleId, person % 2 === 0 ? { key: `one-purchase-${person}` } : {});
    // VUs cannot compare what they were told. But the order can be read only by its owner, and
    // teardown finds that the owner has one; so this was that one.
    const order = call('GET', `/api/v1/orders/${order_id}`, { token, name: 'GET /api/v1/orders/{id}' });
    promise(
      order.status === 200 && order.data && order.data.sale_id === saleId,
      `every click is told of an order of the one who clicked (${order.status} ${order.body})`,
    );
  });
}

export function teardown(setupData) {
  judge(setupData, (audit) => {
    promise(audit.live === PEOPLE, `${PEOPLE} people have ${PEOPLE} orders; the audit counts ${audit.live}`);
    let others = 0;
    for (let person = 0; person < PEOPLE; person++) {
      const mine = call('GET', '/api/v1/orders', { token: buyer(setupData.buyers, person) }).data;
      const here = ((mine && mine.orders) || []).filter((order) => order.sale_id === setupData.saleId);
      if (here.length !== 1) others += 1;
    }
    promise(others === 0, `everybody's own list has one order of this sale; those of ${others} people have not`);
  });
}

export function handleSummary(data) {
  return summary('duplicates', data, {
    more: (read) => [['one each', `${PEOPLE} people, ${PEOPLE * CLICKS} clicks, ${read.count('flash_won')} orders`]],
  });
}
