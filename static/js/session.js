// Who is shopping. The session itself is an HttpOnly cookie that no script can read; what is kept
// here is a marker that there is one, so that a first visit opens a session at once instead of
// first being told 401.

import { call } from './api.js';

const MARKER = 'flash-sale.session';
let current = null;

/** A cookie: what one tab writes to localStorage, as earlier versions did, others may see late. */
function remember(session) {
  document.cookie = `${MARKER}=1; path=/; max-age=31536000; samesite=lax`;
  return session;
}

function marked() {
  try { return document.cookie.includes(`${MARKER}=`) || localStorage.getItem(MARKER) !== null; } catch { return true; }
}

const channel = globalThis.BroadcastChannel && new BroadcastChannel('flash-sale.bought');

/** Tells this visitor's other tabs that something of this sale was bought. */
export const tabs = {
  tell: (sale) => channel?.postMessage(sale),
  hear: (then) => channel?.addEventListener('message', ({ data }) => then(data)),
};

const open = () => call('POST', '/api/v1/session', { body: {} }).then(remember);

async function find() {
  if (!marked()) return open();
  try {
    return remember(await call('GET', '/api/v1/session'));
  } catch (problem) {
    if (problem.status !== 401) throw problem;
    return open();
  }
}

/** Two tabs of a first visit must not open a session each. (Without https there are no locks.) */
const inTurn = (work) => (navigator.locks ? navigator.locks.request(MARKER, work) : work());

/**
 * The visitor's session; opened when there is none. A failure is not remembered: the next call
 * tries again.
 */
export function session() {
  current ??= inTurn(find).catch((problem) => { current = null; throw problem; });
  return current;
}

/** A call on behalf of the shopper. A session that ran out meanwhile is replaced once. */
export async function shop(method, path, options) {
  await session();
  try {
    return await call(method, path, options);
  } catch (problem) {
    if (problem.status !== 401) throw problem;
    current = null;
    await session();
    return call(method, path, options);
  }
}
