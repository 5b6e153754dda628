// Who buys: the shoppers of TOKENS_FILE, or as many as can be made on the way.

import { SharedArray } from 'k6/data';
import { giveUp } from './promises.js';
import { batch, call, inFewWords } from './requests.js';
import { BASE_URL, TOKENS_FILE } from './settings.js';

// `open` looks beside the script, but a person who writes TOKENS_FILE=tokens.json means the folder
// they are in.
const fromHere = (file) => (file.startsWith('/') || !__ENV.PWD ? file : `${__ENV.PWD}/${file}`);

const HOW_TO_WRITE_TOKENS =
  'Write it with: flash-sale tokens --users 100000 --out tokens.json (with the DATA_DIR or TOKEN_SECRET of the server).';

// Shared by all VUs: a million tokens are held once. Errors are kept as a value, because this runs
// before setup().
const fileTokens = new SharedArray('tokens', () => {
  if (!TOKENS_FILE) return [];
  let rows;
  try {
    rows = JSON.parse(open(fromHere(TOKENS_FILE)));
  } catch (error) {
    return [{ error: `TOKENS_FILE=${TOKENS_FILE} cannot be read: ${inFewWords(error)}. ${HOW_TO_WRITE_TOKENS}` }];
  }
  if (!Array.isArray(rows) || rows.length === 0 || !rows.every((row) => row && typeof row.token === 'string')) {
    return [{ error: `TOKENS_FILE=${TOKENS_FILE} is not a list of {"user_id","token"}. ${HOW_TO_WRITE_TOKENS}` }];
  }
  return rows.map((row) => row.token);
});

/** Opens a session for one new shopper. */
export function openSession(name) {
  const response = call('POST', '/api/v1/session', { body: { name } });
  if (response.status !== 201) giveUp(`POST /api/v1/session answered ${response.status} ${response.body || response.error}`);
  return response.data;
}

// What setup() returns is copied into every VU, so a hundred thousand tokens would be gigabytes. A
// file's are held once.
const MOST_OPENED = 5000;

/**
 * Makes sure of `count` different shoppers: those of TOKENS_FILE, else it opens sessions. Call it
 * in setup() and hand the result to `buyer`.
 */
export function findBuyers(count) {
  if (TOKENS_FILE) {
    if (fileTokens[0].error) giveUp(fileTokens[0].error);
    if (fileTokens.length < count) {
      giveUp(`TOKENS_FILE has ${fileTokens.length} tokens, and ${count} buyers are needed. ${HOW_TO_WRITE_TOKENS}`);
    }
    // The last one too: a file that was put together from two servers' tokens shows itself.
    for (const token of [fileTokens[0], fileTokens[count - 1]]) {
      if (call('GET', '/api/v1/session', { token }).status !== 401) continue;
      giveUp('The server does not accept the tokens of TOKENS_FILE: they have expired, or its TOKEN_SECRET is another.');
    }
    return { opened: null };
  }
  if (count > MOST_OPENED) {
    giveUp(
      `${count} buyers are needed, and a script opens at most ${MOST_OPENED} sessions. Write them first, ` +
        `flash-sale tokens --users ${count} --out tokens.json, and pass -e TOKENS_FILE=tokens.json.`,
    );
  }
  const opened = [];
  while (opened.length < count) {
    const wave = Math.min(50, count - opened.length);
    const requests = Array.from({ length: wave }, (_, i) => ({
      method: 'POST',
      url: `${BASE_URL}/api/v1/session`,
      body: JSON.stringify({ name: `Load ${opened.length + i + 1}` }),
      params: { headers: { 'Content-Type': 'application/json' }, tags: { name: 'POST /api/v1/session' } },
    }));
    for (const { status, body, data } of batch(requests)) {
      if (status !== 201) giveUp(`POST /api/v1/session answered ${status} ${body}`);
      opened.push(data.token);
    }
  }
  return { opened };
}

/**
 * The token of buyer number `index`, which counts from 0; `findBuyers` has made sure that there are
 * as many.
 */
export function buyer(buyers, index) {
  return buyers.opened ? buyers.opened[index] : fileTokens[index];
}
