// The sale page: joins the buy machine to the page, the API and the two event streams.

import { backoff, call, poll } from './api.js';
import { clock } from './clock.js';
import { digits } from './countdown.js';
import { canBuy, initial, nextTick, orderFacts, saleFacts, step } from './buy-state.js';
import { view } from './buy-view.js';
import { money, moment, number, percentOff, share } from './format.js';
import { followOrder } from './order-feed.js';
import { act, cameBack, whyNot } from './paying.js';
import { forPlace, forPurchase, prepare, progress, spent } from './credentials.js';
import { room } from './room.js';
import { roomView } from './room-view.js';
import { session, shop, tabs } from './session.js';
import { follow, newer } from './sse.js';
import { t } from './strings.js';
import { $, banner, confirm, shell, stateAt, stockBar, stockWords, text, toast } from './ui.js';

const SALE = `/api/v1/sales/${location.pathname.split('/')[2] ?? ''}`;
const REFRESH_MS = 30_000;
const WORKING_MS = 200; // how often the progress of a puzzle is shown
const SQUARES = 20; // on a bar, as in app.css
const button = $('#buy');
const second = $('#second');
let sale, state, feed, ticking, waiting, place = null, joining = false, notice = null;
let usedTurn; // when the turn ends that has made its order

// ---- events in, effects out ---------------------------------------------------------------------

function dispatch(type, event = {}) {
  const out = step(state, { ...event, type, now: clock.now(), random: Math.random() });
  const before = state.name;
  state = out.state;
  out.effects.forEach((effect) => EFFECTS[effect.type](effect));
  render(before !== state.name);
  clearTimeout(ticking);
  ticking = setTimeout(() => dispatch('tick'), (progress() === null ? nextTick(state, clock.now()) : WORKING_MS) + 1);
}

const EFFECTS = {
  async send({ key, delayMs }) {
    await new Promise((resolve) => { setTimeout(resolve, delayMs); });
    const turn = place?.turn_ends_at;
    try {
      const credentials = await forPurchase(SALE, sale, place);
      const answer = await shop('POST', `${SALE}/orders`, { key, credentials });
      spent();
      usedTurn = turn;
      tabs.tell(sale.id);
      dispatch('accepted', { order: { id: answer.order_id, status: answer.status, payBy: null } });
    } catch (problem) {
      if (!problem.status) return dispatch('failed');
      const { code, retryAfterMs, extra } = problem;
      if (code.startsWith('challenge_')) spent();
      if (code === 'admission_used') usedTurn = turn;
      const opensAt = extra.opens_at ? Date.parse(extra.opens_at) : undefined;
      dispatch('refused', { code, retryAfterMs, opensAt, orderId: extra.order_id });
      if (code.startsWith('admission_')) findOrders().catch(() => {}); // an earlier answer may have been lost
    }
  },
  follow({ id }) {
    feed?.close();
    feed = followOrder(id, (order) => dispatch('order', { order: orderFacts(order) }));
  },
  pay: ({ id }) => decide(id, 'pay'),
  cancel: ({ id }) => decide(id, 'cancel'),
  async refresh_order({ id }) {
    try { dispatch('order', { order: orderFacts(await shop('GET', `/api/v1/orders/${id}`)) }); } catch { /* the feed goes on */ }
  },
  refresh_sale: () => setTimeout(() => refreshSale().catch(() => {}), backoff(1)),
};

async function join() {
  joining = true;
  notice = null;
  dispatch('tick');
  try {
    await waiting.join(await forPlace(SALE, sale));
    spent();
  } catch (problem) { notice = problem.status ? problem.code : 'network'; }
  joining = false;
  dispatch('tick');
}

/** Follows the waiting room as long as the sale has one. */
function attendRoom() {
  if (!sale.waiting_room) {
    waiting?.leave();
    waiting = undefined;
    place = null;
    return;
  }
  waiting ??= room(SALE, {
    onPlace(news) {
      if (news) clock.atLeast(news.server_time);
      const turned = place?.state !== news?.state;
      const lost = !news && ['early', 'waiting'].includes(place?.state); // the server has lost the room: be there again
      place = news;
      if (lost) join();
      if (turned) notice = null;
      if (news && news.sale_state !== sale.state) learn({ state: news.sale_state, remaining: news.remaining });
      dispatch('tick');
    },
    onProblem(problem) { notice = problem.status ? problem.code : 'network'; },
  });
  if (sale.state !== 'ended' && place?.sale_state === 'ended') waiting.again(); // it was extended
}

