// What shoppers do, and how it ended: winners and others are counted and timed apart.
//
// The scripts were run on k6 1.1.0, and import nothing from the network.

import { Counter, Trend } from 'k6/metrics';
import { complain } from './promises.js';
import { call, waitFor } from './requests.js';

export { buyer } from './buyers.js';
export { call };

// One counter for each way a purchase can end. Together they add up to the attempts.
const endings = {
  won: new Counter('flash_won'),
  replayed: new Counter('flash_replayed'), // the same Idempotency-Key again: the order of the first time
  sold_out: new Counter('flash_sold_out'),
  already_ordered: new Counter('flash_already_ordered'),
  closed: new Counter('flash_closed'), // not open yet, paused, ended
  contended: new Counter('flash_contended'), // only in the lab: gave up waiting for the others
  failed: new Counter('flash_failed'), // only in the lab
  unavailable: new Counter('flash_unavailable'), // 503: admission is closed or the backlog is full; no stock was taken
  unexpected: new Counter('flash_unexpected'), // no answer, 5xx, or an answer that the API's document (/docs) does not know
};
/** Their names, in the order in which a verdict has them. */
export const ENDINGS = Object.keys(endings);

// A refusal is much cheaper than a sale. In one average the thousands who lose would hide the ten
// who win.
const wonTime = new Trend('flash_won_ms', true);
const lostTime = new Trend('flash_lost_ms', true);

// Goes up with every 202 and, at the end, down by the rows of the audit. VUs share nothing else
// that could be compared.
export const acceptedMinusRows = new Counter('flash_accepted_minus_rows');

// The codes of the API's document, by how they count. `rate_limited` is not among them: `call` ends
// the run.
const ENDING_OF_CODE = {
  sold_out: 'sold_out',
  already_ordered: 'already_ordered',
  not_open: 'closed',
  paused: 'closed',
  ended: 'closed',
  unavailable: 'unavailable',
};

/** Counts and times the end of one attempt: winners and others apart. */
export function countEnding(ending, milliseconds) {
  endings[ending].add(1);
  if (ending !== 'unexpected') (ending === 'won' ? wonTime : lostTime).add(milliseconds);
}

/** One attempt to buy. Counts and times it, and answers `{ending, code, order_id, response}`. */
export function buy(token, saleId, { key } = {}) {
  const response = call('POST', `/api/v1/sales/${saleId}/orders`, {
    token,
    headers: key ? { 'Idempotency-Key': key } : {},
    name: 'POST /api/v1/sales/{id}/orders',
  });
  const order_id = response.data && response.data.order_id;
  const ending = endingOf(response);
  countEnding(ending, response.timings.duration);
  if (ending === 'won') acceptedMinusRows.add(1);
  if (ending === 'unexpected') complain(`an order was answered ${response.status} ${response.body || response.error}`);
  return { ending, code: response.code, order_id, response };
}

function endingOf({ status, headers, data, code }) {
  if (status === 202 && data && data.order_id) return headers['Idempotent-Replayed'] === 'true' ? 'replayed' : 'won';
  return (status >= 400 && ENDING_OF_CODE[code]) || 'unexpected';
}

/** Reads an order until `until(order)` or until the seconds are over; answers the last one read. */
export function followOrder(token, orderId, until, seconds = 10) {
  let order = null;
  waitFor(() => {
    const response = call('GET', `/api/v1/orders/${orderId}`, { token, name: 'GET /api/v1/orders/{id}' });
    order = response.data;
    return response.status === 200 && until(order);
  }, seconds);
  return order;
}

/** Pays or cancels an order. */
export function act(verb, token, orderId) {
  return call('POST', `/api/v1/orders/${orderId}/${verb}`, { token, name: `POST /api/v1/orders/{id}/${verb}` });
}

/**
 * The same for a person who has just bought: an order that is on its way into the database answers
 * `still_queued`.
 */
export function actWhenWritten(verb, token, orderId) {
  let response;
  waitFor(() => {
    response = act(verb, token, orderId);
    return response.code !== 'still_queued';
  });
  return response;
}

/** Reads a sale as everybody sees it. */
export function readSale(saleId) {
  return call('GET', `/api/v1/sales/${saleId}`, { name: 'GET /api/v1/sales/{id}' });
}
