// What is happening in a race, as plain data: the events of the arenas in, lanes out. No DOM, no
// network.

const POINTS = 60; // of a lane's little curve

/** status: waiting, starting, running, done, refused. */
export const lane = (id, stock) => ({ id, stock, status: 'waiting', sold: 0, oversold: 0, duplicates: 0, attempts: 0, of: 0, curve: [], progress: null, verdict: null, why: null });

/**
 * A lane after one more event of its arena; `progress` that comes out of order does not turn it
 * back.
 */
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

export const SQUARES = 60; // most in a row

/**
 * A lane's row of squares. One square is one unit, or `per` units where there are too many; all
 * lanes of a race have as many. There is always air beyond the stock, so that an oversell has a
 * place to go to.
 */
export function scale(lanes) {
  const most = Math.max(1, ...lanes.map(({ sold, stock }) => Math.max(stock * 1.25, sold)));
  const per = Math.ceil(most / SQUARES), count = Math.ceil(most / per);
  const whole = (units) => Math.max(0, Math.ceil(units / per));
  return { per, count, row: ({ sold, stock }) => ({ stock: whole(stock), sold: whole(Math.min(sold, stock)), over: Math.min(whole(sold - stock), count - whole(stock)) }) };
}

/** What happened, the worst of it: one answer for the lane, the table and the bars. */
export function outcome({ sold, stock, oversold, duplicates, lost, broken, undersold, failed, verdict }) {
  if (verdict === 'undecided') return { kind: 'undecided', n: 1, tone: 'warn' };
  const nothing = sold === 0 ? failed : 0;
  const [kind, n] = Object.entries({ oversold, duplicates, lost, broken, nothing, undersold }).find(([, many]) => many > 0) ?? [sold < stock ? 'sound' : 'exact', 0];
  return { kind, n, tone: n === 0 ? 'good' : ['undersold', 'nothing'].includes(kind) ? 'warn' : 'bad' };
}

const SHOWN = { oversold: 'oversells', duplicates: 'duplicates', lost: 'loses', undersold: 'undersells' };

/**
 * The marks of what did it: that of the demonstration which was run, or else those of all that show
 * an outcome of this kind by options which this run has, too.
 */
export function causes({ marks = [], demonstrations = [] }, show, kind, options = {}) {
  const has = (own = {}) => Object.entries(own).every(([name, value]) => String(options[name]) === String(value));
  const shown = show ? [show] : demonstrations.filter((one) => one.shows && one.shows === SHOWN[kind] && has(one.options));
  return shown.map(({ mark }) => marks[mark]).filter(Boolean);
}

/**
 * good, bad, warn, or nothing yet. Selling too much is bad at once; selling too little shows only
 * in the end.
 */
export function tone({ status, oversold, duplicates, verdict }) {
  if (status === 'refused') return 'warn';
  const found = outcome({ ...verdict, oversold, duplicates }).tone;
  return found === 'bad' || verdict ? found : '';
}

/**
 * The points of an SVG polyline in a box of 100 by 30: the curve of `field`, from nothing to the
 * most there was.
 */
export function polyline(curve, field) {
  const values = curve.filter((point) => point[field] != null);
  if (values.length < 2) return '';
  const first = values[0].at, wide = Math.max(1, values.at(-1).at - first), most = Math.max(...values.map((point) => point[field]), 1e-9);
  return values.map((point) => `${round(((point.at - first) / wide) * 100)},${round(29 - (point[field] / most) * 28)}`).join(' ');
}
const round = (n) => Math.round(n * 10) / 10;
