// The marked lines of a source: what goes wrong or what prevents it, in words, and the line that
// does it.

import { h } from '../ui.js';
import { lines } from './highlight.js';
import { t } from './words.js';

const AROUND = 2; // lines shown before and after the marked one, until somebody wants all of them

function code({ code: source, file, first_line: first, line: marked, label }, from, to) {
  const rows = lines(source, file).slice(from - first, to - first + 1).map((pieces, index) => h('span', { class: from + index === marked ? 'line marked' : 'line' },
    ...pieces.map(([kind, piece]) => (kind ? h('span', { class: `t-${kind}` }, piece) : piece)), '\n'));
  const element = h('pre', { class: 'code excerpt', tabindex: '0', role: 'region', 'aria-label': label }, h('code', {}, ...rows));
  element.style.counterReset = `line ${from - 1}`;
  return element;
}

/**
 * One mark: its words, its line with the lines around it, and the whole excerpt where there is
 * more. `place` tells its code apart.
 */
export function marked(given, place = '') {
  const line = given.marked_line + 1; // the mark is a comment above the line that it marks
  const mark = { ...given, line, label: [place, t('lab.source_of', { title: `${given.file}:${line}` })].filter(Boolean).join(' · ') };
  const last = mark.first_line + mark.code.replace(/\n$/, '').split('\n').length - 1;
  const from = Math.max(mark.first_line, line - AROUND), to = Math.min(last, line + AROUND);
  const box = h('figure', { class: `marked ${mark.kind}` },
    h('figcaption', {}, h('strong', {}, t(`lab.mark.${mark.kind}`)), ' ', mark.words), code(mark, from, to));
  const more = from > mark.first_line || to < last;
  function whole({ target }) {
    const all = code(mark, mark.first_line, last);
    box.querySelector('.excerpt').replaceWith(all);
    target.remove();
    all.focus({ preventScroll: true }); // the button that had it is gone
  }
  box.append(h('p', { class: 'where-from' }, h('code', {}, `${mark.file}:${line}`), ' ',
    more ? h('button', { type: 'button', class: 'read', onclick: whole }, t('lab.mark.more')) : null));
  return box;
}

/** What went wrong first; of what holds, its cure. */
export const byInterest = (marks = [], broken = true) => marks.toSorted((a, b) => ((a.kind === 'flaw') === broken ? 0 : 1) - ((b.kind === 'flaw') === broken ? 0 : 1));
