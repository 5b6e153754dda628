// A sale's words and times, changed in a dialog.

import { localInput } from './sale-templates.js';
import { t } from './admin-words.js';
import { h, text, toast } from './ui.js';

const FIELDS = {
  title: { key: 'admin.f.title', required: true, maxlength: 200 },
  description: { key: 'admin.f.description', tag: 'textarea', rows: 3, maxlength: 4000 },
  image_url: { key: 'admin.f.image', list: 'pictures', maxlength: 500 },
  closes_at: { key: 'admin.f.closes', type: 'datetime-local', step: 1, required: true, shown: localInput, sent: (input) => new Date(input.value).toISOString() },
  payment_timeout_secs: { key: 'admin.f.timeout', type: 'number', min: 1, step: 1, required: true, sent: (input) => input.valueAsNumber },
};

/**
 * Asks, and gives `save` the members that were changed. If it throws, `words` says why, and the
 * dialog stays.
 */
export function editDialog(sale, save, words) {
  const fields = Object.entries(FIELDS).map(([name, { key, tag = 'input', shown = String, sent = ({ value }) => value.trim(), ...attributes }]) => {
    const input = h(tag, { id: `edit-${name}`, name, autocomplete: 'off', ...attributes });
    input.value = shown(sale[name] ?? '');
    return { name, input, sent, before: input.value, line: h('p', { class: 'field' }, h('label', { for: input.id }, t(key)), input) };
  });
  const error = h('p', { class: 'error', role: 'alert' });
  const done = h('button', { class: 'button primary' }, t('admin.save'));
  const dialog = h('dialog', { class: 'sheet', 'aria-labelledby': 'edit-heading' },
    h('h2', { id: 'edit-heading' }, t('admin.edit_of', sale)),
    h('form', { onsubmit: send }, ...fields.map(({ line }) => line), error,
      h('div', { class: 'ends' }, h('button', { class: 'button', type: 'button', onclick: () => dialog.close() }, t('confirm.no')), done)));
  dialog.addEventListener('close', () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();

  async function send(event) {
    event.preventDefault();
    const changed = fields.filter(({ input, before }) => input.value !== before);
    done.disabled = true;
    try {
      if (changed.length) await save(Object.fromEntries(changed.map(({ name, input, sent }) => [name, sent(input)])));
      else toast(t('admin.unchanged'));
      dialog.close();
    } catch (problem) {
      text(error, words(problem));
      done.disabled = false;
    }
  }
}
