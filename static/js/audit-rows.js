// An audit, read aloud: AUDIT of the API → one row for each invariant, as keys of strings/. No DOM.
//
// A row is {name, holds, params}: `holds` is true, false, or null where nothing can be said yet.
// Orders under way are no fault, so what only a quiet sale can show is null until it is quiet; what
// must be true at every moment never is.

export function auditRows(a) {
  const { redis, postgres } = a;
  const inRedis = redis.epoch !== null;
  const epochs = !inRedis || (redis.epoch !== postgres.epoch && !a.quiescent) ? null : redis.epoch === postgres.epoch;
  return [
    ['oversold', a.oversold === 0 && (redis.remaining ?? 0) >= 0, a],
    ['duplicates', a.duplicate_users === 0, { ...a, n: a.duplicate_users }],
    ['counter', postgres.taken === a.live, { ...a, taken: postgres.taken }],
    ['backlog', a.backlog === 0 ? true : null, { ...a, n: a.backlog }],
    ['conserved', a.conserved ?? null, a],
    ['epoch', epochs, { redis: redis.epoch, epoch: postgres.epoch }],
    ['run', redis.run_id_approved, {}],
  ].map(([name, holds, params]) => ({ name, holds, params }));
}

/** `yes`, `no` or `wait`: the ending of a row's keys, and its class. */
export const verdictOf = (holds) => (holds === null ? 'wait' : holds ? 'yes' : 'no');
