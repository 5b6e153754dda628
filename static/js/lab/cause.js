// Why a lane ended as it did: the lines that did it, and the two requests of this race that met there.

import { number } from '../format.js';
import { h } from '../ui.js';
import { byInterest, marked } from './marked.js';
import { t } from './words.js';

const PLACES = ['the stock is read', 'the version is read', 'there is no order yet', 'the order is written', 'the stock is taken', 'the unit is taken', 'the script has decided', 'the key has no expiry', 'unlocked and not committed'];

/** Two requests of one race, each in a column of its own, and the step at which both stood. */
function collision({ place, buyers: [a, b], at_ms: at }) {
  const words = PLACES.includes(place) ? t(`lab.place.${place}`) : place;
  const column = (name) => h('li', {}, h('b', {}, name), h('span', {}, words));
  return h('figure', { class: 'collision' }, h('figcaption', {}, t(a === b ? 'lab.why.same_buyer' : 'lab.why.collided', { a, b, ms: number(Math.round(at ?? 0)), place: words })),
    h('ol', { 'aria-hidden': 'true' }, column(a), column(b)));
}

/** `onSource()` opens the whole source. */
export function cause(strategy, verdict, broken, onSource) {
  const marks = byInterest(strategy.marks, broken);
  return h('div', { class: 'cause' },
    broken && verdict?.collision ? collision(verdict.collision) : null,
    ...marks.slice(0, 2).map((mark, index) => marked(mark, `${strategy.title} ${index + 1}`)),
    marks.length ? null : h('p', {}, strategy.fails),
    h('p', {}, h('button', { class: 'read', type: 'button', onclick: onSource }, t('lab.why.source'))));
}
