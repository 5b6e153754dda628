// The stage of the page for the projector: a crowd of dots, and two shops in which a unit is a
// square. A square moves only when it changes its owner.

import { number } from '../format.js';
import { h, text } from '../ui.js';

const DOTS = 120, PACE_MS = 45, FLIGHT_MS = 380;
const still = () => matchMedia('(prefers-reduced-motion: reduce)').matches;

export function crowd(root) {
  root.replaceChildren(...Array.from({ length: DOTS }, () => h('i', {})));
  let next = 0;
  return {
    /** Where one of them stands, who is served now. */
    leave() {
      const dot = root.children[(next * 37) % DOTS]; // from all over
      next += 1;
      dot.classList.add('served');
      return dot.getBoundingClientRect();
    },
    back() { next = 0; for (const dot of root.children) dot.classList.remove('served'); },
  };
}

export function shop(root, stock, people) {
  const frame = root.querySelector('.frame'), spill = root.querySelector('.spill'), count = root.querySelector('.count strong');
  let told = 0, shown = 0, timer = null, calm = [];
  function sell() {
    shown += 1;
    const from = people.leave();
    let square = frame.children[shown - 1];
    if (shown > stock) square = spill.appendChild(h('i', {}));
    square.className = shown > stock ? 'excess' : 'sold';
    root.classList.toggle('over', shown > stock);
    text(count, number(shown));
    if (still()) return;
    const to = square.getBoundingClientRect();
    square.animate([{ transform: `translate(${from.x - to.x}px, ${from.y - to.y}px) scale(.4)`, borderRadius: '50%' }, { transform: 'none', borderRadius: '0' }], { duration: FLIGHT_MS, easing: 'ease-out' });
  }
  function pace() {
    timer = null;
    if (still()) while (shown < told) sell();
    else if (shown < told) sell();
    if (shown < told) timer = setTimeout(pace, PACE_MS);
    else calm.splice(0).forEach((done) => done());
  }
  const shopped = {
    reset() {
      clearTimeout(timer);
      timer = null;
      told = shown = 0;
      frame.replaceChildren(...Array.from({ length: stock }, () => h('i', {})));
      spill.replaceChildren();
      root.classList.remove('over');
      text(count, '0');
    },
    /** How many are sold by now; shown one after the other, so that eyes can follow. */
    sold(n) { told = Math.max(told, n); timer ??= setTimeout(pace, 0); },
    settled: () => (shown < told || timer ? new Promise((done) => { calm.push(done); }) : Promise.resolve()),
    get shown() { return shown; },
  };
  shopped.reset();
  return shopped;
}
