// Options of a strategy or a lesson as fields of a form: the server says what there is and what
// each teaches.

import { h } from '../ui.js';
import { t } from './words.js';

/** The server's name of an option is what scripts send; people read words where we have them. */
export const optionName = (name) => t(`lab.option.${name}`, { name: name.replaceAll('_', ' ') }, 'lab.option_other');

export function optionInput(option, value, id) {
  const about = { id, 'aria-describedby': `${id}-teaches` };
  const now = value ?? option.default;
  if (Array.isArray(option.values)) {
    return h('select', about, ...option.values.map((one) => h('option', { value: String(one), selected: String(one) === String(now) }, t(`lab.value.${one}`, { name: String(one) }, 'lab.option_other'))));
  }
  if (typeof option.default === 'boolean') {
    const box = h('input', { type: 'checkbox', class: 'switch', ...about });
    box.checked = String(now) === 'true';
    return box;
  }
  const isNumber = typeof option.default === 'number' || option.min != null;
  return h('input', { type: isNumber ? 'number' : 'text', value: now ?? '', min: option.min, max: option.max, inputmode: isNumber ? 'numeric' : undefined, autocomplete: 'off', ...about });
}

/** What was chosen, as text. */
export const valueOf = (input) => (input.type === 'checkbox' ? String(input.checked) : input.value);
