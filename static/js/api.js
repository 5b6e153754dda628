// One way to call the API: JSON in and out, every failure a Problem with a stable `code`.

import { clock } from './clock.js';

/** What the server said in problem+json, or `network` / `timeout` when it said nothing. */
export class Problem extends Error {
  constructor(status, code, { detail = '', retryAfterMs = 0, extra = {} } = {}) {
    super(detail || code);
    Object.assign(this, { status, code, detail, retryAfterMs, extra });
  }
}

/** Retry-After is seconds or an HTTP date; 0 when absent. */
export function retryAfterMs(value, now = clock.now()) {
  if (!value) return 0;
  const seconds = Number(value);
  return Math.max(0, Number.isFinite(seconds) ? seconds * 1000 : Date.parse(value) - now) || 0;
}

export async function problemOf(response) {
  const body = await response.json().catch(() => ({}));
  return new Problem(response.status, body.code ?? `http_${response.status}`, {
    detail: body.detail ?? body.title,
    retryAfterMs: retryAfterMs(response.headers.get('retry-after')),
    extra: body,
  });
}

/** The answer, and when it was asked for and began to arrive: the clock learns from that. */
async function ask(path, how) {
  const sent = performance.now();
  const response = await fetch(path, how);
  return { response, sent, received: performance.now() };
}

/** What lang.js has asked for before any module was there; once. */
function early(method, path) {
  const { early: asked } = globalThis;
  if (method !== 'GET' || asked?.path !== path) return null;
  delete globalThis.early;
  return asked.answer;
}

/** `body` is sent as JSON, `key` as Idempotency-Key, `bearer` as Authorization, `credentials` as
 * headers of their own. Resolves to the parsed answer. */
export async function call(method, path, { body, key, bearer, credentials, timeoutMs = 10_000 } = {}) {
  const headers = { accept: 'application/json', ...credentials };
  if (body !== undefined) headers['content-type'] = 'application/json';
  if (key) headers['idempotency-key'] = key;
  if (bearer) headers.authorization = `Bearer ${bearer}`;
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(), timeoutMs);
  try {
    const { response, sent, received } = await (early(method, path) ?? ask(path, {
      method, headers, cache: 'no-store', signal: abort.signal,
      body: body === undefined ? undefined : JSON.stringify(body),
    }));
    if (!response.ok) throw await problemOf(response);
    const answer = response.status === 204 ? null : await response.json();
    const stamp = answer?.server_time ?? answer?.sales?.[0]?.server_time ?? response.headers.get('date');
    if (stamp) clock.observe(stamp, sent, received);
    return answer;
  } catch (error) {
    if (error instanceof Problem) throw error;
    throw new Problem(0, abort.signal.aborted ? 'timeout' : 'network');
  } finally {
    clearTimeout(timer);
  }
}

/** Spread `ms` by ±`share`, so that a thousand pages do not ask in the same instant. */
export const jitter = (ms, share = 0.25) => ms * (1 - share + 2 * share * Math.random());

/** Exponential back-off with full jitter and a floor. */
export const backoff = (attempt, base = 500, cap = 15_000) => 250 + Math.random() * Math.min(cap, base * 2 ** attempt);

/**
 * Repeats `work` every `period()` ms (jittered) while the page is visible; failures back off.
 * Returns {now, stop}.
 */
export function poll(work, period) {
  let timer, running = false, stopped = false, failures = 0, soon = null;
  const run = async () => {
    clearTimeout(timer);
    if (running || stopped || document.hidden) return;
    running = true;
    soon = null;
    try { await work(); failures = 0; } catch { failures += 1; }
    running = false;
    if (!stopped) timer = setTimeout(run, soon ?? (failures ? backoff(failures, 1000, 30_000) : jitter(period())));
  };
  document.addEventListener('visibilitychange', run);
  run();
  return {
    now: (delay = 0) => { soon = delay; if (!running) { clearTimeout(timer); timer = setTimeout(run, delay); } },
    stop: () => { stopped = true; clearTimeout(timer); document.removeEventListener('visibilitychange', run); },
  };
}
