// Walking through the play of a lesson: which step is shown, which act it belongs to, what the stage looks like there. No DOM.

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

/** Everything that one moment shows. A key is `changed` if it is not as it was a step ago in the same act. */
export function moment(line, step) {
  const event = line.events[step], act = actAt(line, step);
  const before = step > line.acts[act].first ? line.events[step - 1].key_state ?? {} : {};
  const keys = Object.entries(event.key_state ?? {}).map(([name, state]) => ({
    name, ...(state ?? { value: null, ttl_ms: null, owner: null }),
    changed: (state?.value ?? null) !== (before[name]?.value ?? null) || (state?.owner ?? null) !== (before[name]?.owner ?? null),
  }));
  return { event, act: line.acts[act], number: act, keys, believers: event.believers ?? [], overlap: isOverlap(event), ends: step === line.acts[act].last };
}

export const isOverlap = (event) => event.overlap === true;

/** The first moment of an act in which two hold the lock; null if there is none. */
export function firstOverlap(line, number) {
  const { first, last } = line.acts[number];
  for (let step = first; step <= last; step++) if (isOverlap(line.events[step])) return step;
  return null;
}

/** How long a step stands while playing: time to read what is said about it. */
export const dwellMs = (event, speed) => Math.max(1400, Math.min(9000, 900 + 45 * words(event.say ?? ''))) / speed;
const words = (say) => (/[\u4e00-\u9fff]/.test(say) ? say.length * 2.4 : say.length); // a Chinese character says more than a letter

/** The arrow of an event on a stage with these lanes: [from, to] as columns from 0; null for what somebody does alone. */
export function arrow(line, event) {
  const from = line.actors.findIndex(({ id }) => id === event.actor), to = line.actors.findIndex(({ id }) => id === event.to);
  return from < 0 || to < 0 || from === to ? null : [from, to];
}
