// Ten phones, thousands of hands: the classic flash sale, as fast as k6 can click.
//
//   k6 run loadtest/ten-phones.js                    2,000 different users, one attempt each
//   k6 run -e SHORT=1 loadtest/ten-phones.js         400 of them
//   k6 run -e ATTEMPTS=50000 -e TOKENS_FILE=tokens.json loadtest/ten-phones.js
//
// The run fails unless exactly ten are told that they won, everybody else is told "sold out", and the server's audit
// agrees afterwards, from its own database, that exactly ten units are sold.

import exec from 'k6/execution';
import { SHORT, admin, alwaysTrue, auditWhenQuiet, buy, buyer, createSale, findBuyers, guarded, promise, serverOrGiveUp, summary } from './lib/flash.js';

const UNITS = 10;
const ATTEMPTS = Number(__ENV.ATTEMPTS || (SHORT ? 400 : 2000));
if (!Number.isInteger(ATTEMPTS) || ATTEMPTS <= UNITS) throw new Error(`ATTEMPTS must be a whole number above ${UNITS}`);

export const options = {
  scenarios: {
    rush: {
      executor: 'shared-iterations',
      iterations: ATTEMPTS,
      vus: Math.min(SHORT ? 50 : 200, ATTEMPTS),
      maxDuration: SHORT ? '30s' : '5m',
    },
  },
  setupTimeout: '2m',
  teardownTimeout: '1m',
  thresholds: {
    ...alwaysTrue,
    flash_won: [`count==${UNITS}`],
    flash_sold_out: [`count==${ATTEMPTS - UNITS}`],
  },
};

export function setup() {
  serverOrGiveUp();
  const buyers = findBuyers(ATTEMPTS);
  // Nobody pays here, so the timeout must outlast the run: a lapsed order would give its unit to an eleventh winner.
  const sale = createSale({ title: 'Ten phones (k6)', stock: UNITS, payment_timeout_secs: 900 });
  return { buyers, saleId: sale.id };
}

export default function ({ buyers, saleId }) {
  // Each iteration is another user, whichever VU runs it.
  buy(buyer(buyers, exec.scenario.iterationInTest), saleId);
}

export function teardown(setupData) {
  if (!setupData) return; // given up in setup; there is nothing to judge
  guarded(() => {
    const audit = auditWhenQuiet(setupData.saleId);
    if (!audit) return;
    promise(audit.live === UNITS, `${UNITS} units are sold; the audit counts ${audit.live}`);
    promise(audit.remaining === 0, `no unit is left over; the audit counts ${audit.remaining}`);
    promise(audit.rejected === 0, `no winner was rejected afterwards; the audit counts ${audit.rejected}`);
  });
  admin('POST', `/sales/${setupData.saleId}/close`, undefined, '/api/v1/admin/sales/{id}/close');
}

export function handleSummary(data) {
  return summary('ten-phones', data);
}
