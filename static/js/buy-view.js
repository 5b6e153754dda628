// What the buy panel shows in each state: keys of strings.js, an action per button, and one
// countdown. Still no DOM.

import { canBuy, canPay } from './buy-state.js';
import { moneyOf } from './order-view.js';

const COUNT_IN = 3; // the last seconds before the opening are counted on the button itself

/** The sale alone, for a button that would buy: [label, params]. */
function marketButton(s, now) {
  if (s.market !== 'not_open') return [`buy.${s.market}`];
  const seconds = Math.ceil((s.sale.opensAt - now) / 1000);
  return seconds <= COUNT_IN ? ['buy.count', { n: seconds }] : ['buy.not_open'];
}

const clockOf = (s, now) => {
  if (s.order?.status === 'pending_payment') return { label: 'clock.pay', target: s.order.payBy };
  if (s.market === 'not_open' || (s.market === 'paused' && now < s.sale.opensAt)) return { label: 'clock.opens', target: s.sale.opensAt };
  if (s.market === 'ended') return { label: 'clock.ended', target: null };
  return { label: 'clock.ends', target: s.sale.closesAt };
};

const TONES = {
  not_open: 'wait', ready: 'go', sold_out: 'over', paused: 'hold', ended: 'over',
  buying: 'busy', too_fast: 'hold', unavailable: 'hold',
  already: 'busy', queued: 'busy', pending_payment: 'good', paid: 'good', paying: 'busy', cancelling: 'busy',
  expired: 'over', cancelled: 'over', rejected: 'bad',
};

/**
 * {tone, clock, button: {label: [key, params], action, busy}, second: {label, action}, say: [key,
 * params]}
 */
export function view(s, now) {
  const seconds = s.hold ? Math.max(0, Math.ceil((s.hold.until - now) / 1000)) : 0;
  const again = canBuy(s, now) ? { label: ['buy.again'], action: 'buy' } : { label: marketButton(s, now) };
  const late = s.order?.status === 'pending_payment' && s.order.payBy !== null && now >= s.order.payBy;
  const money = s.order?.status === s.name ? moneyOf(s.order) : null;
  let button, second = { label: ['orders.mine'], action: 'orders' }, say = [`say.${money ?? s.name}`];

  switch (s.name) {
    case 'ready': button = { label: ['buy.ready'], action: 'buy' }; break;
    case 'too_fast': button = { label: ['buy.in', { n: seconds }] }; break;
    case 'unavailable':
      button = seconds > 0 ? { label: ['buy.in', { n: seconds }] } : { label: ['buy.retry'], action: 'buy' };
      break;
    case 'pending_payment':
      button = { label: [s.order.payment === 'declined' ? 'buy.retry' : 'buy.pay'], action: canPay(s, now) ? 'pay' : null };
      if (late) button = { label: ['buy.checking'], busy: true };
      else second = { label: ['buy.cancel'], action: 'cancel' };
      if (late) say = ['say.late'];
      else if (s.already && !money) say = ['say.pending_already'];
      break;
    case 'paid':
      button = canBuy(s, now) ? { label: ['buy.another'], action: 'buy' } : { label: ['buy.paid'] };
      if (s.already && !money) say = ['say.paid_already'];
      second = { label: ['receipt.show'], action: 'receipt' };
      break;
    case 'queued':
    case 'already':
      button = { label: [s.already ? 'buy.already' : 'buy.queued'], busy: true };
      break;
    case 'expired': case 'cancelled': case 'rejected':
      button = again;
      break;
    case 'buying': case 'paying': case 'cancelling': button = { label: [`buy.${s.name}`], busy: true }; break;
    default: button = { label: marketButton(s, now) };
  }

  const spoken = s.notice && !['buying', 'paying', 'cancelling'].includes(s.name);
  if (spoken) say = [`notice.${s.notice}`, {}, 'notice.other'];
  return { tone: TONES[s.name], clock: clockOf(s, now), button: { action: null, busy: false, ...button }, second, say };
}
