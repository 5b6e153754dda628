// Talking to a flash-sale server, and stopping early, with a reason, where that makes no sense.

import http from 'k6/http';
import { sleep } from 'k6';
import { cutOff, giveUp } from './promises.js';
import { ADMIN_TOKEN, BASE_URL, mistakes } from './settings.js';

// Refusals are ordinary answers in a flash sale; only a 5xx or no answer at all counts as failed in
// k6's own metrics.
http.setResponseCallback(http.expectedStatuses({ min: 200, max: 499 }));

/**
 * One request. `name` groups the URLs of one route in k6's own metrics; without it every order id
 * is a metric of its own. Answers `{status, body, error, headers, timings, data, code}`: `data` is
 * the parsed body or null, `code` the problem's code or ''. (A copy, because k6's own response
 * takes no new fields.)
 */
export function call(method, path, options) {
  return orGiveUp(request(method, path, options));
}

function request(method, path, { token, body, headers, name, timeout = '15s' } = {}) {
  // Opening a session also sets a cookie, which k6 would send from then on: then nobody would be
  // without a token.
  http.cookieJar().clear(BASE_URL);
  const text = body === undefined ? null : typeof body === 'string' ? body : JSON.stringify(body);
  let response;
  try {
    response = http.request(method, `${BASE_URL}${path}`, text, {
      headers: {
        ...(token ? { Authorization: `Bearer ${token}` } : {}),
        ...(text === null ? {} : { 'Content-Type': 'application/json' }),
        ...headers,
      },
      tags: { name: name || `${method} ${path}` },
      redirects: 0,
      timeout,
    });
  } catch (error) {
    response = { status: 0, body: '', error: inFewWords(error), headers: {}, timings: { duration: 0 } };
    if (response.error.includes('context canceled')) cutOff();
  }
  return understood(response);
}

/**
 * Many requests at the same time, as many as the option `batchPerHost` says. Answers what `call`
 * would, for each.
 */
export function batch(requests) {
  let responses;
  try {
    responses = http.batch(requests);
  } catch (error) {
    giveUp(`The server at ${BASE_URL} does not answer any more: ${inFewWords(error)}`);
  }
  return responses.map((response) => orGiveUp(understood(response)));
}

/** `GoError: Get "http://…": dial tcp …: connect: connection refused` without its beginning. */
export const inFewWords = (error) => String(error).replace(/^GoError: /, '').replace(/^[A-Z][a-z]+ "[^"]*": /, '');

/** Ends the run where going on would measure something else: the limits, or nothing at all. */
function orGiveUp(response) {
  if (response.status === 0 && response.error.includes('connection refused')) {
    giveUp(`The server at ${BASE_URL} has gone: ${response.error}.`);
  }
  if (response.status === 429) {
    giveUp('The server limits how often one address may ask, and all of k6 is one address. Start it with RATE_LIMIT=off.');
  }
  return response;
}

function understood(response) {
  let data = null;
  try {
    data = JSON.parse(response.body);
  } catch (_) {
    // Not JSON: a page, the metrics, or nothing.
  }
  const { status, body, error, headers, timings } = response;
  return { status, body: body || '', error, headers, timings, data, code: (data && data.code) || '' };
}

/** The same with the admin token, and with the usual mistakes explained. */
export function admin(method, path, body, name) {
  // An audit reads every order of its sale, which may take its time.
  const options = { token: ADMIN_TOKEN, body, name: name && `${method} ${name}`, timeout: '60s' };
  const ask = () => request(method, `/api/v1/admin${path}`, options);
  let response = ask();
  // When a run is given up for its 429s, the sale still has to be closed.
  for (let waited = 0; response.status === 429 && waited < 5; waited++) {
    sleep(1);
    response = ask();
  }
  orGiveUp(response);
  if (response.status === 401) {
    giveUp('The server does not accept this ADMIN_TOKEN. Embedded, it keeps its own in DATA_DIR/admin_token.');
  }
  if (response.status === 404 && response.code !== 'sale_not_found') {
    giveUp('The server has no admin routes: it was started without an ADMIN_TOKEN.');
  }
  return response;
}

/**
 * Ends the run unless the settings make sense and the server is there and ready. The first thing in
 * every setup().
 * `operator: false` for a script that asks nothing of the admin routes.
 */
export function serverOrGiveUp({ operator = true } = {}) {
  if (mistakes.length > 0) giveUp(mistakes.join(' '));
  const response = request('GET', '/readyz');
  if (response.status === 0) giveUp(`No server at ${BASE_URL} (${response.error}). Start one with: make run`);
  if (response.status !== 200) giveUp(`${BASE_URL} is not ready: ${response.status} ${response.body.slice(0, 300)}`);
  if (operator && !ADMIN_TOKEN) {
    giveUp('ADMIN_TOKEN is not set. The server prints it when it first starts embedded; give the same one to k6.');
  }
}

/**
 * The server's clock in milliseconds, right to half a second. k6 may run on a machine whose clock
 * is another.
 */
export function serverNow() {
  return Date.parse(call('GET', '/healthz').headers.Date) + 500;
}

/**
 * Calls `look` until it answers something true or the seconds are over; answers its last answer.
 */
export function waitFor(look, seconds = 10, pause = 0.05) {
  const deadline = Date.now() + seconds * 1000;
  for (;;) {
    const seen = look();
    if (seen || Date.now() > deadline) return seen;
    sleep(pause);
  }
}
