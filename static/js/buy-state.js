// The buy button as a state machine: step(state, event) → {state, effects}. No DOM, no clock, no
// network, no chance: every event carries `now` (ms on the server's clock), and what must happen
// outside comes back as effects.
//
// state.name is one of
//   not_open  ready  sold_out  paused  ended            nothing of ours yet: what the sale is
//   buying    too_fast  unavailable                     an intent to buy is on its way, or waits
//   already   queued  pending_payment  paid             we have a live order
//   paying    cancelling                                and are doing something with it
//   expired   cancelled  rejected                       it is over: may buy again while the sale is `ready`
//
// An *intent* is one decision to buy. It lives from the click to a definite answer and keeps one
// Idempotency-Key through every retry, so however often it is sent, at most one order comes of it.
// It is `open` once an answer was lost.

const LIVE = ['queued', 'pending_payment', 'paid'];
const RANK = { unknown: 0, queued: 1, pending_payment: 2, paid: 3, cancelled: 3, expired: 3, rejected: 3 };

export const ARMING_MS = 700; // a double click on "buy" must not land on the "pay" that replaces it
const SILENT_RETRIES = 2; // after a lost connection: the outcome is unknown, and asking again resolves it
const AGAIN_MS = 5000; // where the outcome stays unknown, the page asks again by itself, after this long first
const AGAIN_MOST_MS = 60_000; // and this long in the end; chance adds up to as much again
const EARLY_MS = 2000; // told `not_open` this close to the opening, our clock was a little early: keep trying
const EARLY_RETRIES = 8;
const LATE_EVERY_MS = 3000; // past pay_by: how often to ask what became of the order

export function initial(sale, now) {
  return settle({
    name: 'ready', since: now, market: 'ready', sale, order: null, already: false, others: 0,
    intent: null, sending: false, hold: null, action: null, notice: null, askedLateAt: 0,
  }, now);
}

/** SALE as the API gives it → the part that the machine judges by. */
export const saleFacts = (sale) => ({
  state: sale.state, remaining: sale.remaining, limit: sale.per_user_limit ?? 1,
  opensAt: Date.parse(sale.opens_at), closesAt: Date.parse(sale.closes_at),
});

/** ORDER as the API gives it → the part that the machine judges by. */
export const orderFacts = (order) => ({
  id: order.order_id, status: order.status, payBy: order.pay_by ? Date.parse(order.pay_by) : null,
  ...(order.payment && { payment: order.payment }),
});

/**
 * The window is judged by the clock: a page opened early must not wait for news to learn that the
 * second has come.
 */
function marketOf(sale, now) {
  if (sale.state === 'ended' || now >= sale.closesAt) return 'ended';
  if (now < sale.opensAt) return sale.state === 'paused' ? 'paused' : 'not_open';
  if (sale.state === 'paused') return 'paused';
  return sale.state === 'sold_out' || sale.remaining <= 0 ? 'sold_out' : 'ready';
}

function nameOf(s) {
  if (s.sending) return 'buying';
  if (s.action) return s.action === 'pay' ? 'paying' : 'cancelling';
  if (s.hold?.why === 'unavailable') return 'unavailable';
  if (s.order?.status === 'unknown') return 'already';
  if (s.order && LIVE.includes(s.order.status)) return s.order.status;
  if (s.hold) return 'too_fast';
  return s.order ? s.order.status : s.market;
}

/** Whether a click on "buy" counts now. */
export function canBuy(s, now) {
  if (s.sending || s.action || (s.hold && now < s.hold.until)) return false;
  if (s.hold?.why === 'unavailable') return true; // its outcome is unknown; only the server can say
  if (s.market !== 'ready' || s.order?.status === 'unknown') return false;
  const live = s.others + (s.order && LIVE.includes(s.order.status) ? 1 : 0);
  return live < s.sale.limit && !['queued', 'pending_payment'].includes(s.order?.status);
}

/** Whether a click on "pay" counts now. */
export const canPay = (s, now) =>
  s.name === 'pending_payment' && now - s.since >= ARMING_MS && (s.order.payBy === null || now < s.order.payBy);

export const canCancel = (s) => s.name === 'pending_payment';

/** Brings market and name up to date after any change. */
function settle(s, now) {
  const market = marketOf(s.sale, now);
  let { hold, intent } = s;
  if (hold?.why === 'too_fast' && (market !== 'ready' || now >= hold.until)) {
    hold = null;
    if (market !== 'ready') intent = null; // it was refused, not lost: nothing is left open
  }
  const next = { ...s, market, hold, intent };
  next.name = nameOf(next);
  if (next.name !== s.name) next.since = now;
  return next;
}

