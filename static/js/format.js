// Money, numbers and times in the page's language.

import { language } from './strings.js';

/** The visitor's variant of the page's language, if any: en-GB and en-US differ in dates. */
export const locale = globalThis.document
  ? navigator.languages.find((tag) => tag.startsWith(language)) ?? document.documentElement.lang
  : 'en-US';

const made = new Map();
function cached(kind, options) {
  const id = `${kind.name}|${JSON.stringify(options)}`;
  if (!made.has(id)) made.set(id, new kind(locale, options));
  return made.get(id);
}

/** How many digits the currency's minor unit has: 2 for USD, 0 for JPY. */
export function digitsOf(currency) {
  return cached(Intl.NumberFormat, { style: 'currency', currency }).resolvedOptions().maximumFractionDigits;
}

/** Integer minor units → text. Whole amounts drop their zeros: prices are shouted here. */
export function money(minor, currency) {
  try {
    const digits = digitsOf(currency);
    const whole = minor % 10 ** digits === 0;
    const options = { style: 'currency', currency, minimumFractionDigits: whole ? 0 : digits, maximumFractionDigits: digits };
    return cached(Intl.NumberFormat, options).format(minor / 10 ** digits);
  } catch {
    return `${minor / 100} ${currency}`; // a currency code that this browser does not know
  }
}

/**
 * What someone typed, in major units → integer minor units, without floating point; null if it is
 * not an amount.
 */
export function minorUnits(text, currency) {
  const digits = digitsOf(currency);
  const match = /^(\d{1,12})(?:[.,](\d+))?$/.exec(text.trim());
  if (!match || (match[2] ?? '').length > digits) return null;
  return Number(match[1] + (match[2] ?? '').padEnd(digits, '0'));
}

/** Percent off, whole, rounded down so that it never promises too much; 0 when there is none. */
export function percentOff(price, original) {
  return original > price ? Math.floor(((original - price) * 100) / original) : 0;
}

export const number = (n, options = {}) => cached(Intl.NumberFormat, options).format(n);

/** 0.254 → `25%`. */
export const share = (part) => number(part, { style: 'percent', maximumFractionDigits: part > 0 && part < 0.1 ? 1 : 0 });

/** A moment: the time alone when it is today, else with the date. */
export function moment(iso, now = Date.now()) {
  const date = new Date(iso);
  const today = date.toDateString() === new Date(now).toDateString();
  return cached(Intl.DateTimeFormat, today ? { timeStyle: 'medium' } : { dateStyle: 'medium', timeStyle: 'short' }).format(date);
}

/** A time of day, to the second. */
export const time = (at) => cached(Intl.DateTimeFormat, { timeStyle: 'medium' }).format(at);

/**
 * Milliseconds → {days, hours, minutes, seconds}, seconds rounded up so that "1" shows until the
 * very end.
 */
export function parts(ms) {
  const total = Math.max(0, Math.ceil(ms / 1000));
  return { days: Math.floor(total / 86_400), hours: Math.floor(total / 3600) % 24, minutes: Math.floor(total / 60) % 60, seconds: total % 60 };
}
