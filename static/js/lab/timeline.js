// Walking through the play of a lesson: which step is shown, which act it belongs to, what the
// stage looks like there. No DOM.

/** PLAY of the API, made safe to walk through: acts cover all events, every list is there. */
export function timeline(play) {
  const events = play.events ?? [], acts = (play.acts ?? []).filter(({ first, last }) => Number.isInteger(first) && first <= last && last < events.length);
  const whole = acts.length ? acts : [{ id: 'all', title: play.title ?? '', kind: 'failure', first: 0, last: events.length - 1, verdict: play.verdict }];
  return { play, events, acts: whole, actors: play.actors ?? [], last: events.length - 1 };
}

export const within = (line, step) => Math.max(0, Math.min(line.last, Math.round(Number(step)) || 0));

/** Which act a step is in. */
export function actAt(line, step) {
  const found = line.acts.findIndex((act) => step >= act.first && step <= act.last);
  return found < 0 ? 0 : found;
}

/** What a key does: the next step, or null if it is no key of the theatre. */
export function keyed(line, step, key) {
  const to = { ArrowRight: step + 1, ArrowLeft: step - 1, Home: 0, End: line.last, PageDown: nextAct(line, step), PageUp: previousAct(line, step) }[key];
  return to === undefined ? null : within(line, to);
}
const nextAct = (line, step) => line.acts[actAt(line, step) + 1]?.first ?? line.last;
function previousAct(line, step) {
  const act = actAt(line, step);
  return step > line.acts[act].first ? line.acts[act].first : line.acts[act - 1]?.first ?? 0;
}

/**
 * Everything that one moment shows. A key is `changed` if it is not as it was a step ago in the
 * same act.
 */
export function moment(line, step) {
  const event = line.events[step], act = actAt(line, step);
  const before = step > line.acts[act].first ? line.events[step - 1].key_state ?? {} : {};
  const keys = Object.entries(event.key_state ?? {}).map(([name, state]) => ({
    name, ...(state ?? { value: null, ttl_ms: null, owner: null }),
    changed: (state?.value ?? null) !== (before[name]?.value ?? null) || (state?.owner ?? null) !== (before[name]?.owner ?? null),
  }));
  return { event, act: line.acts[act], number: act, keys, believers: event.believers ?? [], overlap: isOverlap(event), breaks: step === violation(line, act), ends: step === line.acts[act].last };
}

export const isOverlap = (event) => event.overlap === true;

/**
 * The step at which an act breaks what the lock promises: where a second one comes in; else, if it
 * was broken, the last one, before its actor unlocked or left the queue. null if it held.
 */
export function violation(line, number) {
  const { first, last, verdict } = line.acts[number];
  for (let step = first; step <= last; step++) if (isOverlap(line.events[step])) return step;
  if (!verdict?.broken) return null;
  const locks = (step) => Object.entries(line.events[step].key_state ?? {}).filter(([name, state]) => /lock/.test(name) && state?.value != null).length;
  const { actor } = line.events[last];
  for (let step = last; step > first && line.events[step].actor === actor; step--) if (locks(step) < locks(step - 1)) return step - 1;
  return last;
}

/** How long a step stands while playing: time to read what is said about it. */
export const dwellMs = (event, speed) => Math.max(1400, Math.min(9000, 900 + 45 * words(event.say ?? ''))) / speed;
const words = (say) => (/[\u4e00-\u9fff]/.test(say) ? say.length * 2.4 : say.length); // a Chinese character says more than a letter

/**
 * The arrow of an event on a stage with these lanes: [from, to] as columns from 0; null for what
 * somebody does alone.
 */
export function arrow(line, event) {
  const from = line.actors.findIndex(({ id }) => id === event.actor), to = line.actors.findIndex(({ id }) => id === event.to);
  return from < 0 || to < 0 || from === to ? null : [from, to];
}

/**
 * The key that is the lock, if there is one; of several servers each has its own (`redis-2
 * lock:phone`).
 */
function lockOf(event, server) {
  const own = Object.entries(event.key_state ?? {}).filter(([name]) => !/^\S+ .*lock/.test(name) || !server || name.startsWith(`${server} `));
  const found = own.filter(([name, state]) => /lock/.test(name) && !/fence|freed/.test(name) && state?.value != null && state.owner);
  const place = ([name]) => Number(/\d+$/.exec(name)?.[0] ?? 0); // of a node in ZooKeeper's queue
  return found.find(([, { ttl_ms: ttl }]) => ttl > 0) ?? found.toSorted((one, other) => place(one) - place(other))[0] ?? null;
}

