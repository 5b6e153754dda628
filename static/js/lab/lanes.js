// A lane of the race: the bar of what was sold against the stock, the figures, and the small curve of its speed.

import { number } from '../format.js';
import { h, text } from '../ui.js';
import { refusal } from './frame.js';
import { polyline, tone } from './race.js';
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

const FIGURES = ['attempts', 'rate', 'p99', 'trips'];
const fixed = (n) => (n == null ? '–' : number(n, { maximumFractionDigits: n < 10 ? 1 : 0 }));
const ms = (n) => (n == null ? '–' : t('ms', { n: fixed(n) }));

export function laneView(strategy, stock) {
  const state = h('p', { class: 'lane-state' }), count = h('strong', {}, '0'), beyond = h('span', { class: 'beyond' });
  const fill = h('i', { class: 'fill' }), excess = h('i', { class: 'excess' }), mark = h('b', {});
  const figures = Object.fromEntries(FIGURES.map((name) => [name, h('dd', {}, '–')]));
  const speed = curve(), latency = curve();
  const explains = h('p', { class: 'explains' }), notes = h('ul', { class: 'notes' });
  const element = h('li', { class: 'lane' },
    h('div', { class: 'lane-head' }, h('h3', {}, h('span', { class: 'nr' }, String(strategy.number)), ' ', strategy.title), state),
    h('p', { class: 'score' }, count, h('span', {}, ` ${t('lab.sold_of', { stock: number(stock) })}`), ' ', beyond),
    h('div', { class: 'track', 'aria-hidden': 'true' }, fill, excess, mark),
    h('dl', { class: 'lane-figures' },
      ...FIGURES.map((name) => h('div', {}, h('dt', {}, t(`lab.figure.${name}`)), figures[name], name === 'rate' ? speed.svg : name === 'p99' ? latency.svg : null))),
    explains, notes);
  return {
    element,
    show(lane, to) {
      const now = lane.verdict ?? lane.progress, mood = tone(lane);
      element.className = `lane ${mood}`;
      text(state, stateWords(lane, mood));
      text(count, number(lane.sold));
      text(beyond, lane.oversold ? t('lab.too_many_sold', { n: number(lane.oversold) }) : lane.duplicates ? t('lab.twice', { n: number(lane.duplicates) }) : '');
      const at = to(lane.stock) * 100;
      fill.style.width = `${to(Math.min(lane.sold, lane.stock)) * 100}%`;
      excess.style.left = `${at}%`;
      excess.style.width = `${Math.max(0, to(lane.sold) * 100 - at)}%`;
      mark.style.left = `${at}%`;
      text(figures.attempts, lane.of ? `${number(lane.attempts)} / ${number(lane.of)}` : number(lane.attempts));
      text(figures.rate, fixed(now?.throughput_per_s));
      text(figures.p99, ms(now?.latency_ms?.p99));
      text(figures.trips, lane.verdict?.round_trips ? tripsWords(lane.verdict.round_trips) : '–');
      speed.draw(polyline(lane.curve, 'rate'));
      latency.draw(polyline(lane.curve, 'p99'));
      text(explains, lane.why ? refusal(lane.why) : lane.verdict?.explanation ?? '');
      const seen = Object.entries(lane.verdict?.notes ?? {});
      notes.hidden = seen.length === 0;
      if (seen.length !== notes.children.length) notes.replaceChildren(...seen.map(([note, times]) => h('li', {}, t('lab.note', { note: t(`lab.noted.${note}`, { name: note }, 'lab.option_other'), n: number(times) }))));
    },
  };
}

/** Round trips of one purchase to each server that was asked at all. */
export function tripsWords(trips) {
  const said = ['redis', 'postgres', 'zookeeper'].filter((name) => trips[name] > 0).map((name) => t(`lab.trips.${name}`, { n: fixed(trips[name]) }));
  return said.join(' + ') || '0';
}

function stateWords({ status, verdict }, mood) {
  if (!verdict) return t(`lab.status.${status}`);
  if (verdict.kept_promise === false) return t('lab.broke_promise');
  return t(mood === 'good' ? 'lab.status.sound' : mood === 'warn' ? 'lab.status.short' : 'lab.status.broke');
}
