// Countdowns that change exactly when the server's second does, instead of every-1000-ms-or-so.

import { clock } from './clock.js';
import { parts } from './format.js';
import { t } from './strings.js';

/**
 * Milliseconds until a countdown to `target` shows another second; at the last one, until the
 * target itself.
 */
export function untilNextChange(target, now) {
  const left = target - now;
  return left <= 0 ? Infinity : left % 1000 || 1000;
}

const FAR = 3; // days; who comes that early does not count seconds

/** `12 days`, `1 d 02:03:04`, `02:03:04` or `03:04`. */
export function digits(ms) {
  const { days, hours, minutes, seconds } = parts(ms);
  const two = (n) => String(n).padStart(2, '0');
  const tail = `${two(minutes)}:${two(seconds)}`;
  if (days >= FAR) return t('days_only', { n: days });
  if (days) return `${t('days', { n: days })} ${two(hours)}:${tail}`;
  return hours ? `${two(hours)}:${tail}` : tail;
}

/**
 * Writes the time left to `target` (ms on the server's clock) into `element`; `done` runs when it
 * is over.
 */
export function countdown(element, target, done = () => {}) {
  let timer;
  const tick = () => {
    const now = clock.now();
    const text = digits(target - now);
    if (element.textContent !== text) element.textContent = text;
    if (now >= target) return done();
    timer = setTimeout(tick, untilNextChange(target, now) + 1);
  };
  tick();
  return () => clearTimeout(timer);
}