/** When, in ms from now, something visible changes by itself. */
export function nextTick(s, now) {
  const moments = [s.sale.opensAt, s.sale.closesAt, s.hold?.until, s.hold?.again, s.order?.payBy].filter((at) => at > now);
  const waits = moments.map((at) => (at - now) % 1000 || 1000);
  if (s.name === 'pending_payment' && now - s.since < ARMING_MS) waits.push(ARMING_MS - (now - s.since));
  return Math.min(1000, ...waits);
}

function adopt(s, order) {
  if (s.order?.id === order.id && RANK[order.status] < RANK[s.order.status]) return s; // late news
  return { ...s, order };
}

const send = (key, delayMs = 0) => ({ type: 'send', key, delayMs });
const followed = (id) => ({ type: 'follow', id });

/**
 * Nobody knows what became of the intent: a click may ask again after `wait`, and the page asks by
 * itself later.
 */
function unknown(s, notice, wait, random, now) {
  const until = now + wait, pause = Math.min(AGAIN_MOST_MS, AGAIN_MS * 2 ** (s.intent.rounds ?? 0)) * (1 + random);
  return [{ ...s, intent: { ...s.intent, open: true }, sending: false, notice, hold: { why: 'unavailable', until, again: until + pause } }];
}

/** Asks again with the same key, once. */
function ask(s) {
  const intent = { ...s.intent, attempt: SILENT_RETRIES, rounds: (s.intent.rounds ?? 0) + 1 };
  return [{ ...s, intent, sending: true, hold: null, notice: null }, send(intent.key)];
}

const UNKNOWN = ['pay_unknown', 'cancel_unknown'];

