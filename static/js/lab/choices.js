// Options that were chosen, as the server wants them. No DOM, no network.

/** Text of a form or an address → the server's option: a number, true or false, or a word. */
export function optionValue(option, given) {
  if (given === '' || given == null) return option.default;
  if (Array.isArray(option.values)) return option.values.find((value) => String(value) === String(given)) ?? option.default;
  if (typeof option.default === 'boolean') return String(given) === 'true';
  if (typeof option.default === 'number' || option.min != null || option.max != null) {
    const value = Math.round(Number(given));
    return Number.isFinite(value) ? Math.max(option.min ?? -Infinity, Math.min(option.max ?? Infinity, value)) : option.default;
  }
  return String(given);
}

/** What of `chosen` (name → text) differs from the defaults, as the server wants it. */
export function chosenOptions(options, chosen) {
  const said = {};
  for (const option of options) {
    if (!(option.name in chosen)) continue;
    const value = optionValue(option, chosen[option.name]);
    if (value !== option.default && value != null) said[option.name] = value;
  }
  return said;
}
