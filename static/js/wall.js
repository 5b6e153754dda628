// The live wall: one sale on a projector while people, or k6, buy. What remains is pushed by the
// sale's event stream; how the server fares is read from /metrics once a second. Charts are uPlot's
// where the build has it (window.uPlot).

import { backoff, call, poll, problemOf } from './api.js';
import { clock } from './clock.js';
import { number, share, time } from './format.js';
import { between, look, quantile } from './metrics.js';
import { chart } from './chart.js';
import { follow, newer } from './sse.js';
import { t } from './strings.js';
import { $, h, shareResult, shell, stateAt, stockBar, text } from './ui.js';

const ID = location.pathname.split('/')[2] ?? ''; // encoded as it came
const SALE = `/api/v1/sales/${ID}`;
const KEEP = 180; // seconds on the charts
const OVER = 5; // looks that a latency is taken over: of one second's few purchases a percentile would only flicker
const VERDICTS = ['accepted', 'sold_out', 'already_ordered', 'replayed', 'not_open', 'paused', 'ended', 'unavailable'];

let sale, audit = null, first = null, peak = 0;
const looks = [];
const moments = []; // [{at, remaining, accepted, refused, p50, p95, p99, backlog}], oldest first; null is "not known"

// ---- the sale -----------------------------------------------------------------------------------

function showSale() {
  const state = stateAt(sale, clock.now());
  const sold = taken();
  document.title = `${t('wall.title')}: ${sale.title}`;
  text($('#title'), sale.title);
  $('#badge').className = `badge ${state}`;
  text($('#badge'), t(`state.${state}`));
  text($('#remaining'), number(sale.remaining));
  text($('#of'), t('wall.of', { n: number(sale.stock) }));
  text($('#sold'), number(sold));
  text($('#sold-share'), t('wall.sold_share', { share: share(sale.stock ? sold / sale.stock : 0) }));
  stockBar($('#bar'), sale);
  showVerdict();
}

/** Never below zero: events tell of added units before the stock is read again. */
const taken = () => Math.max(0, sale.stock - sale.remaining);

/** The audit is read seldom: its rows count where they are too many, else what the events tell. */
const soldNow = () => (audit?.oversold > 0 ? audit.live : taken());

function showVerdict() {
  const n = { sold: number(soldNow()), all: number(sale.stock) };
  text($('#verdict'), !audit ? t('wall.says.sold', n) : audit.oversold > 0 ? t('wall.says.oversold', { ...n, n: audit.oversold, over: number(audit.oversold) }) : t('wall.says.none', n));
  $('#verdict').classList.toggle('bad', audit?.oversold > 0);
}

/** The audit of the sale, for an operator whose token is in this tab. */
function followAudit() {
  const bearer = sessionStorage.getItem('flash-sale.admin-token'); // as admin.js keeps it
  if (!bearer) return;
  const asking = poll(async () => {
    try { audit = await call('GET', `/api/v1/admin${SALE.slice('/api/v1'.length)}/audit`, { bearer }); } catch (problem) {
      if (problem.status !== 401 && problem.status !== 404) throw problem;
      asking.stop();
      audit = null; // it would stand still
    }
    showVerdict();
  }, () => 10_000);
}

const refreshSale = async () => { const answer = await call('GET', SALE); sale = { ...sale, ...newer(sale, answer) }; showSale(); };

function watch() {
  follow(`${SALE}/events`, {
    onEvent(name, news) {
      if (name !== 'sale') return;
      clock.atLeast(news.server_time);
      Object.assign(sale, news);
      showSale();
      if (news.remaining > sale.stock) setTimeout(() => refreshSale().catch(() => {}), backoff(1)); // stock was added
    },
    onStatus(status) {
      $('#link').className = `link ${status}`;
      text($('#link'), t(`link.${status}`));
    },
  });
  poll(refreshSale, () => 15_000); // stock and title are not pushed
}

// ---- the server ---------------------------------------------------------------------------------

async function measure() {
  let now;
  try {
    const response = await fetch('/metrics', { cache: 'no-store', signal: AbortSignal.timeout(5000) });
    if (!response.ok) throw await problemOf(response);
    now = look(await response.text(), clock.now());
    $('#no-metrics').hidden = true;
  } catch (problem) {
    $('#no-metrics').hidden = false;
    looks.length = 0; // a gap is no rate
    throw problem;
  }
  const before = looks.at(-1);
  const counts = before && between(before, now);
  if (before && !counts) { looks.length = 0; first = null; } // the server started anew
  first ??= now;
  looks.push(now);
  if (looks.length > OVER) looks.shift();
  record(now, counts, counts ? (now.at - before.at) / 1000 : 1);
  showServer(now, counts);
}

