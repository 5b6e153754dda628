// What is happening in a race, as plain data: the events of the arenas in, lanes out. No DOM, no network.

const POINTS = 60; // of a lane's little curve

/** status: waiting, starting, running, done, refused. */
export const lane = (id, stock) => ({ id, stock, status: 'waiting', sold: 0, oversold: 0, duplicates: 0, attempts: 0, of: 0, curve: [], progress: null, verdict: null, why: null });

/** A lane after one more event of its arena; `progress` that comes out of order does not turn it back. */
export function after(state, name, news) {
  if (name === 'progress') {
    if (state.verdict || (news.attempts ?? 0) < state.attempts) return state;
    const rate = news.throughput_per_s ?? 0;
    return {
      ...state, status: 'running', progress: news, attempts: news.attempts ?? 0, of: news.of ?? state.of,
      sold: news.sold ?? 0, oversold: over(news, state.stock), duplicates: news.duplicates ?? 0,
      curve: [...state.curve.slice(1 - POINTS), { at: news.elapsed_ms ?? 0, rate, p99: news.latency_ms?.p99 ?? null }],
    };
  }
  if (name === 'verdict') {
    return { ...state, status: 'done', verdict: news, sold: news.sold ?? 0, oversold: over(news, state.stock), duplicates: news.duplicates ?? 0, attempts: news.attempts ?? state.attempts };
  }
  return state;
}

/** More units than there are is what counts, whether or not it was counted. */
const over = (news, stock) => Math.max(news.oversold ?? 0, (news.sold ?? 0) - stock, 0);

/**
 * One scale for all bars of a race: `full` units are a bar's whole width, and the stock's mark stands at the same place on
 * all. There is always air beyond the mark, so that an oversell has a place to go to.
 */
export function scale(lanes) {
  const most = Math.max(1, ...lanes.map(({ sold, stock }) => Math.max(stock * 1.25, sold * 1.04)));
  return (units) => Math.max(0, Math.min(1, units / most));
}

/** good, bad, warn, or nothing yet. Selling too much is bad at once; selling too little shows only in the end. */
export function tone({ status, oversold, duplicates, verdict }) {
  if (status === 'refused') return 'warn';
  if (oversold > 0 || duplicates > 0) return 'bad';
  if (!verdict) return '';
  if ((verdict.lost ?? 0) > 0) return 'bad';
  return (verdict.undersold ?? 0) > 0 ? 'warn' : 'good';
}

/** The points of an SVG polyline in a box of 100 by 30: the curve of `field`, from nothing to the most there was. */
export function polyline(curve, field) {
  const values = curve.filter((point) => point[field] != null);
  if (values.length < 2) return '';
  const first = values[0].at, wide = Math.max(1, values.at(-1).at - first), most = Math.max(...values.map((point) => point[field]), 1e-9);
  return values.map((point) => `${round(((point.at - first) / wide) * 100)},${round(29 - (point[field] / most) * 28)}`).join(' ');
}
const round = (n) => Math.round(n * 10) / 10;
