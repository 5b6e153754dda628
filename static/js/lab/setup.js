// What is to be raced, as plain data: read from the address, kept in the address, and told to the
// server. No DOM, no network.

import { chosenOptions } from './choices.js';

export const OWN = 'own-server'; // the lane of a server of the visitor's own, which the judge storms
export const MOST_LANES = 4; // each holds a stream open, and HTTP/1.1 grants six connections per site

/** Name → [default, least, most]. The server has the last word; these catch typing errors. */
export const FIELDS = {
  stock: [100, 1, 10_000], buyers: [1000, 1, 100_000], concurrency: [64, 1, 1000], duplicates: [10, 0, 100], nodes: [1, 1, 8], work_ms: [0, 0, 2000], per_user_limit: [1, 1, 100],
};

export const defaults = () => ({
  strategies: [], options: {}, together: true, ...Object.fromEntries(Object.entries(FIELDS).map(([name, [value]]) => [name, value])),
});

/** A whole number within the field's bounds; its default where nothing sensible was given. */
export function bounded(name, given) {
  const [otherwise, least, most] = FIELDS[name];
  const value = given === '' || given == null ? NaN : Math.round(Number(given));
  return Number.isFinite(value) ? Math.max(least, Math.min(most, value)) : otherwise;
}

/** A machine's own names for itself: a server is judged only for those who sit at it. */
export const isHere = (host) => /^(localhost|127(\.\d{1,3}){3}|\[::1\])$/.test(host);

/**
 * `localhost:9000/shop/` → `http://localhost:9000/shop`; '' for what is no address of this machine.
 */
export function serverOf(text) {
  const url = /^[\w+]+:\/\//.test(text) ? text : `http://${text}`;
  const { protocol, hostname, host, pathname, username, search } = URL.canParse(url) ? new URL(url) : {};
  return protocol === 'http:' && isHere(hostname) && !username && !search ? `http://${host}${pathname.replace(/\/+$/, '')}` : '';
}

const LANE = /^[\w-]{1,64}(?::[\w-]{1,64})?$/; // a strategy, or one of its demonstrations

/** `strategy` or `strategy:demonstration` → [strategy, demonstration or undefined]. */
export const laneParts = (key) => key.split(':');

/** `?s=naive,token-lock:lease&stock=50&o.lease_ms=200` → setup. */
export function fromQuery(query) {
  const given = new URLSearchParams(query);
  const setup = defaults();
  setup.strategies = [...new Set((given.get('s') ?? '').split(',').filter((key) => LANE.test(key)))];
  setup.server = serverOf(given.get('server') ?? '');
  setup.together = given.get('in_turn') !== '1';
  for (const name of Object.keys(FIELDS)) if (given.has(name)) setup[name] = bounded(name, given.get(name));
  for (const [name, value] of given) if (/^o\.\w{1,40}$/.test(name) && value.length <= 40) setup.options[name.slice(2)] = value;
  return setup;
}

/** The other way round; what is as by default is left out. */
export function toQuery(setup) {
  const said = new URLSearchParams();
  if (setup.strategies.length) said.set('s', setup.strategies.join(','));
  if (setup.server) said.set('server', setup.server);
  if (!setup.together) said.set('in_turn', '1');
  for (const [name, [otherwise]] of Object.entries(FIELDS)) if (setup[name] !== otherwise) said.set(name, setup[name]);
  for (const [name, value] of Object.entries(setup.options)) said.set(`o.${name}`, value);
  return said.toString().replaceAll('%2C', ',').replaceAll('%3A', ':').replaceAll('%2F', '/');
}

/**
 * A strategy's own options, then those that all have. The fields of the form are no options here;
 * where nothing can crash, nothing about crashes is asked; and where it can, each strategy names
 * its own places.
 */
export function optionsOf(strategy, shared = []) {
  if (strategy.id === OWN) return [];
  const own = strategy.options ?? [], points = strategy.crash_points ?? [];
  return [...own, ...shared.filter(({ name }) => !own.some((one) => one.name === name))]
    .filter(({ name }) => !(name in FIELDS) && (points.length || !/^crash_|^restart_/.test(name)))
    .map((one) => (one.name === 'crash_at' ? { ...one, values: [...new Set([...(one.values ?? []), ...points])] } : one));
}

/** One field for an option that several strategies have: it offers what any of them knows. */
export const merged = (a, b) => (a && Array.isArray(a.values) ? { ...a, values: [...new Set([...a.values, ...(b.values ?? [])])] } : a ?? b);

/** What one lane is run with: the setup of the page, or its demonstration's own. */
export function laneSetup(setup, key, strategy) {
  if (key === OWN) return { ...setup, nodes: 1, work_ms: 0, per_user_limit: 1, options: { interleave: 'off' } }; // nothing is forced there
  const show = (strategy.demonstrations ?? []).find(({ id }) => id && id === laneParts(key)[1]);
  return show ? { ...fromDemonstration(strategy, show), together: setup.together } : setup;
}

/** Whether its speed says something about the strategy: alone on the machine, nobody forced. */
export const isFair = (setup, lanes) => lanes === 1 && setup.options.interleave === 'off';

/** What can be said of the lanes' speeds, where `size` of them run at once. */
export function comparison(lanes, size) {
  if (lanes.some(({ key }) => key === OWN)) return size > 1 ? 'together' : 'own';
  if (lanes.some(({ show }) => show)) return 'shown';
  const [{ setup }] = lanes;
  if (isFair(setup, size)) return 'fair';
  return setup.options.interleave === 'off' ? 'together' : 'forced';
}

/** A demonstration of a strategy as a setup: what it forces happens every time. */
export function fromDemonstration(strategy, show) {
  const options = Object.fromEntries(Object.entries(show.options ?? {}).filter(([name]) => !(name in FIELDS)).map(([name, value]) => [name, String(value)]));
  const given = { ...show.options, ...show, duplicates: Math.round((show.duplicate_share ?? 0) * 100) };
  const fields = Object.fromEntries(Object.keys(FIELDS).filter((name) => given[name] != null).map((name) => [name, bounded(name, given[name])]));
  return { ...defaults(), ...fields, options, strategies: [show.id ? `${strategy.id}:${show.id}` : strategy.id] };
}

/** The body of POST arenas, and that of POST storm. */
export function arenaBody(setup, strategy, shared) {
  const options = chosenOptions(optionsOf(strategy, shared), setup.options);
  const body = { strategy: strategy.id, stock: setup.stock, nodes: setup.nodes, per_user_limit: setup.per_user_limit, work_ms: setup.work_ms };
  return Object.keys(options).length ? { ...body, options } : body;
}
export const stormBody = (setup) => ({ buyers: setup.buyers, concurrency: Math.min(setup.concurrency, setup.buyers), duplicate_share: setup.duplicates / 100 });

/** The body of POST judgements. */
export const judgementBody = (setup) => ({ url: setup.server, stock: setup.stock, ...stormBody(setup) });

/** Those that run at once: all together, at most MOST_LANES, or one by one. */
export function heats(ids, together) {
  const size = together ? MOST_LANES : 1;
  return Array.from({ length: Math.ceil(ids.length / size) }, (_, heat) => ids.slice(heat * size, heat * size + size));
}
