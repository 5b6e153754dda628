// A lane of the race: its units as squares against the stock, what came of it, and why.

import { number } from '../format.js';
import { h, shareResult, text } from '../ui.js';
import { cause } from './cause.js';
import { refusal } from './frame.js';
import { proof } from './own-server.js';
import { outcome, polyline, tone } from './race.js';
import { OWN } from './setup.js';
import { t } from './words.js';

const SVG = 'http://www.w3.org/2000/svg';

function curve() {
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('viewBox', '0 0 100 30');
  svg.setAttribute('preserveAspectRatio', 'none');
  svg.setAttribute('aria-hidden', 'true');
  svg.setAttribute('class', 'curve');
  const line = svg.appendChild(document.createElementNS(SVG, 'polyline'));
  return { svg, draw: (points) => line.setAttribute('points', points) };
}

const fixed = (n) => (n == null ? '–' : number(n, { maximumFractionDigits: n < 10 ? 1 : 0 }));
const ms = (n) => (n == null ? '–' : t('ms', { n: fixed(n) }));

/** What happened, in words. */
export function outcomeWords(row) {
  const { kind, n } = outcome(row);
  return t(`lab.outcome.${kind}`, { n: number(n) });
}
/** What had been said before, and whether it came so: never a colour of its own. */
export const predicted = (kept) => t(`lab.kept.${kept ?? 'unknown'}`);

/** Squares for the stock, for what is sold of it, and beyond its mark for what does not exist. */
function squares(onOver) {
  const mark = h('b', {}), excess = h('span', { class: 'excess', onclick: onOver });
  const stock = h('span', { class: 'stock-squares' }), element = h('div', { class: 'track', 'aria-hidden': 'true' }, stock, mark, excess);
  const fit = (row, n) => { while (row.children.length > n) row.lastChild.remove(); while (row.children.length < n) row.append(h('i', {})); };
  return { element, show(lane, { count, row }) {
    const now = row(lane);
    element.style.setProperty('--squares', count);
    fit(stock, now.stock);
    fit(excess, now.over);
    [...stock.children].forEach((square, index) => { square.className = index < now.sold ? 'sold' : ''; });
  } };
}

/** `lane` is {key, strategy, show, setup, fair}; `onSource()` opens the strategy's source. */
export function laneView({ strategy, show, setup, fair }, onSource) {
  const isOwn = strategy.id === OWN;
  const state = h('p', { class: 'lane-state' }), said = h('p', { class: 'predicted' }), count = h('strong', {}, '0');
  const beyond = h('p', { class: 'beyond' }), scaleNote = h('p', { class: 'muted per' });
  const figures = Object.fromEntries(['attempts', ...(fair ? ['rate', 'p99'] : []), ...(isOwn ? [] : ['trips'])].map((name) => [name, h('dd', {}, '–')]));
  const speed = curve(), latency = curve();
  const explains = h('p', { class: 'explains' }), notes = h('ul', { class: 'notes' }), panel = h('div', { class: 'why-panel', hidden: true });
  let last = null;
  const why = h('button', { type: 'button', class: 'button small why', 'aria-expanded': 'false', hidden: true, onclick: () => open(panel.hidden) }, t('lab.why'));
  why.setAttribute('aria-label', t('lab.why_of', { title: strategy.title }));
  const picture = h('button', { type: 'button', class: 'button small', hidden: true, onclick: take }, t('result.picture'));
  picture.setAttribute('aria-label', `${t('result.picture')}: ${strategy.title}`);
  function take() {
    const { sold, oversold, duplicates, verdict } = last, { stock } = setup;
    const isTold = oversold || tone(last) === 'good'; // by how many were sold
    shareResult({ sold, stock, line: isTold ? t('result.says', { sold: number(sold), stock: number(stock) }) : outcomeWords({ ...verdict, oversold, duplicates }), name: strategy.title });
  }
  function open(wanted) {
    panel.hidden = !wanted;
    why.setAttribute('aria-expanded', String(wanted));
    if (wanted) panel.replaceChildren(isOwn ? proof(last?.verdict) : cause(strategy, show, { ...last, options: setup.options }, onSource));
  }
  const track = squares(() => open(true));
  const element = h('li', { class: 'lane' },
    h('div', { class: 'lane-head' }, h('h3', {}, strategy.title), h('div', { class: 'came' }, state, said)),
    show ? h('p', { class: 'demonstrates' }, show.teaches) : isOwn ? h('p', { class: 'demonstrates' }, h('code', {}, setup.server)) : null,
    h('p', { class: 'score' }, count, h('span', {}, ` ${t('lab.sold_of', { stock: number(setup.stock) })}`)),
    track.element, scaleNote,
    h('div', { class: 'so' }, beyond, why, picture), panel,
    h('dl', { class: 'lane-figures' },
      ...Object.entries(figures).map(([name, figure]) => h('div', {}, h('dt', {}, t(`lab.figure.${name}`)), figure, name === 'rate' ? speed.svg : name === 'p99' ? latency.svg : null))),
    explains, notes);
  return {
    element,
    show(lane, to) {
      const now = lane.verdict ?? lane.progress, mood = tone(lane);
      const judged = lane.verdict && !last?.verdict;
      last = lane;
      if (judged && !panel.hidden) open(true); // the verdict knows which two met
      element.className = `lane ${mood}`;
      text(state, stateWords(lane));
      text(said, lane.verdict && !isOwn ? predicted(lane.verdict.kept_promise) : '');
      said.classList.toggle('against', lane.verdict?.kept_promise === false);
      text(count, number(lane.sold));
      text(beyond, lane.oversold ? t('lab.too_many_sold', { n: number(lane.oversold) }) : lane.duplicates ? t('lab.twice', { n: number(lane.duplicates) }) : '');
      why.hidden = !(lane.oversold || lane.duplicates || lane.verdict);
      picture.hidden = !lane.verdict;
      track.show(lane, to);
      text(scaleNote, to.per > 1 ? t('result.square', { n: number(to.per) }) : '');
      text(figures.attempts, lane.of ? `${number(lane.attempts)} / ${number(lane.of)}` : number(lane.attempts));
      if (fair) {
        text(figures.rate, fixed(now?.throughput_per_s));
        text(figures.p99, ms(now?.latency_ms?.p99));
        speed.draw(polyline(lane.curve, 'rate'));
        latency.draw(polyline(lane.curve, 'p99'));
      }
      if (figures.trips) text(figures.trips, lane.verdict?.round_trips ? tripsWords(lane.verdict.round_trips) : '–');
      text(explains, lane.why ? refusal(lane.why) : lane.verdict?.explanation ?? '');
      const seen = Object.entries(lane.verdict?.notes ?? {});
      if (seen.length !== notes.children.length) notes.replaceChildren(...seen.map(([note, times]) => h('li', {}, t('lab.note', { note: t(`lab.noted.${note}`, { name: note }, 'lab.option_other'), n: number(times) }))));
    },
  };
}

/** Round trips of one purchase to each server that was asked at all. */
export function tripsWords(trips) {
  const said = ['redis', 'postgres', 'zookeeper'].filter((name) => trips[name] > 0).map((name) => t(`lab.trips.${name}`, { n: fixed(trips[name]) }));
  return said.join(' + ') || '0';
}

function stateWords({ status, verdict, oversold, duplicates }) {
  if (verdict) return outcomeWords({ ...verdict, oversold, duplicates });
  return t(oversold ? 'lab.status.overselling' : `lab.status.${status}`);
}
