// What a person can set, as environment variables or with `k6 run -e NAME=value`. The README lists
// all of them.

export const BASE_URL = (__ENV.BASE_URL || 'http://127.0.0.1:8080').replace(/\/+$/, '');
export const SHORT = __ENV.SHORT === '1';
export const ADMIN_TOKEN = __ENV.ADMIN_TOKEN || '';
export const TOKENS_FILE = __ENV.TOKENS_FILE || '';
export const OUT_DIR = __ENV.OUT_DIR || import.meta.resolve('../out').replace(/^file:\/\//, '');

/**
 * What is wrong with the settings. Said in setup(): an exception while k6 reads the script would
 * come with its stack.
 */
export const mistakes = [];

/** The whole number that a setting gives. */
export function wholeNumber(name, fallback, least = 1) {
  const text = __ENV[name];
  if (!text) return fallback;
  const number = Number(text);
  if (Number.isInteger(number) && number >= least) return number;
  mistakes.push(`${name}=${text} must be a whole number, at least ${least}.`);
  return fallback;
}

/** The seconds that a setting like 90, 90s, 30m or 8h gives. */
export function seconds(name, fallback) {
  const text = __ENV[name];
  if (!text) return fallback;
  const [, number, unit] = /^([1-9]\d*)([smh]?)$/.exec(text) || [];
  if (number) return Number(number) * { s: 1, m: 60, h: 3600 }[unit || 's'];
  mistakes.push(`${name}=${text} must be a duration like 90s, 30m or 8h.`);
  return fallback;
}
