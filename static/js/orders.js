// My orders: newest first, live while something can still change.

import { poll } from './api.js';
import { clock } from './clock.js';
import { countdown } from './countdown.js';
import { money, moment } from './format.js';
import { followOrder } from './order-feed.js';
import { isNews, moneyOf, settled, TERMINAL, wordsOf } from './order-view.js';
import { act, cameBack, whyNot } from './paying.js';
import { shop, tabs } from './session.js';
import { errorWords, t } from './strings.js';
import { $, banner, confirm, h, shell, text, toast } from './ui.js';

const PAGE = 20;
const FOLLOWED = 2; // event streams at once: HTTP/1.1 grants six connections in all
const HERE = new URLSearchParams(location.search).get('order'); // from the payment page
const rows = new Map(); // order id → {order, element, …}, in no order
let older = true, greeted = false;
let alone = null; // of HERE, if it is older than the pages of the list that are there

function row(order) {
  const parts = {
    status: h('span', { class: 'badge' }),
    when: h('p', { class: 'muted when' }),
    left: h('p', { class: 'left' }, h('span', {}, t('orders.pay_within')), ' '),
    clock: h('span', { class: 'digits', role: 'timer' }),
    money: h('p', { class: 'money' }),
    pay: h('button', { class: 'button primary', type: 'button', onclick: () => decide(order.order_id, 'pay') }, t('buy.pay')),
    cancel: h('button', { class: 'button', type: 'button', onclick: () => cancel(order.order_id) }, t('buy.cancel')),
  };
  parts.receipt = h('button', { class: 'button', type: 'button', onclick: () => showReceipt(rows.get(order.order_id).order) }, t('receipt.show'));
  parts.left.append(parts.clock);
  const title = `o-${order.order_id}`;
  const element = h('li', { class: 'order', 'aria-labelledby': title, 'aria-current': order.order_id === HERE ? 'true' : null },
    h('div', {},
      h('h3', { id: title }, h('a', { href: `/sales/${encodeURIComponent(order.sale_id)}` }, order.sale_title)),
      h('p', { class: 'price' }, h('strong', {}, money(order.price_cents, order.currency))),
      parts.when,
      h('p', { class: 'muted number' }, t('orders.number', { id: order.order_id })),
      parts.money),
    h('div', { class: 'side' }, parts.status, parts.left, h('div', { class: 'actions' }, parts.pay, parts.cancel, parts.receipt)));
  return { element, parts, stop: () => {}, busy: false, order, feed: null };
}

async function showReceipt(order) {
  try { (await import('./receipt.js')).receipt(order); } catch { toast(t('error.timeout'), 'bad'); }
}

function update(entry) {
  const { order, parts, busy } = entry;
  const payable = order.status === 'pending_payment';
  const over = payable && order.pay_by && clock.now() >= Date.parse(order.pay_by);
  parts.status.className = `badge ${order.status}`;
  text(parts.status, t(`status.${wordsOf(order)}`));
  text(parts.money, moneyOf(order) ? t(`say.${moneyOf(order)}`) : '');
  text(parts.pay, t(order.payment === 'declined' ? 'buy.retry' : 'buy.pay'));
  const now = clock.now();
  text(parts.when, [
    t('orders.created', { at: moment(order.created_at, now) }),
    order.paid_at && t('orders.paid_at', { at: moment(order.paid_at, now) }),
    !order.paid_at && order.closed_at && t('orders.closed_at', { at: moment(order.closed_at, now) }),
  ].filter(Boolean).join(', '));
  parts.left.hidden = !payable;
  parts.pay.hidden = parts.cancel.hidden = !payable;
  parts.receipt.hidden = order.status !== 'paid';
  parts.pay.disabled = parts.cancel.disabled = busy || Boolean(over);
  entry.stop();
  entry.stop = payable && order.pay_by && !over
    ? countdown(parts.clock, Date.parse(order.pay_by), () => { update(entry); polling.now(300 + Math.random() * 700); })
    : () => {};
}

function take(order) {
  const known = rows.get(order.order_id);
  if (known && !isNews(order, known.order)) return;
  const entry = known ?? row(order);
  entry.order = order;
  rows.set(order.order_id, entry);
  update(entry);
}

// By number, as the server's pages go: a queued order's time is known to the second only, so by
// time it could stand below orders that are older, and the next page would be asked for from the
// wrong place.
const newestFirst = () => [...rows.values()].sort((a, b) => (BigInt(a.order.order_id) < BigInt(b.order.order_id) ? 1 : -1));

/**
 * Newest first; what waits for the buyer stands above the history, and above both, whatever it
 * becomes, what was just paid.
 */
