// The operators' side of money: the books, and refunds.

import { figuresOf, inChinese, verdictOf } from './books-view.js';
import { clock } from './clock.js';
import { moment, number } from './format.js';
import { language, t } from './admin-words.js';
import { $, h, text } from './ui.js';

/** Dashes before the first comparison, so that nothing moves when it comes. */
export const showFigures = (books) => $('#books-figures').replaceChildren(...figuresOf(books)
  .map(([name, amount]) => h('div', {}, h('dt', {}, t(`books.${name}`)), h('dd', {}, amount === null ? '–' : number(amount)))));

/** Shows the books that `read` brings. */
export async function showBooks(read) {
  const button = $('#books-do');
  button.disabled = true;
  try {
    const books = await read();
    const verdict = verdictOf(books);
    $('#books-verdict').className = `verdict ${verdict}`;
    text($('#books-verdict'), t('admin.audit_line', { verdict: t(`books.${verdict}`), at: moment(clock.now(), clock.now()) }));
    $('#drift').hidden = books.drift.length === 0;
    $('#drift ul').replaceChildren(...books.drift.map((one) => { const zh = language === 'zh' ? inChinese(one) : null; return h('li', { lang: zh ? undefined : 'en' }, zh ?? one); }));
    showFigures(books);
  } finally {
    button.disabled = false;
  }
}

/**
 * Where an order's money is, and a button that returns it; again until that is done, as the
 * provider may have refused.
 */
export function moneyCell(order, returnIt) {
  const button = (words, label) => h('button', { class: 'button small', type: 'button', 'aria-label': label, onclick: returnIt }, words);
  if (!order.payment) return h('td');
  const refund = t('admin.refund_of', { id: order.order_id });
  if (order.payment === 'refunding') return h('td', {}, h('span', {}, t('payment.refunding')), ' ', button(t('buy.retry'), `${t('buy.retry')}: ${refund}`));
  if (order.status !== 'paid' || order.payment !== 'captured') return h('td', {}, t(`payment.${order.payment}`));
  return h('td', {}, button(t('admin.refund'), refund));
}

/** Asks before money goes back. Resolves to null, or to whether the unit comes back, too. */
export function askRefund(order) {
  return new Promise((resolve) => {
    const unit = h('input', { type: 'checkbox', id: 'return-unit' });
    const dialog = h('dialog', { 'aria-labelledby': 'refund-heading' },
      h('h2', { id: 'refund-heading' }, t('admin.refund_of', { id: order.order_id })),
      h('p', { class: 'tick' }, unit, h('label', { for: 'return-unit' }, t('admin.refund_unit'))),
      h('form', { method: 'dialog' },
        h('button', { class: 'button', value: 'no', autofocus: true }, t('confirm.no')),
        h('button', { class: 'button danger', value: 'yes' }, t('admin.refund'))));
    dialog.addEventListener('close', () => { dialog.remove(); resolve(dialog.returnValue === 'yes' ? unit.checked : null); });
    document.body.append(dialog);
    dialog.showModal();
  });
}