function record(now, counts, seconds) {
  const perSecond = (wanted) => (counts ? [...counts].reduce((all, [verdict, count]) => (wanted(verdict) ? all + count : all), 0) / seconds : null);
  const latency = (q) => { const found = quantile(looks[0], now, q); return found === null ? null : found * 1000; };
  moments.push({
    at: now.at, seconds, remaining: sale.remaining, backlog: now.backlog,
    accepted: perSecond((verdict) => verdict === 'accepted'), refused: perSecond((verdict) => !['accepted', 'replayed'].includes(verdict)),
    p50: latency(0.5), p95: latency(0.95), p99: latency(0.99),
  });
  if (moments.length > KEEP) moments.shift();
}

const ms = (value) => (value === null ? '–' : t('ms', { n: number(value, { maximumFractionDigits: value < 10 ? 1 : 0 }) }));
const whole = (value) => (value === null ? '–' : number(Math.round(value)));

function showServer(now, counts) {
  const latest = moments.at(-1);
  peak = Math.max(peak, latest.accepted ?? 0);
  text($('#rate'), whole(latest.accepted));
  text($('#peak'), t('wall.peak', { n: whole(peak) }));
  text($('#latency'), ms(latest.p99));
  text($('#median'), latest.p99 === null ? t('wall.idle') : t('wall.median', { n: ms(latest.p50) }));
  text($('#backlog'), number(now.backlog));
  charts.forEach((draw) => draw(moments));
  showVerdicts(now, counts, latest.seconds);
  $('#latest').replaceChildren(...moments.slice(-10).reverse().map((one) => h('tr', {},
    h('td', {}, time(one.at)),
    ...[number(one.remaining), whole(one.accepted), whole(one.refused), ms(one.p50), ms(one.p99), number(one.backlog)].map((cell) => h('td', { class: 'num' }, cell)))));
}

const rows = new Map(VERDICTS.map((verdict) => {
  const cells = { fill: h('i'), total: h('td', { class: 'num' }, '0'), rate: h('td', { class: 'num' }, '0') };
  const element = h('tr', { class: verdict },
    h('th', { scope: 'row' }, t(`wall.verdict.${verdict}`)),
    h('td', { class: 'fill' }, h('div', { class: 'bar', 'aria-hidden': 'true' }, cells.fill)), cells.total, cells.rate);
  return [verdict, { element, cells }];
}));

/** Bars on one scale: the most frequent verdict is full. */
function showVerdicts(now, counts, seconds) {
  const total = (verdict) => (now.verdicts.get(verdict) ?? 0) - (first.verdicts.get(verdict) ?? 0);
  const most = Math.max(1, ...VERDICTS.map(total));
  for (const [verdict, { cells }] of rows) {
    text(cells.total, number(total(verdict)));
    text(cells.rate, whole((counts?.get(verdict) ?? 0) / seconds));
    cells.fill.style.transform = `scaleX(${total(verdict) / most})`;
  }
}

// ---- the page -----------------------------------------------------------------------------------

const charts = [];

function start() {
  shell();
  $('#back').href = `/sales/${ID}`;
  $('#verdicts').append(...[...rows.values()].map(({ element }) => element));
  $('#full').addEventListener('click', () => (document.fullscreenElement ? document.exitFullscreen() : document.documentElement.requestFullscreen()));
  $('#picture').addEventListener('click', () => sale && shareResult({ sold: soldNow(), stock: sale.stock, line: $('#verdict').textContent, name: sale.title }));
  $('#full').hidden = !document.fullscreenEnabled;
  if (globalThis.uPlot) {
    charts.push(
      chart($('#chart-remaining'), [['remaining', '--good']]),
      chart($('#chart-rate'), [['accepted', '--good'], ['refused', '--ink']]),
      chart($('#chart-latency'), [['p50', '--good'], ['p95', '--gold'], ['p99', '--ink']]),
      chart($('#chart-backlog'), [['backlog', '--gold']]),
    );
  } else {
    $('#charts').hidden = true;
    $('#no-charts').hidden = false;
    $('#table').open = true;
  }
  const loading = poll(async () => {
    try {
      await refreshSale();
    } catch (problem) {
      if (problem.status !== 404) throw problem;
      $('#page').hidden = true;
      $('#missing').hidden = false;
    }
    loading.stop();
    $('#page').removeAttribute('aria-busy');
    if (!sale) return;
    watch();
    followAudit();
    poll(measure, () => 1000);
  }, () => 3000);
}

start();
