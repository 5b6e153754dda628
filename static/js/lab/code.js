// Source code on a page: numbered, coloured, with lines that can be marked. Every piece is text in
// a span, never markup.

import { h } from '../ui.js';
import { lines } from './highlight.js';

/** `marks` are line numbers from 0. Answers {element, show(line from 1, or null)}. */
export function codeView(source, { file = '.rs', label, marks = new Set() } = {}) {
  const rows = lines(source, file).map((pieces, index) => h('span', { class: marks.has(index) ? 'line differs' : 'line' },
    ...pieces.map(([kind, piece]) => (kind ? h('span', { class: `t-${kind}` }, piece) : piece)), '\n'));
  const element = h('pre', { class: 'code', tabindex: '0', role: 'region', 'aria-label': label }, h('code', {}, ...rows));
  let running = null;
  return {
    element,
    /**
     * Marks the line that runs, and brings it into sight within its own box: the page itself stays
     * where it is.
     */
    show(number) {
      running?.classList.remove('runs');
      running?.removeAttribute('aria-current');
      running = rows[number - 1] ?? null;
      if (!running) return;
      running.classList.add('runs');
      running.setAttribute('aria-current', 'step');
      element.scrollTop = running.offsetTop - element.clientHeight * 0.4;
    },
  };
}
