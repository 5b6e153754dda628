// The play as a sequence diagram that grows: actors in fixed columns, time runs down. A lifeline is
// thick while its actor thinks it holds the lock; a bar under a server is what is left of the
// lease, in its owner's colour. For the eye only: the table below says the same.

import { actAt, arrow, isOverlap, lease, meaning, shortened, violation } from './timeline.js';
import { t } from './theatre-words.js';

const SVG = 'http://www.w3.org/2000/svg';
const PALETTE = 4; // colours of clients, in the sheet

function svg(name, props = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(props)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** Which colour each client has; servers have none. */
export function colours(actors) {
  const clients = actors.filter(({ kind }) => kind === 'client').map(({ id }) => id);
  return (id) => (clients.includes(id) ? `who-${clients.indexOf(id) % PALETTE}` : 'who-server');
}

let watching = null; // the width of the stage

/** Answers a function that shows a step. */
export function stage(root, line, onSeek, { nameOf, listed }) {
  const paint = colours(line.actors);
  let shown = 0, rows = [], heads = null;

  function lay() {
    const em = parseFloat(getComputedStyle(root).fontSize), wide = Math.max(300, root.clientWidth - 2);
    const row = em * 3.5, column = wide / line.actors.length;
    const picture = svg('svg', { width: wide, class: 'diagram', 'aria-hidden': 'true' });
    const ruler = svg('text', { class: 'command' });
    ruler.textContent = '0'.repeat(20);
    picture.append(ruler);
    root.append(picture);
    const letter = ruler.getComputedTextLength() / 20 || em / 2;
    ruler.remove();
    const at = (index) => column * (index + 0.5), fits = Math.floor((wide - em) / letter);
    let y = em * 0.6;
    const violations = line.acts.map((_, number) => violation(line, number));
    rows = line.events.map((event, step) => {
      const breaks = violations.includes(step);
      const group = svg('g', { class: `row${breaks || isOverlap(event) ? ' overlap' : ''}` });
      const act = line.acts.find(({ first }) => first === step);
      if (act) {
        const label = svg('text', { x: em * 0.7, y: y + em * 1.5, class: 'curtain' });
        label.textContent = shortened(`${line.acts.indexOf(act) + 1} · ${t(`lesson.kind.${act.kind}`)}: ${act.title}`, fits * 0.9);
        group.append(svg('rect', { x: 0, y: y + em * 0.3, width: wide, height: em * 1.8, class: 'curtain-back' }), label);
        y += em * 2.2;
      }
      const top = y, extra = breaks ? em * 1.7 : 0;
      group.append(svg('rect', { x: 0, y: top, width: wide, height: row + extra, class: 'back' }));
      for (const [index, { id }] of line.actors.entries()) {
        const holds = (event.believers ?? []).includes(id), thick = holds ? em * 0.7 : 2;
        group.append(svg('rect', { x: at(index) - thick / 2, y: top, width: thick, height: row + extra, class: `life ${holds ? `holds ${paint(id)}` : ''}` }));
      }
      if (extra) {
        const words = svg('text', { x: wide / 2, y: top + em * 1.2, class: 'violation', 'text-anchor': 'middle' });
        const what = isOverlap(event) ? t('lesson.two', { names: listed(event.believers) }) : line.acts[actAt(line, step)].verdict.why;
        words.textContent = shortened(`✕ ${what}`, fits * 0.8);
        group.append(words);
      }
      const base = top + extra, sent = arrow(line, event), from = Math.max(0, line.actors.findIndex(({ id }) => id === event.actor));
      const middle = sent ? (at(sent[0]) + at(sent[1])) / 2 : at(from);
      const say = (text, dy, kind, scale = 1) => {
        if (!text) return;
        const cut = shortened(text, fits / scale), half = (cut.length * letter * scale * (/[\u4e00-\u9fff]/.test(cut) ? 1.7 : 1)) / 2;
        const element = svg('text', { x: Math.min(Math.max(middle, half + em * 0.3), Math.max(wide - half - em * 0.3, half)), y: base + dy, class: kind, 'text-anchor': 'middle' });
        element.textContent = cut;
        group.append(element);
      };
      if (sent) {
        const [x1, x2] = sent.map(at), tip = x1 < x2 ? -1 : 1, yy = base + em * 1.75;
        group.append(svg('path', { d: `M${x1} ${yy}H${x2}m${tip * em * 0.5} ${-em * 0.3}l${-tip * em * 0.5} ${em * 0.3}l${tip * em * 0.5} ${em * 0.3}`, class: `arrow ${paint(event.actor)}` }));
        say(event.detail?.command ?? '', em * 1.3, 'command');
        say(meaning(event, nameOf, t) ?? event.say, em * 2.85, 'meaning');
      } else {
        group.append(svg('circle', { cx: at(from), cy: base + em * 1.2, r: em * 0.42, class: `dot ${paint(event.actor)}` }));
        say(event.say, em * 2.6, 'tale');
      }
      for (const [server, { id, kind }] of line.actors.entries()) {
        const left = ['redis', 'zookeeper'].includes(kind) ? lease(line, step, id) : null, whole = column * 0.7;
        if (!left) continue;
        group.append(svg('rect', { x: at(server) - whole / 2, y: base + row - em * 0.32, width: whole, height: em * 0.26, class: 'lease-whole' }),
          svg('rect', { x: at(server) - whole / 2, y: base + row - em * 0.32, width: Math.max(1, whole * left.part), height: em * 0.26, class: `lease-left ${paint(left.owner)}` }));
      }
      if (event.staged) say(t('lesson.staged'), em * 0.55, 'staged', 1);
      group.addEventListener('click', () => onSeek(step));
      y = base + row;
      picture.append(group);
      return { group, top, bottom: y };
    });
    picture.setAttribute('height', y + em);
    heads ??= document.createElement('div');
    heads.className = 'cast';
    heads.style.gridTemplateColumns = `repeat(${line.actors.length}, minmax(0, 1fr))`;
    heads.replaceChildren(...line.actors.map(({ id, name, kind }) => {
      const head = document.createElement('span'), sign = document.createElement('i');
      head.className = `actor ${kind} ${paint(id)}`;
      head.append(sign, name);
      return head;
    }));
    root.replaceChildren(heads, picture);
    show(shown);
  }

  function show(step) {
    shown = step;
    rows.forEach(({ group }, index) => { group.classList.toggle('later', index > step); group.classList.toggle('now', index === step); });
    const { bottom } = rows[step];
    root.scrollTop = bottom + heads.offsetHeight - root.clientHeight * 0.8; // only the stage scrolls, never the page
  }

  let laid = root.clientWidth;
  watching?.disconnect(); // of the play before
  watching = new ResizeObserver(() => { if (root.clientWidth !== laid) { laid = root.clientWidth; lay(); } });
  watching.observe(root);
  lay();
  return show;
}
