// Which locks an act of a lesson runs. No DOM.

/**
 * Which of these locks an act runs: the code of each stands in a file of its name
 * (`set_px_no_owner.rs`, `token.rs`).
 */
export function locksOf(line, act, locks) {
  const files = [...line.events.slice(act.first, act.last + 1).map((event) => event.line?.file), ...(act.marks ?? []).map(({ file }) => file)];
  const names = new Set(files.map((file) => /^crates\/locks\/src\/(\w+)\.rs$/.exec(file ?? '')?.[1].replaceAll('_', '-')));
  return locks.filter(({ id }) => names.has(id) || names.has(id.replace(/-lock$/, '')));
}
