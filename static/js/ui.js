// The few things every page does with the DOM.

import { language, switchLanguage, t } from './strings.js';
import { number } from './format.js';

export const $ = (selector, root = document) => root.querySelector(selector);

/** h('p', {class: 'x', onclick: f, hidden: true}, 'text', node, …): text is never markup. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, '');
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

/** Sets text only when it changes, so that screen readers and selections are left in peace. */
export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

/** Puts the page's language into everything that has a data-t key, and marks where we are. */
export function shell() {
  for (const element of document.querySelectorAll('[data-t]')) text(element, t(element.dataset.t));
  for (const element of document.querySelectorAll('[data-t-label]')) element.setAttribute('aria-label', t(element.dataset.tLabel));
  for (const link of document.querySelectorAll('nav a')) {
    if (link.pathname === location.pathname) link.setAttribute('aria-current', 'page');
    else if (location.pathname.startsWith(`${link.pathname}/`)) link.setAttribute('aria-current', 'true');
  }
  const other = language === 'en' ? { to: 'zh', tag: 'zh-Hans', name: '中文' } : { to: 'en', tag: 'en', name: 'English' };
  const button = $('#lang');
  text(button, other.name); // in its own language, for those who need it
  button.lang = other.tag;
  button.addEventListener('click', () => switchLanguage(other.to));
  document.documentElement.classList.remove('wordless');
}

/** A message that does not move the page; `tone` is `good`, `bad` or nothing. */
export function toast(message, tone = '') {
  const box = $('#toast') ?? document.body.appendChild(h('div', { id: 'toast', role: 'alert' }));
  box.className = tone;
  text(box, message);
  box.classList.add('shown');
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => box.classList.remove('shown'), Math.max(4000, message.length * 70));
}

/** Shares the picture of {sold, stock, line, name}; what draws it is fetched when it is wanted. */
export const shareResult = (result) => import('./result-picture.js').then(({ share }) => share(result)).catch(() => toast(t('error.timeout'), 'bad'));

/** A lasting word about the connection; none when `message` is empty. */
export function banner(message) {
  const box = $('#banner');
  text(box, message ?? '');
  box.classList.toggle('shown', Boolean(message));
}

/** Asks before something that cannot be undone. Resolves to whether it was confirmed. */
export function confirm(question, more, yes, no) {
  return new Promise((resolve) => {
    const dialog = h('dialog', { 'aria-labelledby': 'ask' },
      h('h2', { id: 'ask' }, question),
      h('p', {}, more),
      h('form', { method: 'dialog' },
        h('button', { class: 'button', value: 'no', autofocus: true }, no),
        h('button', { class: 'button danger', value: 'yes' }, yes)));
    dialog.addEventListener('close', () => { dialog.remove(); resolve(dialog.returnValue === 'yes'); });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** A product picture; ours when there is none, or when it does not load. */
export function picture(url) {
  const image = h('img', { src: url || '/static/favicon.svg', alt: '', width: 480, height: 360, decoding: 'async' });
  image.addEventListener('error', () => { image.src = '/static/favicon.svg'; }, { once: true });
  return image;
}

export const badge = (state) => h('span', { class: `badge ${state}` }, t(`state.${state}`));

/** State as the clock sees it: a sale opens and ends on its second, not with the next answer. */
export function stateAt(sale, now) {
  if (sale.state === 'ended' || now >= Date.parse(sale.closes_at)) return 'ended';
  if (sale.state === 'scheduled' && now >= Date.parse(sale.opens_at)) return 'open';
  return sale.state === 'open' && sale.remaining <= 0 ? 'sold_out' : sale.state;
}

/** The stock in words, and whether it is running low. */
export function stockWords(sale, state) {
  const params = { left: number(sale.remaining), all: number(sale.stock), n: sale.stock };
  if (state === 'scheduled') return { words: t('stock.units', params), low: false };
  if (sale.remaining <= 0) return { words: t('stock.none', params), low: false };
  const low = state !== 'ended' && sale.remaining <= sale.stock * 0.2;
  return { words: t(low ? 'stock.last' : 'stock.of', params), low };
}

/**
 * A row of squares, one for a unit, or for as many as it takes where there are more than fit. The
 * sold ones come first, and the last of them is one's `own`. It is decoration: the words beside it
 * say the same.
 */
export function stockBar(bar, sale, own = false) {
  const all = Math.max(1, sale.stock), share = Math.max(0, Math.min(1, sale.remaining / all));
  const most = Number(getComputedStyle(bar).getPropertyValue('--cols')) || 20, n = Math.min(most, all);
  bar.style.setProperty('--n', n);
  bar.style.setProperty('--at', Math.max(0, Math.ceil((1 - share) * n) - 1));
  bar.firstElementChild.style.transform = `scaleX(${share})`;
  bar.classList.toggle('mine', own);
}
