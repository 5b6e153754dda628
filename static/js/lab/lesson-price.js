// What the locks of a lesson cost, free of contention: the server measures it when somebody first
// asks.

import { call } from '../api.js';
import { number } from '../format.js';
import { $, text, toast } from '../ui.js';
import { refusal } from './frame.js';
import { locksOf } from './locks-of.js';
import { inWords, t } from './theatre-words.js';

function cost({ cost_us: us }) {
  if (!us) return t('locks.not_measured');
  return t('locks.measured', { p50: t('locks.us', { n: number(Math.round(us.p50)) }), n: number(us.samples) });
}

export async function measure(line) {
  const button = $('#measure');
  button.disabled = true;
  try {
    const { locks, note_on_costs: how } = await call('GET', inWords('/api/v1/lab/locks'), { timeoutMs: 60_000 });
    for (const [index, act] of line.acts.entries()) {
      const words = locksOf(line, act, locks).map((one) => `${one.title}: ${cost(one)}`).join(' · ');
      text($('#prices').rows[index].lastElementChild, words || '–');
    }
    text($('#measured-how'), how ?? '');
  } catch (problem) {
    toast(refusal(problem), 'bad');
  }
  button.disabled = false;
}
