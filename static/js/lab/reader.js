// The lesson of a strategy beside its source; and beside another one's source, with the lines
// marked in which they differ.

import { $, h, text } from '../ui.js';
import { byCause } from './cause.js';
import { codeView } from './code.js';
import { changed } from './diff.js';
import { byInterest, marked } from './marked.js';
import { t } from './words.js';

const PARTS = ['idea', 'source', 'fails', 'break_it', 'instead'];

/** A value that the text names is called as the field beside it calls it. */
const said = (words) => words.replace(/="([a-z ]+)"/gi, (_, value) => `="${t(`lab.value.${value}`, { name: value }, 'lab.option_other')}"`);

/** `onShow(strategy, demonstration)` is told what somebody wants to see happen. */
export function reader(root, { familyName, onShow }) {
  let strategies = [], shown = null, beside = '', ran = null;
  const pick = $('#read-which', root), other = $('#read-beside', root);
  const named = (id) => strategies.find((one) => one.id === id);
  const choices = (none) => [...(none ? [h('option', { value: '' }, none)] : []), ...strategies.map((one) => h('option', { value: one.id }, one.title))];

  function show() {
    const one = named(shown), two = beside && beside !== shown ? named(beside) : null;
    if (!one) return;
    pick.value = one.id;
    other.value = two?.id ?? '';
    text($('#h-reader', root), one.title);
    text($('#read-family', root), [t('lab.number', { n: one.number }), one.family ? familyName(one.family) : ''].filter(Boolean).join(' · '));
    text($('#read-lead', root), one.lead ?? '');
    const demonstration = one.demonstrations?.find(({ id }) => id && id === ran?.demonstration);
    const marks = ran ? byCause(one, demonstration, ran) : byInterest(one.marks);
    $('#read-marks', root).replaceChildren(...marks.map((mark, index) => marked(mark, String(index + 1))));
    $('#read-words', root).replaceChildren(...PARTS.filter((part) => one[part]).map((part) => h('div', { class: part }, h('dt', {}, t(`lab.part.${part}`)), h('dd', {}, said(one[part])))));
    const shows = (one.available?.ok === false ? [] : one.demonstrations ?? []).map((show) => h('li', {}, h('p', {}, show.teaches),
      h('button', { class: 'button small', type: 'button', 'aria-label': t('lab.show_of', { what: show.teaches }), onclick: () => onShow(one, show) }, t('lab.show'))));
    if (shows.length) $('#read-words', root).append(h('div', { class: 'shows' }, h('dt', {}, t('lab.shows')), h('dd', {}, h('ul', {}, ...shows))));
    const [a, b] = two ? changed(one.code.split('\n'), two.code.split('\n')) : [new Set(), new Set()];
    const panel = (strategy, marks) => h('div', { class: 'source' }, h('p', { class: 'source-name' }, strategy.title),
      codeView(strategy.code, { label: t('lab.source_of', { title: strategy.title }), marks }).element);
    $('#read-code', root).replaceChildren(...[one, two].filter(Boolean).map((strategy, index) => panel(strategy, index ? b : a)));
    $('#read-body', root).classList.toggle('two', Boolean(two));
    $('#read-marked', root).hidden = !two;
  }

  pick.addEventListener('change', () => { shown = pick.value; ran = null; show(); });
  other.addEventListener('change', () => { beside = other.value; show(); });
  return {
    know(list) {
      strategies = list;
      pick.replaceChildren(...choices());
      other.replaceChildren(...choices(t('lab.beside_none')));
    },
    /** `result` is the row of a run whose cause is to come first. */
    open([id, besides], result) {
      if (besides) beside = besides;
      shown = id;
      ran = result;
      show();
    },
  };
}