async function decide(id, verb) {
  for (let attempt = 0; ; attempt++) {
    try {
      const order = await act(id, verb);
      return order && dispatch('acted', { order: orderFacts(order) });
    } catch (problem) {
      // Both verbs may be repeated: a lost answer or an order not yet written down is simply asked
      // again.
      const { code, known, again } = whyNot(problem);
      if (!again || attempt === 3) return dispatch('action_failed', { code, known });
      await new Promise((resolve) => { setTimeout(resolve, problem.retryAfterMs || backoff(attempt)); });
    }
  }
}

// ---- the sale and its news ----------------------------------------------------------------------

function learn(news) {
  Object.assign(sale, news);
  dispatch('sale', { facts: saleFacts(sale) });
}

/**
 * The whole sale again: what events do not carry (stock, closing time, words) may have changed, and
 * so may the clocks.
 */
async function refreshSale() {
  learn(newer(sale, await call('GET', SALE)));
  describe();
  attendRoom();
}

function watch() {
  follow(`${SALE}/events`, {
    onEvent(name, news) {
      if (name !== 'sale') return;
      clock.atLeast(news.server_time);
      learn(news);
      if (news.remaining > sale.stock) EFFECTS.refresh_sale(); // stock was added
    },
    onStatus(status) {
      const link = $('#link');
      link.className = `link ${status}`;
      text(link, t(`link.${status}`));
      if (status === 'live') dispatch('back');
    },
  });
  poll(refreshSale, () => REFRESH_MS);
}

/** An order of ours from another tab or an earlier visit. */
async function findOrders() {
  const { orders } = await shop('GET', '/api/v1/orders');
  const live = orders.filter((order) => order.sale_id === sale.id && ['queued', 'pending_payment', 'paid'].includes(order.status));
  dispatch('found', { orders: live.map(orderFacts) });
}

// ---- the page -----------------------------------------------------------------------------------

function describe() {
  const off = percentOff(sale.price_cents, sale.original_price_cents);
  document.title = `${sale.title} · ${t('brand')}`;
  text($('#title'), sale.title);
  text($('#description'), sale.description ?? '');
  text($('#price'), money(sale.price_cents, sale.currency));
  text($('#before'), off ? money(sale.original_price_cents, sale.currency) : '');
  text($('#off'), off ? t('off', { n: off }) : '');
  $('#off').hidden = !off;
  const image = $('#shot');
  const url = sale.image_url || '/static/favicon.svg';
  if (image.dataset.url !== url) {
    image.addEventListener('error', () => { image.src = '/static/favicon.svg'; }, { once: true });
    image.src = image.dataset.url = url;
  }
  const timeout = sale.payment_timeout_secs;
  const time = timeout % 60 ? t('seconds', { n: timeout }) : t('minutes', { n: timeout / 60 });
  text($('#fact-limit'), t('sale.limit', { n: sale.per_user_limit }));
  text($('#fact-timeout'), t('sale.timeout', { time }));
  $('#page').removeAttribute('aria-busy');
}

