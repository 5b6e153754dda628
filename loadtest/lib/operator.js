// What the operator does: makes a sale, ends it, and asks the audit whether all was correct.

import { Gauge } from 'k6/metrics';
import { acceptedMinusRows } from './flash.js';
import { giveUp, guarded, promise } from './promises.js';
import { admin, waitFor } from './requests.js';

/**
 * For scripts that end with `judge`: every purchase answered 202 is a row, and there is no row that
 * nobody was told of.
 */
export const nothingLost = { flash_accepted_minus_rows: ['count==0'] };

const auditLive = new Gauge('flash_audit_live');
const auditOversold = new Gauge('flash_audit_oversold');

/** Creates a sale of its own for this run; open from now on, unless `fields` has an `opens_at`. */
export function createSale(fields) {
  const response = admin('POST', '/sales', { currency: 'EUR', price_cents: 9900, ...fields }, '/api/v1/admin/sales');
  if (response.status !== 201) giveUp(`The sale could not be created: ${response.status} ${response.body || response.error}`);
  return response.data;
}

/** The audit of this moment; null if there is no answer. */
export function readAudit(saleId) {
  const response = admin('GET', `/sales/${saleId}/audit`, undefined, '/api/v1/admin/sales/{id}/audit');
  return response.status === 200 ? response.data : null;
}

/**
 * Asks the audit until nothing is on its way any more, and counts what it must say. Answers the
 * last audit. A backlog that does not drain within the seconds is itself a broken promise
 * (invariant I10).
 */
export function auditWhenQuiet(saleId, seconds = 30) {
  let audit = null;
  waitFor(
    () => {
      audit = readAudit(saleId) || audit;
      return audit && audit.quiescent;
    },
    seconds,
    0.2,
  );
  if (!promise(audit, `GET /api/v1/admin/sales/${saleId}/audit gave no audit within ${seconds} s`)) return null;
  auditLive.add(audit.live);
  auditOversold.add(audit.oversold);
  promise(audit.quiescent, `the sale is quiet within ${seconds} s of the last purchase (backlog ${audit.backlog})`);
  promise(audit.ok, `the audit is ok; it says: ${(audit.problems || []).join('; ') || 'nothing'}`);
  promise(audit.oversold === 0, `nothing is oversold (${audit.oversold})`);
  promise(audit.duplicate_users === 0, `nobody has more than their share (${audit.duplicate_users} have)`);
  promise(audit.conserved === true, `stock = remaining + held + paid, in Redis and in Postgres (${audit.conserved})`);
  return audit;
}

/** Every order of a sale, as the operator sees them, a page at a time. */
export function allOrders(saleId) {
  const PAGE = 1000;
  const orders = [];
  for (;;) {
    const after = orders.length > 0 ? `&after=${orders[orders.length - 1].order_id}` : '';
    const path = `/sales/${saleId}/orders?limit=${PAGE}${after}`;
    const response = admin('GET', path, undefined, '/api/v1/admin/sales/{id}/orders');
    const page = (response.data && response.data.orders) || [];
    orders.push(...page);
    if (page.length < PAGE) return orders;
  }
}

/** Ends a sale for good, so that no purchase is accepted any more. */
export function closeSale(saleId) {
  return admin('POST', `/sales/${saleId}/close`, undefined, '/api/v1/admin/sales/{id}/close');
}

/**
 * The whole teardown of a script that has one sale: closes it, waits for the audit, and compares it
 * with what the buyers were told. `check(audit)` adds what only that script knows. `setupData` is
 * what setup() returned, with `saleId` in it.
 */
export function judge(setupData, check = () => {}) {
  if (!setupData) return; // given up in setup; there is nothing to judge
  guarded(() => {
    const closed = closeSale(setupData.saleId);
    promise(closed.status === 200, `the operator can end the sale (${closed.status} ${closed.body || closed.error})`);
    const audit = auditWhenQuiet(setupData.saleId);
    if (!audit) return;
    acceptedMinusRows.add(-(audit.live + audit.cancelled + audit.expired + audit.rejected));
    promise(audit.rejected === 0, `no winner was rejected afterwards; the audit counts ${audit.rejected}`);
    check(audit);
  });
}
