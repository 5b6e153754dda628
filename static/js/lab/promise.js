// What a strategy promises, as badges: [{tone, key}…], the worst first. No DOM.

const HARMS = ['oversells', 'duplicates', 'undersells'];
const RANK = { expected: 0, possible: 1 };

/**
 * {oversells, undersells, duplicates: never | possible | expected} → badges; one good badge if
 * nothing can happen.
 */
export function badges(harms = {}) {
  const found = HARMS.filter((harm) => harms[harm] in RANK).map((harm) => ({
    tone: harms[harm] === 'expected' && harm !== 'undersells' ? 'bad' : 'warn', key: `lab.harm.${harm}_${harms[harm]}`, rank: RANK[harms[harm]],
  }));
  if (!found.length) return [{ tone: 'good', key: 'lab.harm.none' }];
  return found.sort((a, b) => a.rank - b.rank).map(({ tone, key }) => ({ tone, key }));
}
