// The first page: all sales as cards that stay true while one looks at them.

import { call, poll } from './api.js';
import { clock } from './clock.js';
import { countdown } from './countdown.js';
import { money, percentOff } from './format.js';
import { t } from './strings.js';
import { $, banner, h, picture, badge, shell, stateAt, stockBar, stockWords, text } from './ui.js';

const SPREAD_MS = 1500; // at an opening, pages ask for news within this long of each other, not all at once
const SHOWN_FOR_MS = 24 * 3_600_000; // an ended sale
const ORDER = ['open', 'paused', 'scheduled', 'sold_out', 'ended'];
const cards = new Map();
let sales = [];

function card(sale) {
  const off = percentOff(sale.price_cents, sale.original_price_cents);
  const parts = {
    badge: badge(sale.state),
    fill: h('div', { class: 'bar squares', 'aria-hidden': 'true' }, h('i')),
    stock: h('p', { class: 'stock' }),
    label: h('span'),
    clock: h('span', { class: 'digits', role: 'timer' }),
  };
  const element = h('li', { class: 'card' },
    h('div', { class: 'shot' }, picture(sale.image_url), parts.badge, off ? h('span', { class: 'off' }, t('off', { n: off })) : null),
    h('div', { class: 'body' },
      h('h3', {}, h('a', { href: `/sales/${encodeURIComponent(sale.id)}` }, sale.title)),
      h('p', { class: 'price' }, h('strong', {}, money(sale.price_cents, sale.currency)),
        off ? h('s', {}, h('span', { class: 'unseen' }, `${t('was')} `), money(sale.original_price_cents, sale.currency)) : null),
      parts.fill, parts.stock,
      h('p', { class: 'when' }, parts.label, parts.clock)));
  return { element, parts, stop: () => {}, shown: '' };
}

function update(entry, sale) {
  const state = stateAt(sale, clock.now());
  const { parts } = entry;
  entry.element.dataset.state = state;
  text($('h3 a', entry.element), sale.title);
  parts.badge.className = `badge ${state}`;
  text(parts.badge, t(`state.${state}`));
  const { words, low } = stockWords(sale, state);
  text(parts.stock, words);
  parts.stock.classList.toggle('low', low);
  stockBar(parts.fill, sale);

  const opens = state === 'scheduled' || (state === 'paused' && clock.now() < Date.parse(sale.opens_at));
  const target = Date.parse(opens ? sale.opens_at : sale.closes_at);
  const shown = `${state}|${target}`;
  if (shown === entry.shown) return;
  entry.shown = shown;
  entry.stop();
  text(parts.label, t(state === 'ended' ? 'card.over' : opens ? 'card.opens' : 'card.ends'));
  if (state === 'ended') return text(parts.clock, '');
  entry.stop = countdown(parts.clock, target, turned);
}

/**
 * A second has come that changes something: show it now from the clock, and fetch the news a little
 * later.
 */
function turned() {
  setTimeout(render);
  polling.now(300 + Math.random() * SPREAD_MS);
}

let stopHero = () => {}, heroShown = '';
function hero() {
  const now = clock.now();
  const first = (state, moment) => sales.filter((one) => stateAt(one, now) === state).sort((a, b) => Date.parse(a[moment]) - Date.parse(b[moment]))[0];
  const ending = first('open', 'closes_at'), sale = ending ?? first('scheduled', 'opens_at');
  const shown = sale ? `${sale.id}|${Boolean(ending)}|${sale.closes_at}|${sale.title}` : '';
  if (shown === heroShown) return;
  heroShown = shown;
  stopHero();
  $('#next').classList.toggle('shown', Boolean(sale));
  if (!sale) return;
  text($('#next-label'), t(ending ? 'home.ends' : 'home.next'));
  text($('#next-title'), sale.title);
  $('#next-link').href = `/sales/${encodeURIComponent(sale.id)}`;
  stopHero = countdown($('#next-clock'), Date.parse(ending ? sale.closes_at : sale.opens_at), turned);
}

function render() {
  const list = $('#sales');
  const focused = document.activeElement;
  for (const [id, entry] of cards) {
    if (sales.some((sale) => sale.id === id)) continue;
    entry.stop();
    entry.element.remove();
    cards.delete(id);
  }
  list.querySelectorAll('.ghost').forEach((ghost) => ghost.remove());
  sales.forEach((sale, index) => {
    if (!cards.has(sale.id)) cards.set(sale.id, card(sale));
    const entry = cards.get(sale.id);
    update(entry, sale);
    if (list.children[index] !== entry.element) list.insertBefore(entry.element, list.children[index] ?? null);
  });
  if (focused !== document.activeElement) focused?.focus({ preventScroll: true });
  $('#empty').hidden = sales.length > 0;
  hero();
}

async function refresh() {
  try {
    ({ sales } = await call('GET', '/api/v1/sales'));
    const now = clock.now();
    const rank = (sale) => ORDER.indexOf(stateAt(sale, now));
    sales = sales.filter((sale) => Date.parse(sale.closes_at) > now - SHOWN_FOR_MS);
    sales.sort((a, b) => rank(a) - rank(b)); // stable: within a state the server's order stands
    banner('');
  } catch (problem) {
    banner(t(problem.status ? 'error.unavailable' : 'error.network'));
    throw problem;
  }
  render();
  $('#sales').setAttribute('aria-busy', 'false');
}

/** Often while something sells, seldom while nothing can change. */
const period = () => (sales.some((sale) => stateAt(sale, clock.now()) === 'open') ? 3000 : 10_000);

shell();
const polling = poll(refresh, period);
