// The table of finished races, the bars that compare them, and the ways to take them along.

import { Problem, problemOf } from '../api.js';
import { number } from '../format.js';
import { $, h, toast } from '../ui.js';
import { refusal } from './frame.js';
import { outcomeWords, predicted, tripsWords } from './lanes.js';
import { outcome } from './race.js';
import { csv, json } from './results.js';
import { OWN } from './setup.js';
import { inWords, t } from './words.js';

const fixed = (n) => (n == null ? '–' : number(n, { maximumFractionDigits: n < 10 ? 1 : 0 }));
const cell = (n, bad = false) => h('td', { class: bad ? 'num bad' : 'num' }, fixed(n));
const speed = (one, n) => cell(one.fair ? n : null);
let shown = [], reported = [], nameOf = () => undefined, readIn = () => {};

const title = (one) => nameOf(one.strategy)?.title ?? one.strategy;
const showOf = (one) => (one.demonstration ? nameOf(one.strategy)?.demonstrations?.find(({ id }) => id === one.demonstration)?.teaches : null);

/**
 * `standing` are the arenas that still exist: only of those can the server make a report.
 * `onSource(id, row)` shows a strategy's lines, first those that explain the row.
 */
export function showResults(rows, named, standing, onSource) {
  shown = rows;
  nameOf = named;
  readIn = onSource;
  $('#table').replaceChildren(...rows.map((one) => h('tr', {},
    h('th', { scope: 'row' }, title(one), showOf(one) ? h('small', {}, showOf(one)) : null, h('small', {}, t('lab.with', { run: one.run, buyers: number(one.buyers ?? 0), nodes: one.nodes ?? 1, work: one.work_ms ?? 0 }))),
    h('td', {}, h('strong', { class: `outcome ${outcome(one).tone}` }, outcomeWords(one))),
    h('td', { class: one.kept_promise === false ? 'bad' : '' }, predicted(one.kept_promise)),
    h('td', { class: 'num' }, `${number(one.sold)} / ${number(one.stock)}`),
    cell(one.oversold, one.oversold > 0), cell(one.undersold, one.undersold > 0), cell(one.duplicates, one.duplicates > 0), cell(one.lost, one.lost > 0),
    cell(one.contended), cell(one.failed, one.failed > 0), speed(one, one.throughput_per_s), speed(one, one.latency_ms?.p50), speed(one, one.latency_ms?.p99), speed(one, one.winners_ms?.p99), speed(one, one.losers_ms?.p99),
    h('td', {}, one.round_trips ? tripsWords(one.round_trips) : '–'))));
  const fair = rows.filter((one) => one.fair);
  const charts = [
    bars('stock', rows, (one) => one.sold, (one) => outcome(one).tone, outcomeWords, (one) => one.stock),
    ...(fair.length ? [bars('throughput', fair, (one) => one.throughput_per_s, () => ''), bars('latency', fair, (one) => one.latency_ms?.p99, () => '')] : []),
  ];
  const focused = [...$('#charts').querySelectorAll('button')].indexOf(document.activeElement);
  $('#charts').replaceChildren(...charts);
  $('#charts').querySelectorAll('button')[focused]?.focus({ preventScroll: true }); // rows are only added
  reported = rows.map(({ arena }) => arena).filter((arena) => arena && standing.includes(arena));
  $('#report').hidden = reported.length === 0;
}

/**
 * One bar for each row, on one scale; the figure stands beside it as text, so that nobody has to
 * read a length. `limit` draws a mark on the bar, as in the race.
 */
function bars(name, rows, value, tone, words = (one) => fixed(value(one)), limit = () => null) {
  const most = Math.max(1e-9, ...rows.flatMap((one) => [value(one) ?? 0, limit(one) ?? 0]));
  return h('figure', { class: 'chart' }, h('figcaption', {}, h('h3', {}, t(`lab.chart.${name}`))),
    h('ul', {}, ...rows.map((one) => {
      const fill = h('i', {});
      fill.style.transform = `scaleX(${(value(one) ?? 0) / most})`;
      const mark = limit(one) == null ? null : h('b', {});
      if (mark) mark.style.left = `${(limit(one) / most) * 100}%`;
      const bad = ['bad', 'warn'].includes(tone(one)) && one.strategy !== OWN;
      return h('li', { class: tone(one) }, h('span', { class: 'what' }, title(one), one.nodes > 1 ? h('small', {}, ` ×${one.nodes}`) : null),
        h('span', { class: 'num' }, bad ? h('button', { type: 'button', class: 'read', 'aria-label': `${words(one)}. ${t('lab.why_of', { title: title(one) })}`, onclick: () => readIn(one.strategy, one) }, words(one)) : words(one)), h('span', { class: 'bar', 'aria-hidden': 'true' }, fill, mark));
    })));
}

function save(name, type, content) {
  const link = h('a', { href: URL.createObjectURL(new Blob([content], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

$('#csv').addEventListener('click', () => save('flash-sale-lab.csv', 'text/csv', `\ufeff${csv(shown)}`)); // the mark tells spreadsheets that it is UTF-8
$('#json').addEventListener('click', () => save('flash-sale-lab.json', 'application/json', json(shown)));
$('#report').addEventListener('click', async () => {
  try {
    const ids = (arenas) => arenas.map(encodeURIComponent).join(','), alone = shown.filter(({ arena, fair }) => fair && reported.includes(arena));
    const response = await fetch(inWords(`/api/v1/lab/report?arenas=${ids(reported)}&alone=${ids(alone.map(({ arena }) => arena))}`), { signal: AbortSignal.timeout(30_000) });
    if (!response.ok) throw await problemOf(response);
    save('flash-sale-lab.html', 'text/html', await response.text());
  } catch (problem) {
    toast(refusal(problem instanceof Problem ? problem : new Problem(0, 'network')), 'bad');
  }
});
$('#link').addEventListener('click', async () => {
  try {
    await navigator.clipboard.writeText(location.href);
    toast(t('lab.link_copied'), 'good');
  } catch {
    toast(t('lab.link_here')); // no clipboard without HTTPS; the address bar has it
  }
});