function render(changed = true) {
  const now = clock.now();
  if ((state.name === 'not_open' || canBuy(state, now)) && !document.hidden) prepare(SALE, sale);
  let shown = view(state, now);
  if (sale.waiting_room) shown = roomView(shown, { state, sale, place, joining, notice, used: usedTurn === place?.turn_ends_at, now });
  const solving = (joining || state.name === 'buying') && progress();
  if (solving || solving === 0) shown = { ...shown, button: { label: ['buy.puzzle', { n: share(solving) }], action: null, busy: true }, say: ['say.puzzle'] };
  queue();
  const panel = $('#panel');
  panel.dataset.tone = shown.tone;
  panel.dataset.state = state.name;

  text(button, t(...shown.button.label));
  button.dataset.action = shown.button.action ?? '';
  button.setAttribute('aria-disabled', String(!shown.button.action)); // not `disabled`: that would drop the focus
  button.classList.toggle('busy', shown.button.busy);
  button.classList.toggle('count', shown.button.label[0] === 'buy.count');

  second.dataset.action = shown.second.action;
  text(second, t(...shown.second.label));

  text($('#clock-label'), t(shown.clock.label));
  text($('#clock'), shown.clock.target === null ? '–' : digits(shown.clock.target - now));
  if (changed || $('#say').dataset.key !== shown.say[0]) {
    $('#say').dataset.key = shown.say[0];
    text($('#say'), t(...shown.say));
  }

  const saleState = stateAt(sale, now);
  $('#badge').className = `badge ${saleState}`;
  text($('#badge'), t(`state.${saleState}`));
  const { words, low } = stockWords(sale, saleState);
  text($('#stock'), words);
  $('#stock').classList.toggle('low', low);
  const closedEarly = sale.state === 'ended' && Date.parse(sale.closes_at) > now;
  text($('#fact-window'), t(closedEarly ? 'sale.closed_early' : 'sale.window', { from: moment(sale.opens_at, now), to: moment(sale.closes_at, now) }));
  stockBar($('#bar'), sale, ['pending_payment', 'paid', 'paying', 'queued'].includes(state.name));
  $('#units').textContent = t('sale.units', { n: number(sale.stock) }) + (sale.stock > SQUARES ? ` · ${t('sale.square', { n: number(sale.stock / SQUARES, { maximumFractionDigits: 1 }) })}` : '');
}

/**
 * Those who wait as squares, oneself as the last; one square is several people where there are
 * many.
 */
function queue() {
  const bar = $('#queue'), waits = ['early', 'waiting'].includes(place?.state);
  bar.hidden = !sale.waiting_room;
  bar.classList.toggle('mine', waits);
  const n = waits ? Math.max(1, Math.min(SQUARES, place.position ?? place.joined)) : SQUARES;
  bar.style.setProperty('--n', n);
  bar.style.setProperty('--at', n - 1);
}

/**
 * One intent, one key. randomUUID would need https, and a demo is often shown over http on a local
 * network.
 */
function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

function press() {
  if (!state) return;
  if (button.dataset.action === 'join') return join();
  if (button.dataset.action === 'pay') dispatch('pay');
  else if (button.dataset.action || !sale.waiting_room) dispatch('buy', { key: newKey() }); // the machine ignores it where it does not count
}

async function pressSecond() {
  if (second.dataset.action === 'orders') location.assign('/orders');
  if (second.dataset.action === 'receipt') {
    try { (await import('./receipt.js')).receipt(await shop('GET', `/api/v1/orders/${state.order.id}`)); } catch { toast(t('error.timeout'), 'bad'); }
  }
  if (second.dataset.action !== 'cancel') return;
  const sure = await confirm(t('confirm.cancel'), t('confirm.cancel_more'), t('confirm.cancel_yes'), t('confirm.keep'));
  if (sure) dispatch('cancel');
}

async function start() {
  shell();
  $('#wall').href = `${location.pathname}/live`;
  button.addEventListener('click', press);
  button.addEventListener('keydown', (event) => { if (event.repeat) event.preventDefault(); });
  second.addEventListener('click', pressSecond);
  cameBack(() => { if (state) dispatch('returned'); });
  const loading = poll(async () => {
    try {
      sale = await call('GET', SALE);
    } catch (problem) {
      if (problem.status >= 400 && problem.status < 429) {
        loading.stop();
        $('#page').hidden = true;
        $('#missing').hidden = false;
        return;
      }
      banner(t(problem.status ? 'error.unavailable' : 'error.network'));
      throw problem;
    }
    loading.stop();
    banner('');
    state = initial(saleFacts(sale), clock.now());
    describe();
    dispatch('tick');
    watch();
    attendRoom();
    tabs.hear((id) => { if (id === sale.id) findOrders().catch(() => {}); });
    const finding = poll(async () => { await session(); await findOrders(); finding.stop(); }, () => 5000);
  }, () => 5000);
}

start();
