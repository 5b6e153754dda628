// Why a lane ended as it did: the lines that did it, and the two requests of this race that met
// there.

import { number } from '../format.js';
import { h } from '../ui.js';
import { byInterest, marked } from './marked.js';
import { causes, outcome, tone } from './race.js';
import { t } from './words.js';

const ms = (n) => t('ms', { n: number(n ?? 0, { maximumFractionDigits: 1 }) });

/**
 * Two requests of one race, each in a column of its own: when each began, where both stood, and
 * what each was told.
 */
function collision({ place, buyers, at_ms: at, a, b }) {
  const words = t(`lab.place.${place}`, { name: place }, 'lab.option_other');
  const column = (name, side) => h('li', {}, h('b', {}, name), side ? h('span', {}, t('lab.why.began', { ms: ms(side.began_ms) })) : null,
    h('span', { class: 'met' }, t('lab.why.stood', { ms: ms(at), place: words })), side ? h('span', {}, t('lab.why.sold', { ms: ms(side.sold_ms), order: side.order_id })) : null);
  return h('figure', { class: 'collision' }, h('figcaption', {}, t(buyers[0] === buyers[1] ? 'lab.why.same_buyer' : 'lab.why.collided', { a: buyers[0], b: buyers[1], ms: ms(at), place: words })),
    h('ol', {}, column(buyers[0], a), column(buyers[1], b)));
}

/**
 * A strategy's marks: what made a run of it (of the demonstration `show`, if there is one) end as
 * it did, then the rest by interest.
 */
export function byCause(strategy, show, run) {
  const { kind, tone: mood } = outcome(run), found = causes(strategy, show, kind, run.options);
  const others = new Set(found.length ? (strategy.demonstrations ?? []).map(({ mark }) => strategy.marks[mark]) : []);
  const rest = byInterest(strategy.marks, mood !== 'good');
  return [...new Set([...found, ...rest.filter((mark) => !others.has(mark)), ...rest])];
}

/** `onSource()` opens the whole source. */
export function cause(strategy, show, lane, onSource) {
  const { oversold, duplicates, options, verdict } = lane, broken = tone(lane) !== 'good';
  const marks = byCause(strategy, show, { ...verdict, oversold, duplicates, options });
  return h('div', { class: 'cause' },
    broken && verdict?.collision ? collision(verdict.collision) : null,
    ...marks.slice(0, 2).map((mark, index) => marked(mark, `${strategy.title} ${index + 1}`)),
    marks.length ? null : h('p', {}, strategy.fails),
    h('p', {}, h('button', { class: 'read', type: 'button', onclick: onSource }, t('lab.why.source'))));
}