function place() {
  const here = rows.get(HERE), sorted = newestFirst().filter((entry) => entry !== here);
  const open = sorted.filter((entry) => !TERMINAL.includes(entry.order.status));
  for (const [list, entries] of [[$('#here'), here ? [here] : []], [$('#open'), open], [$('#history'), sorted.filter((entry) => !open.includes(entry))]]) {
    const focused = document.activeElement;
    entries.forEach(({ element }, index) => {
      if (list.children[index] !== element) list.insertBefore(element, list.children[index] ?? null);
    });
    if (focused !== document.activeElement) focused?.focus({ preventScroll: true });
    list.parentElement.hidden = entries.length === 0;
  }
  $('#empty').hidden = rows.size > 0;
  $('#more').hidden = !older || rows.size < PAGE;
  const followed = [...(here && !settled(here.order) ? [here] : []), ...open].slice(0, FOLLOWED);
  for (const entry of open) {
    if (!followed.includes(entry)) entry.feed = entry.feed?.close(); // pushed down by newer ones
  }
  for (const entry of followed) {
    entry.feed ??= followOrder(entry.order.order_id, (order) => {
      const before = wordsOf(entry.order);
      take(order);
      place();
      if (entry === here && wordsOf(entry.order) !== before) tell(entry);
    });
  }
}

const tell = ({ order }) => text($('#say'), `${order.sale_title}: ${t(`status.${wordsOf(order)}`)}`);

async function decide(id, verb) {
  const entry = rows.get(id);
  if (entry.busy) return;
  entry.busy = true;
  update(entry);
  try {
    const order = await act(id, verb);
    if (!order) return;
    take(order);
  } catch (problem) {
    const { code, known } = whyNot(problem);
    toast(t(`notice.${known ? code : `${verb}_unknown`}`, {}, 'notice.other'), known ? 'bad' : '');
    shop('GET', `/api/v1/orders/${encodeURIComponent(id)}`).then((order) => { take(order); place(); }, () => {});
  }
  entry.busy = false;
  update(entry);
  const hadFocus = !entry.element.contains(document.activeElement) && document.activeElement === document.body;
  place();
  if (hadFocus) $('a', entry.element).focus({ preventScroll: true });
  tell(entry);
}

async function cancel(id) {
  if (await confirm(t('confirm.cancel'), t('confirm.cancel_more'), t('confirm.cancel_yes'), t('confirm.keep'))) decide(id, 'cancel');
}

async function refresh() {
  let unread = null;
  try {
    const { orders } = await shop('GET', `/api/v1/orders?limit=${PAGE}`);
    orders.forEach(take);
    if (orders.length < PAGE) older = false;
    if (HERE && !greeted && !rows.has(HERE)) unread = await find(HERE);
    banner(unread ? whatFailed(unread) : '');
  } catch (problem) {
    banner(whatFailed(problem));
    throw problem;
  }
  $('#loading').hidden = true;
  place();
  if (unread) throw unread; // it is asked for again
  if (!greeted && rows.has(HERE)) tell(rows.get(HERE));
  greeted = true;
}

const whatFailed = (problem) => (problem.status ? errorWords(problem) : t('error.network'));

/**
 * An order that is older than the list's first page. Answers why it could not be read, unless it is
 * not there.
 */
async function find(id) {
  try {
    take(await shop('GET', `/api/v1/orders/${encodeURIComponent(id)}`));
    alone = rows.get(id);
  } catch (problem) {
    if (![400, 404].includes(problem.status)) return problem;
  }
  return null;
}

async function more() {
  const oldest = newestFirst().findLast((entry) => entry !== alone).order.order_id;
  try {
    const { orders } = await shop('GET', `/api/v1/orders?limit=${PAGE}&after=${encodeURIComponent(oldest)}`);
    orders.forEach(take);
    if (orders.some(({ order_id: id }) => id === HERE)) alone = null;
    older = orders.length === PAGE;
    const hadFocus = document.activeElement === $('#more');
    place();
    if (hadFocus && $('#more').hidden) $('a', (rows.get(orders[0]?.order_id) ?? rows.get(oldest)).element).focus({ preventScroll: true });
  } catch (problem) {
    toast(errorWords(problem), 'bad');
  }
}

shell();
$('#more').addEventListener('click', more);
tabs.hear(() => polling.now());
cameBack(() => rows.forEach((entry) => { entry.busy = false; update(entry); }));
const changing = ({ order }) => !TERMINAL.includes(order.status) || order.payment === 'refunding';
const polling = poll(refresh, () => ([...rows.values()].some(changing) ? 3000 : 12_000));
