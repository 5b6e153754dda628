// Server-sent events over fetch. The browser's own EventSource reconnects after a fixed pause
// (every page in the same second), gives up for ever on an error status, and hides heartbeats, so a
// dead connection looks alive. This reader does none of that, and lets go of its connection while
// the page is hidden: HTTP/1.1 grants six per site.

import { backoff, problemOf } from './api.js';

const SILENCE_MS = 40_000; // heartbeats come every 15 s; this long without one and the line is dead
const HIDDEN_MS = 10_000;
const FIRST_MS = 1500; // a server that goes lets go of all its pages at once; they come back spread over this long, then over more

/** Feeds text chunks, cut anywhere, and calls `emit(event, data)` for every complete event. */
export function parser(emit) {
  let rest = '', event = '', data = [];
  return (chunk) => {
    const lines = (rest + chunk).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    for (const line of lines) {
      if (line === '') {
        if (data.length) emit(event || 'message', data.join('\n'));
        event = ''; data = [];
        continue;
      }
      const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line);
      if (field === 'data') data.push(value);
      if (field === 'event') event = value;
    }
  };
}

/**
 * What an answer adds to a sale that events tell of: an answer on its way can be overtaken by one.
 */
export function newer(sale, answer) {
  if (!(Date.parse(answer.server_time) < Date.parse(sale?.server_time))) return answer;
  const { state, remaining, server_time, ...rest } = answer;
  return rest;
}

/**
 * Follows `url` until close(). `onEvent(name, value)` gets parsed JSON; `onStatus` gets `live`,
 * `reconnecting` or `offline`;
 * `onRefused(problem)` gets a 4xx that no retry will change, and ends the stream.
 */
export function follow(url, { onEvent, onStatus = () => {}, onRefused = () => {} }) {
  let closed = false, attempt = 0, timer, hiddenTimer, abort = null;

  async function connect() {
    clearTimeout(timer);
    if (closed || abort || document.hidden) return;
    const mine = abort = new AbortController();
    let watchdog, wait = 0;
    const heard = () => { clearTimeout(watchdog); watchdog = setTimeout(() => mine.abort(), SILENCE_MS); };
    try {
      heard();
      const response = await fetch(url, { headers: { accept: 'text/event-stream' }, cache: 'no-store', signal: mine.signal });
      if (!response.ok) {
        const problem = await problemOf(response);
        if (problem.status < 500 && problem.status !== 429 && problem.status !== 408) { close(); return onRefused(problem); }
        wait = problem.retryAfterMs;
        throw problem;
      }
      const feed = parser((name, data) => {
        if (attempt !== 0 || !mine.live) { attempt = 0; mine.live = true; onStatus('live'); }
        onEvent(name, JSON.parse(data));
      });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done || closed) break;
        heard();
        feed(value);
      }
    } catch { /* lost: falls through to the reconnect */ } finally {
      clearTimeout(watchdog);
      if (abort === mine) abort = null;
    }
    if (closed || mine.signal.reason === 'hidden') return;
    onStatus(navigator.onLine === false ? 'offline' : 'reconnecting');
    timer = setTimeout(connect, wait + backoff(attempt++, FIRST_MS));
  }

  function visibility() {
    clearTimeout(hiddenTimer);
    if (!document.hidden) return connect();
    hiddenTimer = setTimeout(() => { abort?.abort('hidden'); abort = null; }, HIDDEN_MS);
  }
  const online = () => { clearTimeout(timer); timer = setTimeout(connect, Math.random() * 500); };

  // The browser knows at once; a dead connection would be noticed by its silence only.
  const offline = () => { if (abort) abort.abort('offline'); else if (!closed) onStatus('offline'); };

  function close() {
    closed = true;
    clearTimeout(timer);
    clearTimeout(hiddenTimer);
    abort?.abort('closed');
    document.removeEventListener('visibilitychange', visibility);
    removeEventListener('online', online);
    removeEventListener('offline', offline);
    removeEventListener('pagehide', leave);
    removeEventListener('pageshow', connect);
  }
  // A page put aside for the back button must not keep a connection; it comes back when it is shown
  // again.
  const leave = () => { abort?.abort('hidden'); abort = null; };

  document.addEventListener('visibilitychange', visibility);
  addEventListener('online', online);
  addEventListener('offline', offline);
  addEventListener('pagehide', leave);
  addEventListener('pageshow', connect);
  connect();
  return { close };
}