const HANDLERS = {
  tick: (s, { now }) => {
    if (s.intent && !s.sending && s.hold?.again <= now) return ask(s);
    const late = s.order?.status === 'pending_payment' && s.order.payBy !== null && now >= s.order.payBy;
    if (!late || now - s.askedLateAt < LATE_EVERY_MS) return [s];
    return [{ ...s, askedLateAt: now }, { type: 'refresh_order', id: s.order.id }];
  },

  /** The server can be reached again. */
  back: (s, { now }) => {
    if (!s.intent || s.sending || s.hold?.why !== 'unavailable') return [s];
    return now < s.hold.until ? [{ ...s, hold: { ...s.hold, again: s.hold.until } }] : ask(s);
  },

  /** News of the sale; parts of it are enough. */
  sale: (s, { facts }) => [{ ...s, sale: { ...s.sale, ...facts } }],

  /** The caller's live orders for this sale, newest first, as found when the page opened. */
  found: (s, { orders }) => {
    if (!orders.length || s.sending || s.action) return [s];
    if (s.order && LIVE.includes(s.order.status)) return [s];
    const [order] = orders;
    return [
      { ...s, order, already: true, others: orders.length - 1, intent: null, hold: null, notice: null },
      ...(order.status === 'paid' && order.payment !== 'refunding' ? [] : [followed(order.id)]),
    ];
  },

  buy: (s, { key, now }) => {
    if (!canBuy(s, now)) return [s];
    const intent = { ...s.intent, key: s.intent?.key ?? key, attempt: 0 };
    return [{ ...s, intent, sending: true, hold: null, notice: null }, send(intent.key)];
  },

  accepted: (s, { order }) => {
    if (!s.sending) return [s];
    const others = s.others + (s.order && s.order.id !== order.id && LIVE.includes(s.order.status) ? 1 : 0);
    const next = { ...s, others, sending: false, intent: null, already: false, notice: null };
    return [adopt(next, order), followed(order.id)];
  },

  refused: (s, { code, retryAfterMs = 0, opensAt, orderId, random = 0.5, now }) => {
    if (!s.sending) return [s];
    const over = { ...s, sending: false, intent: null, notice: code };
    const sale = (change) => ({ ...over, sale: { ...s.sale, ...change } });
    switch (code) {
      case 'not_open': {
        const opens = opensAt ?? s.sale.opensAt;
        const { key, attempt } = s.intent;
        if (opens - now <= EARLY_MS && attempt < EARLY_RETRIES) {
          return [{ ...s, intent: { ...s.intent, attempt: attempt + 1 } }, send(key, Math.max(0, opens - now) + 100 + 60 * attempt)];
        }
        return [sale({ opensAt: opens }), { type: 'refresh_sale' }];
      }
      case 'sold_out': return [sale({ remaining: 0 }), { type: 'refresh_sale' }];
      case 'paused': return [sale({ state: 'paused' }), { type: 'refresh_sale' }];
      case 'ended':
      case 'sale_not_found': return [sale({ state: 'ended' })];
      case 'already_ordered': {
        if (s.order?.id === orderId) return [{ ...over, already: true, others: s.sale.limit - 1 }];
        return [{ ...over, already: true, notice: null, order: { id: orderId, status: 'unknown', payBy: null } }, followed(orderId)];
      }
      // Of a waiting room: the turn is over, or was used. The place says what comes next.
      case 'admission_required':
      case 'admission_invalid':
      case 'admission_expired': return [over, { type: 'refresh_sale' }];
      case 'admission_used': return [{ ...over, notice: null, order: { id: orderId, status: 'unknown', payBy: null } }, followed(orderId)];
      // A credential that expired or is missing: the next click brings a fresh one.
      case 'pass_required': case 'pass_invalid': case 'pass_expired':
      case 'challenge_required': case 'challenge_failed': case 'challenge_expired': return [over, { type: 'refresh_sale' }];
      case 'rate_limited': // of a retry: it may have worked before
        if (s.intent.open) return unknown(s, null, Math.max(1000, retryAfterMs), random, now);
        return [{ ...s, sending: false, notice: null, hold: { why: 'too_fast', until: now + Math.max(1000, retryAfterMs) } }];
      case 'unauthenticated': case 'cross_origin': case 'invalid': case 'too_large': // the same again and again: for a click to repeat
        return [{ ...s, sending: false, notice: code, hold: { why: 'unavailable', until: now + 1000 } }];
      default: // 503 and whatever else went wrong: the intent stands, and a retry with its key tells what became of it
        return unknown(s, code, Math.max(1000, retryAfterMs) + 500 * random, random, now);
    }
  },

  /** No answer came. */
  failed: (s, { random = 0.5, now }) => {
    if (!s.sending) return [s];
    const { key, attempt } = s.intent;
    if (attempt < SILENT_RETRIES) {
      return [{ ...s, intent: { ...s.intent, attempt: attempt + 1, open: true } }, send(key, (300 + 600 * random) * (attempt + 1))];
    }
    return unknown(s, 'network', 1000, random, now);
  },

  /** News of an order that is ours. */
  order: (s, { order }) => {
    if (s.order && s.order.id !== order.id) return [s];
    const next = adopt(s, order);
    const changed = next.order !== s.order && next.order.status !== s.order?.status;
    if (changed) return [{ ...next, action: null, notice: null }];
    // What was said about a click is no longer true once the money has moved on by itself.
    if (!s.action && next.order?.payment !== s.order?.payment) return [{ ...next, notice: s.notice === 'page_away' ? s.notice : null }];
    if (!UNKNOWN.includes(s.notice) || order.status !== 'pending_payment') return [next];
    // Whether paying or cancelling had worked was not known; now it is: it had not, unless a
    // payment is still open.
    return [{ ...next, notice: s.notice === 'pay_unknown' && order.payment !== 'pending' ? 'pay_open' : null }];
  },

  pay: (s, { now }) => (canPay(s, now) ? [{ ...s, action: 'pay', notice: null }, { type: 'pay', id: s.order.id }] : [s]),
  cancel: (s) => (canCancel(s) ? [{ ...s, action: 'cancel', notice: null }, { type: 'cancel', id: s.order.id }] : [s]),

  /** Back from the provider's page, by the back button: what came of it is asked. */
  returned: (s) => (s.action === 'pay' ? [{ ...s, action: null }, { type: 'refresh_order', id: s.order.id }] : [s]),

  /** Paying or cancelling was answered with ORDER. */
  acted: (s, { order }) => (s.order?.id === order.id ? [{ ...adopt(s, order), action: null, notice: null }] : [{ ...s, action: null }]),

  /**
   * Paying or cancelling did not work: say so, and look at the order again. Both are safe to
   * repeat.
   */
  action_failed: (s, { code, known = true }) => (s.action
    ? [{ ...s, action: null, notice: known ? code : `${s.action}_unknown` }, { type: 'refresh_order', id: s.order.id }]
    : [s]),
};

export function step(before, event) {
  const current = settle(before, event.now); // judge the event by the state of this very moment
  const [changed, ...effects] = HANDLERS[event.type](current, event);
  const state = settle(changed, event.now);
  // What was said about a click is no longer true once the sale has moved on by itself.
  const moved = (event.type === 'sale' || event.type === 'tick') && state.market !== before.market;
  return { state: moved && !state.hold ? { ...state, notice: null } : state, effects };
}
