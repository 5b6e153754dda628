// What the live wall reads from /metrics: Prometheus text → samples → the difference of two looks.
// No DOM, no network. Counters only ever grow, so a rate is the difference of two looks by the time
// between them.

const PURCHASE = '/api/v1/sales/{id}/orders';
const VERDICTS = 'flash_sale_admissions_total';
const SECONDS = 'flash_sale_http_request_seconds_bucket';
const BACKLOG = 'flash_sale_backlog_orders';

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;
const UNESCAPED = { '\\n': '\n', '\\"': '"', '\\\\': '\\' };

/** Text → [{name, labels, value}]. Comments, and lines that are no samples, are passed over. */
export function parse(text) {
  const samples = [];
  for (const line of text.split('\n')) {
    const match = SAMPLE.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] ?? '').matchAll(LABEL)) labels[name] = value.replace(/\\[n"\\]/g, (pair) => UNESCAPED[pair]);
    samples.push({ name: match[1], labels, value: Number(match[3].replace('Inf', 'Infinity')) });
  }
  return samples;
}

/**
 * One look at the server, at `at` (ms): {at, verdicts: Map, buckets: [[upper bound in s, how many
 * up to it]…], backlog}.
 */
export function look(text, at) {
  const verdicts = new Map(), buckets = [];
  let backlog = 0;
  for (const { name, labels, value } of parse(text)) {
    if (name === VERDICTS) verdicts.set(labels.verdict, value);
    if (name === BACKLOG) backlog = value;
    if (name === SECONDS && labels.route === PURCHASE) buckets.push([Number(labels.le.replace('Inf', 'Infinity')), value]);
  }
  return { at, verdicts, buckets: buckets.sort(([a], [b]) => a - b), backlog };
}

/**
 * How many of each verdict came between two looks; null if the server started anew, or another one
 * answered.
 */
export function between(before, after) {
  const counts = new Map();
  for (const [verdict, value] of after.verdicts) counts.set(verdict, value - (before.verdicts.get(verdict) ?? 0));
  for (const verdict of before.verdicts.keys()) if (!after.verdicts.has(verdict)) return null;
  return [...counts.values()].some((count) => count < 0) ? null : counts;
}

/**
 * The latency in seconds below which the share `q` of the purchases between two looks stayed; null
 * if there were none. Known to a bucket; within it, it is taken to be even, as Prometheus'
 * histogram_quantile does.
 */
export function quantile(before, after, q) {
  const earlier = new Map(before.buckets);
  const grown = after.buckets.map(([bound, count]) => [bound, count - (earlier.get(bound) ?? 0)]);
  const all = grown.at(-1)?.[1] ?? 0;
  if (all <= 0) return null;
  const rank = q * all;
  let from = 0, below = 0;
  for (const [bound, count] of grown) {
    if (count >= rank) return bound === Infinity ? from : from + (bound - from) * ((rank - below) / (count - below || 1));
    [from, below] = [bound, count];
  }
  return from;
}
