// What the lab's pages have in common: where we are in the lab, and what to say when something is
// refused.

import { errorWords } from '../strings.js';
import { $, shell, text } from '../ui.js';
import { t } from './words.js';

export function frame() {
  shell();
  for (const link of document.querySelectorAll('.rooms a')) {
    link.removeAttribute('aria-current');
    if (link.dataset.room !== document.body.dataset.room) continue;
    link.setAttribute('aria-current', 'page');
    link.parentElement.scrollLeft = link.offsetLeft - link.parentElement.offsetLeft; // on a phone they do not all fit
  }
}

/** A refusal in words: what a beginner can do about it. */
export function refusal(problem) {
  if (problem.status === 404 && problem.code === 'not_found') return t('lab.off');
  if (problem.code === 'rate_limited') return t('lab.busy', { n: Math.max(1, Math.ceil((problem.retryAfterMs || 1000) / 1000)) });
  return errorWords(problem);
}

/** Shows why there is nothing to show, and a button to try again where that may help. */
export function failed(problem, again) {
  const box = $('#failed');
  box.hidden = false;
  text($('#failed-why'), refusal(problem));
  const button = $('#failed-again');
  button.hidden = problem.status === 404;
  button.onclick = () => { box.hidden = true; again(); };
}
export const workedAgain = () => { $('#failed').hidden = true; };
