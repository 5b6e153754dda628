// The table of finished races, the bars that compare them, and the ways to take them along.

import { Problem, problemOf } from '../api.js';
import { number } from '../format.js';
import { $, h, toast } from '../ui.js';
import { refusal } from './frame.js';
import { tripsWords } from './lanes.js';
import { csv, json } from './results.js';
import { inWords, t } from './words.js';

const fixed = (n) => (n == null ? '–' : number(n, { maximumFractionDigits: n < 10 ? 1 : 0 }));
const cell = (n, bad = false) => h('td', { class: bad ? 'num bad' : 'num' }, fixed(n));
let shown = [], reported = [], nameOf = () => undefined;

const title = (one) => nameOf(one.strategy)?.title ?? one.strategy;
const brief = (one) => [nameOf(one.strategy)?.number, one.strategy].filter(Boolean).join(' '); // titles may be whole statements

/** `standing` are the arenas that still exist: only of those can the server make a report. */
export function showResults(rows, named, standing) {
  shown = rows;
  nameOf = named;
  $('#table').replaceChildren(...rows.map((one) => h('tr', {},
    h('th', { scope: 'row' }, title(one), h('small', {}, t('lab.with', { run: one.run, buyers: number(one.buyers ?? 0), nodes: one.nodes ?? 1, work: one.work_ms ?? 0 }))),
    h('td', {}, h('span', { class: `promise ${one.kept_promise === false ? 'bad' : one.kept_promise ? 'good' : ''}` }, t(`lab.kept.${one.kept_promise ?? 'unknown'}`))),
    h('td', { class: 'num' }, `${number(one.sold)} / ${number(one.stock)}`),
    cell(one.oversold, one.oversold > 0), cell(one.undersold, one.undersold > 0), cell(one.duplicates, one.duplicates > 0), cell(one.lost, one.lost > 0),
    cell(one.contended), cell(one.failed, one.failed > 0), cell(one.throughput_per_s), cell(one.latency_ms?.p50), cell(one.latency_ms?.p99), cell(one.winners_ms?.p99), cell(one.losers_ms?.p99),
    h('td', {}, one.round_trips ? tripsWords(one.round_trips) : '–'))));
  const charts = [
    bars('throughput', rows, (one) => one.throughput_per_s, () => ''),
    bars('latency', rows, (one) => one.latency_ms?.p99, () => ''),
    bars('stock', rows, (one) => one.sold, (one) => (one.oversold ? 'bad' : one.undersold ? 'warn' : 'good'),
      (one) => (one.oversold ? t('lab.too_many_sold', { n: number(one.oversold) }) : one.undersold ? t('lab.too_few_sold', { n: number(one.undersold) }) : t('lab.exact')), (one) => one.stock),
  ];
  $('#charts').replaceChildren(...charts);
  reported = rows.map(({ arena }) => arena).filter((arena) => arena && standing.includes(arena));
  $('#report').hidden = reported.length === 0;
}

/**
 * One bar for each row, on one scale; the figure stands beside it as text, so that nobody has to read a length. `limit` draws
 * a mark on the bar, as in the race.
 */
function bars(name, rows, value, tone, words = (one) => fixed(value(one)), limit = () => null) {
  const most = Math.max(1e-9, ...rows.flatMap((one) => [value(one) ?? 0, limit(one) ?? 0]));
  return h('figure', { class: 'chart' }, h('figcaption', {}, h('h3', {}, t(`lab.chart.${name}`))),
    h('ul', {}, ...rows.map((one) => {
      const fill = h('i', {});
      fill.style.transform = `scaleX(${(value(one) ?? 0) / most})`;
      const mark = limit(one) == null ? null : h('b', {});
      if (mark) mark.style.left = `${(limit(one) / most) * 100}%`;
      return h('li', { class: tone(one) }, h('span', { class: 'what', title: title(one) }, brief(one), one.nodes > 1 ? h('small', {}, ` ×${one.nodes}`) : null),
        h('span', { class: 'num' }, words(one)), h('span', { class: 'bar', 'aria-hidden': 'true' }, fill, mark));
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
    const response = await fetch(inWords(`/api/v1/lab/report?arenas=${reported.map(encodeURIComponent).join(',')}`), { signal: AbortSignal.timeout(30_000) });
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
