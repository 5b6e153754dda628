// Finished races as rows: for the table, for CSV and JSON, and packed into a link. No DOM, no
// network.

import { isFair } from './setup.js';

/** [name, how to read it from a row]: the columns of the CSV, and the order of a packed row. */
export const COLUMNS = [
  ['run', (row) => row.run], ['strategy', (row) => row.strategy], ['stock', (row) => row.stock], ['nodes', (row) => row.nodes], ['buyers', (row) => row.buyers],
  ['concurrency', (row) => row.concurrency], ['duplicates_percent', (row) => row.duplicates_percent], ['work_ms', (row) => row.work_ms], ['together', (row) => row.together],
  ['attempts', (row) => row.attempts], ['sold', (row) => row.sold], ['oversold', (row) => row.oversold], ['undersold', (row) => row.undersold],
  ['duplicates', (row) => row.duplicates], ['lost', (row) => row.lost], ['contended', (row) => row.contended], ['failed', (row) => row.failed],
  ['throughput_per_s', (row) => row.throughput_per_s],
  ...['latency_ms', 'winners_ms', 'losers_ms'].flatMap((group) => ['p50', 'p95', 'p99', 'max'].map((name) => [`${group}.${name}`, (row) => row[group]?.[name]])),
  ...['redis', 'postgres', 'zookeeper'].map((name) => [`round_trips.${name}`, (row) => row.round_trips?.[name]]),
  ['kept_promise', (row) => row.kept_promise],
  ['demonstration', (row) => row.demonstration ?? ''], ['fair', (row) => row.fair], ['broken', (row) => row.broken],
];
const DEMONSTRATION = COLUMNS.findIndex(([name]) => name === 'demonstration');
const TEXTS = ['strategy', 'demonstration'], FLAGS = ['kept_promise', 'fair'];

/** A verdict and what it was run with → a row. `run` numbers the races of a page, from 1. */
export function row(verdict, setup, run, lanes) {
  return {
    run, nodes: setup.nodes, buyers: setup.buyers, concurrency: setup.concurrency, duplicates_percent: setup.duplicates, work_ms: setup.work_ms,
    together: lanes, fair: isFair(setup, lanes), options: setup.options, ...verdict, strategy: verdict.strategy?.id ?? verdict.strategy,
  };
}

/** RFC 4180. A text that a spreadsheet would take for a formula gets an apostrophe in front. */
export function csv(rows) {
  const cell = (value) => {
    if (value == null) return '';
    let text = String(value);
    if (typeof value === 'string' && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [COLUMNS.map(([name]) => name), ...rows.map((one) => COLUMNS.map(([, read]) => read(one)))].map((line) => `${line.map(cell).join(',')}\r\n`).join('');
}

export const json = (rows) => `${JSON.stringify({ results: rows }, null, 2)}\n`;

/**
 * Rows → text for a link's fragment: small arrays, what was measured to the digit that the table
 * shows, no explanations (they follow the language).
 */
export function pack(rows) {
  const lean = (value) => (typeof value === 'number' && !Number.isInteger(value) ? (value < 10 ? Math.round(value * 10) / 10 : Math.round(value)) : typeof value === 'boolean' ? Number(value) : value ?? null);
  const bytes = new TextEncoder().encode(JSON.stringify(rows.map((one) => COLUMNS.map(([, read]) => lean(read(one))))));
  return btoa(String.fromCharCode(...bytes)).replaceAll('+', '-').replaceAll('/', '_').replace(/=+$/, '');
}

/** And back; whatever is not such a text gives no rows, never an error: links get broken. */
export function unpack(text) {
  try {
    const bytes = Uint8Array.from(atob(text.replaceAll('-', '+').replaceAll('_', '/')), (char) => char.charCodeAt(0));
    const packed = JSON.parse(new TextDecoder().decode(bytes));
    return packed.slice(0, 200).filter((values) => Array.isArray(values) && /^[\w-]{1,64}$/.test(values[1]) && /^[\w-]{0,64}$/.test(values[DEMONSTRATION] ?? '')).map(unpacked);
  } catch {
    return [];
  }
}

function unpacked(values) {
  const one = {};
  COLUMNS.forEach(([name], index) => {
    const value = TEXTS.includes(name) ? values[index] ?? '' : FLAGS.includes(name) ? (values[index] == null ? null : Boolean(values[index])) : Number.isFinite(values[index]) ? values[index] : null;
    const [group, part] = name.split('.');
    if (part) (one[group] ??= {})[part] = value;
    else one[group] = value;
  });
  return one;
}
