// The end of a run: a verdict that fits one screen, and everything as JSON.

import { ENDINGS } from './flash.js';
import { BASE_URL, OUT_DIR } from './settings.js';

/**
 * Reads k6's summary data by metric: `count('flash_won')`. A metric without a sample is not in
 * there, and reads as 0.
 */
function reader({ metrics }) {
  const value = (metric, key) => {
    const found = metrics[metric];
    return (found && found.values && found.values[key]) || 0;
  };
  return {
    has: (metric) => metric in metrics,
    value,
    count: (metric) => value(metric, 'count'),
    gauge: (metric) => value(metric, 'value'),
    times: (metric) =>
      ['med', 'p(95)', 'p(99)', 'max'].map((key) => `${key} ${value(metric, key).toFixed(1)}`).join(', ') + ' ms',
  };
}

/** Every threshold that was missed: its metric, and in words. */
function missedThresholds({ metrics }, read) {
  const missed = [];
  for (const [metric, { type, thresholds }] of Object.entries(metrics)) {
    for (const [rule, { ok }] of Object.entries(thresholds || {})) {
      const key = type === 'trend' ? rule.replace(/[<>=].*/, '').trim() : type === 'gauge' ? 'value' : 'count';
      const actual = Math.round(read.value(metric, key) * 10) / 10;
      if (!ok) missed.push({ metric, text: `${metric} ${rule}, but it is ${actual}` });
    }
  }
  return missed;
}

const line = (label, text) => `  ${label.padEnd(9)} ${text}`;

/**
 * For handleSummary.
 *
 * `more(read)` adds lines of the script's own, as `[label, text]`. `asked` is how many arrivals an
 * open model asked for.
 * `isLimit(metric)` says which thresholds only look for a limit: to cross one of those is a finding
 * and no failure.
 *
 * PASSED repeats k6's own judgement of the thresholds, so that what is printed and the exit code
 * cannot differ.
 */
export function summary(name, data, { more = () => [], asked = 0, isLimit = () => false } = {}) {
  if (!data.metrics) {
    return { stdout: `\n${name}: run it without --new-machine-readable-summary; the verdict reads the other form.\n\n` };
  }
  const read = reader(data);
  const missed = missedThresholds(data, read);
  const failed = missed.filter(({ metric }) => !isLimit(metric)).map(({ text }) => text);
  const checked = read.count('flash_promises');
  const verdict = judged({ checked, failed, missed, givenUp: read.count('flash_given_up') > 0 });
  const lines = ['', `${verdict}  ${name}  (${BASE_URL})`];
  if (verdict === 'GIVEN UP') {
    // Figures of half a run would only distract from the reason.
    lines.push(line('', 'the line "test aborted" says why; anything BROKEN may only follow from that'));
  } else {
    lines.push(...howFast(read, asked), ...more(read).map(([label, text]) => line(label, text)), ...wasItCorrect(read, checked));
    for (const rule of failed) lines.push(line('failed', rule));
  }
  lines.push('', '');

  // What setup() returned has the buyers' tokens in it, and they are nobody's business.
  const { setup_data, ...figures } = data;
  const record = { name, verdict, passed: verdict === 'PASSED', failed, ...figures };
  return { stdout: lines.join('\n'), [`${OUT_DIR}/${name}.json`]: JSON.stringify(record, null, 2) };
}

function judged({ checked, failed, missed, givenUp }) {
  // A run that was given up in setup has missed no threshold and kept no promise; it must not look
  // like a success.
  if (checked === 0 || givenUp) return 'GIVEN UP';
  if (failed.length > 0) return 'FAILED';
  return missed.length > 0 ? 'FOUND' : 'PASSED';
}

function howFast(read, asked) {
  const counted = ENDINGS.map((ending) => [ending.replace('_', ' '), read.count(`flash_${ending}`)]).filter(([, n]) => n > 0);
  const attempts = counted.reduce((sum, [, n]) => sum + n, 0);
  const lines = [line('attempts', `${attempts}: ${counted.map(([ending, n]) => `${n} ${ending}`).join(', ') || 'none'}`)];
  if (read.has('flash_won_ms')) lines.push(line('winners', read.times('flash_won_ms')));
  if (read.has('flash_lost_ms')) lines.push(line('others', read.times('flash_lost_ms')));
  const dropped = read.count('dropped_iterations');
  if (dropped > 0) {
    lines.push(line('dropped', `${dropped} arrivals: k6 had nobody free to send them, so the load was lighter than asked`));
  }
  // k6 counts as dropped what it had no VU for. When it lacks CPU it is only late, and ends before
  // it has sent all.
  const sent = read.count('iterations') + dropped;
  if (sent < asked * 0.95) {
    lines.push(line('late', `only ${sent} of ${asked} arrivals: k6 was too slow itself, so the load was lighter than asked`));
  }
  return lines;
}

function wasItCorrect(read, checked) {
  const lines = [];
  if (read.has('flash_audit_live')) {
    lines.push(line('audit', `${read.gauge('flash_audit_live')} units sold, ${read.gauge('flash_audit_oversold')} oversold`));
  }
  const kept = Math.max(0, checked - read.count('flash_promises_broken'));
  lines.push(line('promises', `${kept} of ${checked} kept`));
  return lines;
}
