// What an operator typed → the body of POST /api/v1/admin/sales. No DOM: `value(name)` reads a
// field.

import { minorUnits } from './format.js';

/**
 * {body}, or {wrong: {key of the complaint, name of the field}} where only this page can know
 * better than the server.
 */
export function newSale(value, now) {
  const currency = value('currency');
  const body = { title: value('title'), currency, stock: Number(value('stock')), per_user_limit: Number(value('per_user_limit')) };
  for (const [field, name] of [['price_cents', 'price'], ['original_price_cents', 'original']]) {
    if (!value(name)) continue;
    body[field] = minorUnits(value(name), currency);
    if (body[field] === null) return { wrong: { key: 'admin.bad_amount', name } };
  }
  for (const name of ['description', 'image_url']) if (value(name)) body[name] = value(name);
  if (value('waiting_room')) body.waiting_room = {}; // with the server's own settings
  if (value('purchase_pass')) body.purchase_pass = true;
  if (value('challenge_bits')) body.challenge_bits = Number(value('challenge_bits'));
  if (value('payment_timeout_secs')) body.payment_timeout_secs = Number(value('payment_timeout_secs'));
  for (const name of ['opens_at', 'closes_at']) if (value(name)) body[name] = new Date(value(name)).toISOString();
  const opens = body.opens_at ? Date.parse(body.opens_at) : now;
  if (body.closes_at && Date.parse(body.closes_at) <= opens) return { wrong: { key: 'admin.bad_window', name: 'closes_at' } };
  return { body };
}
