// Sales to start from: what a form is filled with. No DOM.

const MINUTE = 60_000;

/**
 * Names of fields → what stands in them; `in_minutes` of a time is counted from now. Words are
 * keys.
 */
const TEMPLATES = {
  ten: { title: 'admin.t.ten', image_url: 'phone', price: '1', original: '999', stock: '10' },
  countdown: { title: 'admin.t.countdown', image_url: 'console', price: '249', original: '499', stock: '100', opens_at: { in_minutes: 2 } },
  rush: { title: 'admin.t.rush', image_url: 'sneakers', price: '49', original: '129', stock: '10000', opens_at: { in_minutes: 5 }, waiting_room: 'yes' },
  robots: { title: 'admin.t.robots', image_url: 'ticket', price: '49', stock: '500', purchase_pass: 'yes', challenge_bits: '16' },
};

/** A moment as <input type="datetime-local"> wants it: local, to the second, without a zone. */
export function localInput(at) {
  const date = new Date(at);
  return new Date(date - date.getTimezoneOffset() * MINUTE).toISOString().slice(0, 19);
}

/** [[field, value]…] of a template; `t` has the words. */
export const filled = (name, t, now) => Object.entries(TEMPLATES[name]).map(([field, value]) => [field, {
  title: () => t(value), image_url: () => `/static/img/${value}.svg`, opens_at: () => localInput(now + value.in_minutes * MINUTE),
}[field]?.() ?? value]);