/**
 * How long a key lasts: ms; 'ever'; 'session' (a node of ZooKeeper); 'value' (it says itself when
 * it ends); null for a row.
 */
export function lasts(name, { value, ttl_ms: ttl }) {
  if (value == null || !/lock/.test(name)) return null;
  if (ttl != null && ttl >= 0) return ttl;
  if (/^czxid /.test(value)) return 'session';
  return /^\d{13}$/.test(value) ? 'value' : 'ever';
}

/**
 * What is left of the lease at a step, as a part of the most that its owner had in this act:
 * {owner, part, left: as of `lasts`}, or null.
 */
export function lease(line, step, server) {
  const [name, state] = lockOf(line.events[step], server) ?? [];
  const left = state && lasts(name, state);
  if (!state || left === 'value') return null;
  if (typeof left !== 'number') return { owner: state.owner, part: 1, left };
  const { first } = line.acts[actAt(line, step)];
  const had = line.events.slice(first, step + 1).map((event) => event.key_state?.[name]).filter((one) => one?.owner === state.owner && one.ttl_ms > 0);
  return { owner: state.owner, part: left / Math.max(1, ...had.map((one) => one.ttl_ms)), left };
}

/**
 * A reply as a reader wants it: what it says about the lock or the stock; null where it speaks for
 * itself. `t` has the words.
 */
export function meaning(event, nameOf, t) {
  const { command = '', reply, heard } = event.detail ?? {};
  if (reply == null) return null;
  if (heard === false) return reply; // whatever it says, nobody was told
  const state = event.key_state ?? {}, stock = state['phones in stock']?.value, orders = state.orders?.value;
  const [, read] = /^stock → (-?\d+)$/.exec(reply) ?? [];
  if (read != null) return t('lesson.means.stock', { n: read });
  if (/^(?:WITH|UPDATE|INSERT)\b/i.test(command)) {
    if (/^(?:0|no) row/.test(reply)) return t('lesson.means.refused');
    const other = [['lab.fenced', 'phone'], ['play_refunds', 'refunds']].find(([table]) => command.includes(table))?.[1];
    if (other) return state[other] ? `${t(`lesson.keyed.${other}`)} → ${state[other].value}` : reply;
    if (/row/.test(reply) && stock != null) return t('lesson.means.wrote', { stock, orders: orders ?? '–' });
  }
  const [, script, name] = /^(?:SETNX|SET|EVALSHA (\w+)_acquire\.lua \d+) (\S+)/.exec(command) ?? [], owner = name && (state[name] ?? state[`${event.to} ${name}`])?.owner;
  if (owner && (script || /NX\b/.test(command))) {
    const whose = { name: nameOf(owner) }, [, n] = /^\[\(integer\) [12], \(integer\) (\d+)/.exec(reply) ?? []; // with a fencing token
    if (owner !== event.actor) return t('lesson.means.taken', whose);
    if (n) return t('lesson.means.numbered', { ...whose, n });
    return t(script ? 'lesson.means.has' : 'lesson.means.free', whose); // a script says yes to whoever has it already, too
  }
  if (/^(?:EVALSHA \w*release|DEL\b)/.test(command) && /^\[?(?:\(integer\) )?\d/.test(reply)) {
    const counts = reply.match(/\d+/g).map(Number), [released, left] = command.includes('counting_') ? [1, counts[0]] : counts;
    if (!released) return t('lesson.means.not_deleted');
    return left ? t('lesson.means.left', { n: left }) : t('lesson.means.deleted');
  }
  return reply;
}

/** At most so many letters; a Chinese one is as wide as two. */
export function shortened(text, most) {
  const all = [...String(text)];
  let room = most, end = 0;
  while (end < all.length && (room -= /[\u2e80-\uffef]/.test(all[end]) ? 2 : 1) >= 0) end += 1;
  return end === all.length ? all.join('') : `${all.slice(0, Math.max(1, end - 1)).join('')}…`;
}

/** What an act sent to whom, while it ran: its price. [{act, kind, sent: [[actor, n]…], ms}…] */
export const prices = (line) => line.acts.map((act) => {
  const events = line.events.slice(act.first, act.last + 1), sent = new Map();
  for (const { to, detail } of events) if (to && detail?.command) sent.set(to, (sent.get(to) ?? 0) + 1);
  return { act, sent: [...sent], ms: Math.round((events.at(-1).t_ms ?? 0) - (events[0].t_ms ?? 0)) };
});
