// The receipt of a paid order: a sheet that can be printed or kept as a PDF.

import { locale, money } from './format.js';
import { moneyOf } from './order-view.js';
import { t } from './strings.js';
import { h } from './ui.js';

const moment = (iso) => new Intl.DateTimeFormat(locale, { dateStyle: 'long', timeStyle: 'medium' }).format(new Date(iso));

/** Shows the receipt of ORDER. */
export function receipt(order) {
  const line = (key, value, more = {}) => [h('dt', {}, t(key)), h('dd', more, value)];
  const dialog = h('dialog', { class: 'receipt', 'aria-labelledby': 'receipt-title' },
    h('p', { class: 'brand' }, t('brand')),
    h('h2', { id: 'receipt-title' }, t('receipt.title')),
    h('p', { class: 'unit' }, h('i', { 'aria-hidden': 'true' }), order.sale_title),
    h('dl', {},
      ...line('receipt.price', money(order.price_cents, order.currency)),
      ...line('receipt.number', order.order_id, { class: 'number' }),
      ...line('receipt.bought', moment(order.created_at)),
      ...line('receipt.paid', order.paid_at ? moment(order.paid_at) : '–'),
      ...(moneyOf(order) ? line('admin.filter', t(`status.${moneyOf(order)}`)) : [])),
    h('p', {}, t('foot')),
    h('form', { method: 'dialog' }, h('button', { class: 'button', autofocus: true }, t('receipt.close')),
      h('button', { class: 'button primary', type: 'button', onclick: () => print() }, t('receipt.print'))));
  dialog.addEventListener('close', () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
