// The swim lanes: one lane for each actor, one row for each step, time runs down. What was sent is an arrow; a lane is thick
// while its actor believes to hold the lock, and red while two do. For the eye only: the table below says the same.

import { h } from '../ui.js';
import { arrow, isOverlap } from './timeline.js';
import { t } from './words.js';

export function stage(root, line, onSeek) {
  const columns = line.actors.length;
  const template = `repeat(${columns}, minmax(0, 1fr))`;
  const laid = (element) => { element.style.gridTemplateColumns = template; return element; };
  const head = laid(h('div', { class: 'cast' }, ...line.actors.map(({ name, kind }) => h('span', { class: `actor ${kind}` }, h('i', {}), name))));
  const rows = line.events.map((event, step) => {
    const row = laid(h('div', { class: isOverlap(event) ? 'step overlap' : 'step' }));
    row.append(...line.actors.map(({ id }, column) => {
      const life = h('span', { class: (event.believers ?? []).includes(id) ? 'life holds' : 'life' });
      life.style.gridColumn = column + 1;
      return life;
    }));
    const sent = arrow(line, event);
    const from = Math.max(0, line.actors.findIndex(({ id }) => id === event.actor));
    const [left, right] = sent ? [Math.min(...sent), Math.max(...sent)] : [Math.max(0, from - 1), Math.min(columns - 1, from + 1)];
    const side = sent || right - left === 2 ? '' : from === left ? ' start' : ' end';
    const label = h('p', { class: `sent${side}` },
      event.detail?.command ? h('code', {}, event.detail.command) : h('span', { class: 'tale' }, event.say ?? words(event.step)), event.detail?.reply != null ? h('code', { class: 'reply' }, `→ ${event.detail.reply}`) : null);
    label.style.gridColumn = `${left + 1} / ${right + 2}`;
    row.append(label);
    if (sent) {
      const shaft = h('span', { class: sent[0] < sent[1] ? 'arrow' : 'arrow back' });
      shaft.style.gridColumn = `${left + 1} / ${right + 2}`;
      shaft.style.marginInline = `${50 / (right - left + 1)}%`; // from the middle of one lane to the middle of the other
      row.append(shaft);
    } else {
      const dot = h('span', { class: 'dot' });
      dot.style.gridColumn = from + 1;
      row.append(dot);
    }
    row.addEventListener('click', () => onSeek(step));
    return row;
  });
  const chapters = new Map(line.acts.map((act, number) => [act.first, h('p', { class: 'curtain' }, `${number + 1} · ${t(`lesson.kind.${act.kind}`)}: ${act.title}`)]));
  const list = h('div', { class: 'steps' }, ...rows.flatMap((row, step) => (chapters.has(step) ? [chapters.get(step), row] : [row])));
  root.replaceChildren(head, list);
  let shown = null;
  return (step) => {
    rows.forEach((row, index) => row.classList.toggle('later', index > step));
    for (const [first, curtain] of chapters) curtain.classList.toggle('later', first > step);
    shown?.classList.remove('now');
    shown = rows[step];
    shown.classList.add('now');
    root.scrollTop = shown.offsetTop - root.clientHeight * 0.55; // only the stage scrolls, never the page
  };
}

const words = (step) => String(step ?? '').replaceAll('_', ' ').replaceAll('-', ' ');
