// Ten phones, thousands of hands: the classic flash sale, as fast as k6 can click.
//
//   k6 run loadtest/ten-phones.js                    2,000 different users, one attempt each
//   k6 run -e SHORT=1 loadtest/ten-phones.js         400 of them
//   k6 run -e ATTEMPTS=50000 -e TOKENS_FILE=tokens.json loadtest/ten-phones.js
//
// The run fails unless exactly ten are told that they won, everybody else is told "sold out", and
// the server's audit agrees afterwards, from its own database, that exactly ten units are sold.

import exec from 'k6/execution';
import { buyer, findBuyers } from './lib/buyers.js';
import { buy } from './lib/flash.js';
import { createSale, judge, nothingLost } from './lib/operator.js';
import { always, alwaysTrue, promise } from './lib/promises.js';
import { summary } from './lib/report.js';
import { serverOrGiveUp } from './lib/requests.js';
import { SHORT, wholeNumber } from './lib/settings.js';

const UNITS = 10;
const ATTEMPTS = wholeNumber('ATTEMPTS', SHORT ? 400 : 2000, UNITS + 1);

export const options = {
  ...always,
  scenarios: {
    rush: {
      executor: 'shared-iterations',
      iterations: ATTEMPTS,
      vus: Math.min(SHORT ? 50 : 200, ATTEMPTS),
      maxDuration: SHORT ? '30s' : '5m',
    },
  },
  thresholds: {
    ...alwaysTrue,
    ...nothingLost,
    flash_won: [`count==${UNITS}`],
    flash_sold_out: [`count==${ATTEMPTS - UNITS}`],
  },
};

export function setup() {
  serverOrGiveUp();
  const buyers = findBuyers(ATTEMPTS);
  // Nobody pays here, so the timeout must outlast the run: a lapsed order would give its unit to an
  // eleventh winner.
  const sale = createSale({ title: 'Ten phones (k6)', stock: UNITS, payment_timeout_secs: 900 });
  return { buyers, saleId: sale.id };
}

export default function ({ buyers, saleId }) {
  // Each iteration is another user, whichever VU runs it.
  buy(buyer(buyers, exec.scenario.iterationInTest), saleId);
}

export function teardown(setupData) {
  judge(setupData, (audit) => {
    promise(audit.live === UNITS, `${UNITS} units are sold; the audit counts ${audit.live}`);
    promise(audit.remaining === 0, `no unit is left over; the audit counts ${audit.remaining}`);
  });
}

export function handleSummary(data) {
  return summary('ten-phones', data);
}
