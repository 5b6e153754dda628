// The page for the projector as a story: its scenes in order, and two buyers walking down five
// lines. No DOM.

export const SCENES = ['start', 'raced', 'stopped', 'fixed', 'again', 'doors'];

/** The five lines that both buyers run. */
export const LINES = ['buy', 'read', 'check', 'write', 'order'];

/** Where the two buyers stand at each moment; at GAP both have looked and neither has written. */
export const MOMENTS = [[0, 0], [1, 0], [1, 1], [3, 3], [4, 4]];
export const GAP = 2;

/** The scene and the moment one step further or back; `racing` scenes are gone into by a race. */
export function walk({ scene, moment }, by) {
  if (scene === 'stopped' && moment + by >= 0 && moment + by < MOMENTS.length) return { scene, moment: moment + by };
  const to = SCENES[Math.max(0, Math.min(SCENES.length - 1, SCENES.indexOf(scene) + by))];
  if (to === scene) return { scene, moment };
  return { scene: to, moment: to === 'stopped' && by < 0 ? MOMENTS.length - 1 : 0 };
}

/** What the third door leads to: a sale that is open, else one that comes up. */
export const onSale = (sales) => sales.find(({ state }) => state === 'open') ?? sales.find(({ state }) => state === 'scheduled');

/** `buyer-12` → 12. */
export const buyerNumber = (name) => /(\d+)$/.exec(name ?? '')?.[1] ?? name;
