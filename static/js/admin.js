// The operators' page: steer sales, look at orders, read the audit in words.

import { editDialog } from './admin-edit.js';
import { askRefund, moneyCell, showBooks, showFigures } from './admin-money.js';
import { call, poll } from './api.js';
import { inChinese } from './audit-problems.js';
import { auditRows, verdictOf } from './audit-rows.js';
import { clock } from './clock.js';
import { money, moment, number } from './format.js';
import { newSale } from './new-sale.js';
import { filled } from './sale-templates.js';
import { errorWords, language, t } from './admin-words.js';
import { $, badge, banner, confirm, h, shell, stateAt, text, toast } from './ui.js';

const KEPT = 'flash-sale.admin-token';
const PAGE = 50;
let token = sessionStorage.getItem(KEPT) ?? '';
let polling, sales = [], inspected = null, last = null, asked = 0, audits = 0;

const operate = (method, path, body) => call(method, `/api/v1/admin/${path}`, { body, bearer: token });
const admin = (method, path, body) => operate(method, `sales${path}`, body);
const path = (sale, rest = '') => `/${encodeURIComponent(sale.id)}${rest}`;

/** 401 and the 404 of a switched-off admin API need words of their own. */
function words(problem) {
  if (problem.status === 401) return t('error.admin_token');
  if (problem.code === 'not_found') return t('error.admin_off');
  return errorWords({ ...problem, detail: named(problem.detail) });
}

/** Fields of the API → the labels and the inputs of the forms. */
const LABELS = {
  title: 'admin.f.title', description: 'admin.f.description', image_url: 'admin.f.image', currency: 'admin.f.currency', price_cents: 'admin.f.price',
  original_price_cents: 'admin.f.original', stock: 'admin.f.stock', per_user_limit: 'admin.f.limit', opens_at: 'admin.f.opens', closes_at: 'admin.f.closes',
  payment_timeout_secs: 'admin.f.timeout', challenge_bits: 'admin.f.work', add: 'admin.add',
};
const INPUTS = { price_cents: 'price', original_price_cents: 'original' };
const fieldOf = (detail) => /^(\w+): /.exec(detail ?? '')?.[1];

/** `price_cents: must be…` → `Price must be…`; the Chinese words name the field themselves. */
function named(detail) {
  const field = fieldOf(detail);
  return language === 'en' && LABELS[field] ? `${t(LABELS[field])} ${detail.slice(field.length + 2)}` : detail;
}

/** The field that a refusal is about, where it is on the form. */
function pointAt(form, name) {
  const input = form.elements[INPUTS[name] ?? name];
  if (!input) return;
  if (input.closest('details')) input.closest('details').open = true;
  input.focus();
}

// ---- signing in ---------------------------------------------------------------------------------

/**
 * No call asks only "is this token right", so read the orders of some sale; of one that cannot be,
 * if there is none.
 */
async function prove() {
  ({ sales } = await call('GET', '/api/v1/sales'));
  const id = sales[0]?.id ?? '0';
  try {
    await admin('GET', `/${encodeURIComponent(id)}/orders?limit=1`);
  } catch (problem) {
    if (problem.code !== 'sale_not_found') throw problem;
  }
}

async function enter(event) {
  event?.preventDefault();
  if (event) token = $('#token').value.trim();
  text($('#token-error'), '');
  try {
    await prove();
  } catch (problem) {
    if (problem.status === 401) leave();
    $('#sign-in').hidden = false;
    text($('#token-error'), words(problem));
    $('#token').focus();
    return;
  }
  sessionStorage.setItem(KEPT, token);
  $('#token').value = '';
  render(); // before the desk shows, so that nothing moves
  $('#sign-in').hidden = true;
  $('#desk').hidden = $('#leave').hidden = false;
  polling?.stop();
  polling = poll(refresh, () => 3000);
}

function leave() {
  sessionStorage.removeItem(KEPT);
  token = '';
  polling?.stop();
  inspected = null;
  $('#sign-in').hidden = false;
  $('#desk').hidden = $('#leave').hidden = $('#inspect').hidden = true;
}

function failed(problem) {
  if (problem.status === 401) { leave(); return text($('#token-error'), words(problem)); }
  toast(words(problem), 'bad');
}

// ---- the list of sales --------------------------------------------------------------------------

const rows = new Map();

function row({ id, state }) {
  const now = () => sales.find((one) => one.id === id); // as it is when a button is pressed
  const cells = { badge: badge(state), left: h('td', { class: 'num', role: 'cell' }), opens: h('td', { class: 'opens', role: 'cell' }), labels: [] };
  const address = `/sales/${encodeURIComponent(id)}`;
  cells.title = h('a', { href: address });
  /** `label` is what a screen reader says, of the sale's title. */
  const named = (element, label) => { cells.labels.push([element, label]); return element; };
  const of = (key) => (title) => t(key, { title });
  const button = (key, work, label = (title) => `${t(key)}: ${title}`, extra = {}) => named(h('button', { class: 'button small', type: 'button', onclick: work, ...extra }, t(key)), label);
  cells.pause = button('admin.pause', () => steer(now(), 'pause'));
  cells.resume = button('admin.resume', () => steer(now(), 'resume'));
  cells.close = button('admin.close', () => close(now()));
  cells.amount = named(h('input', { type: 'number', step: 1, value: 10, required: true }), of('admin.add_n'));
  const once = (event) => { if (event.detail > 1) event.preventDefault(); }; // a double click adds once
  cells.add = h('form', { class: 'add', onsubmit: (event) => { event.preventDefault(); addStock(now(), cells); } },
    cells.amount, button('admin.add', once, undefined, { type: 'submit' }));
  const more = button('admin.more_do', null, undefined, { popovertarget: `menu-${id}` });
  const element = h('tr', { role: 'row' }, // named roles, because on a phone a row is laid out as a card
    h('th', { scope: 'row', role: 'rowheader' }, cells.title, h('small', {}, id)),
    h('td', { role: 'cell' }, cells.badge), cells.left, cells.opens,
    h('td', { role: 'cell' }, h('div', { class: 'steer' },
      button('admin.inspect', () => inspect(now()), of('admin.inspect_of')),
      cells.pause, cells.resume, more),
    h('div', { class: 'menu', popover: true, id: more.getAttribute('popovertarget'), ontoggle: ({ newState }) => { if (newState === 'open') beside(more, element); } },
      named(h('a', { class: 'button small', href: `${address}/live` }, t('admin.wall')), of('admin.wall_of')),
      button('admin.edit', () => edit(id), of('admin.edit_of')),
      cells.add, cells.close)));
  return { element, cells };
}

/** Puts the menu of a row below its button, or above where there is no room. */
function beside(button, row) {
  const menu = $('.menu', row), { right, bottom, top } = button.getBoundingClientRect();
  menu.style.left = `${Math.max(8, right - menu.offsetWidth)}px`;
  menu.style.top = `${bottom + menu.offsetHeight + 8 < innerHeight ? bottom + 4 : Math.max(8, top - menu.offsetHeight - 4)}px`;
}

function render() {
  const body = $('#rows');
  sales.forEach((sale, index) => {
    if (!rows.has(sale.id)) rows.set(sale.id, row(sale));
    const { element, cells } = rows.get(sale.id);
    const state = stateAt(sale, clock.now());
    if (cells.title.textContent !== sale.title) for (const [element, label] of cells.labels) element.setAttribute('aria-label', label(sale.title));
    text(cells.title, sale.title);
    if (sale.id === inspected?.id) text($('#inspect-title'), sale.title);
    cells.badge.className = `badge ${state}`;
    text(cells.badge, t(`state.${state}`));
    text(cells.left, `${number(sale.remaining)} / ${number(sale.stock)}`);
    text(cells.opens, moment(sale.opens_at, clock.now()));
    // `disabled` rather than hidden: the row keeps its shape while its sale changes
    cells.pause.hidden = state === 'paused';
    cells.resume.hidden = state !== 'paused';
    cells.pause.disabled = cells.close.disabled = state === 'ended';
    for (const control of cells.add.elements) control.disabled = state === 'ended';
    if (body.children[index] !== element && !body.contains(document.activeElement)) body.insertBefore(element, body.children[index] ?? null);
    else if (!element.isConnected) body.append(element);
  });
  $('#none').hidden = sales.length > 0;
}

async function refresh() {
  try {
    ({ sales } = await call('GET', '/api/v1/sales'));
    banner('');
  } catch (problem) {
    banner(errorWords(problem));
    throw problem;
  }
  render();
}

/** The sale as an answer tells it, at once instead of with the next poll. */
function took(changed) {
  sales = sales.map((one) => (one.id === changed.id ? changed : one));
  render();
}

async function change(sale, work, done) {
  try {
    took(await work());
    toast(done, 'good');
    if (inspected?.id === sale.id) audit();
  } catch (problem) {
    failed(problem);
  }
}

/** Pause and resume take each other's place, so the focus goes along. */
async function steer(sale, verb) {
  await change(sale, () => admin('POST', path(sale, `/${verb}`)), t(`admin.done.${verb}`, sale));
  if (document.activeElement !== document.body) return;
  const { pause, resume } = rows.get(sale.id).cells;
  (pause.hidden ? resume : pause).focus();
}

async function close(sale) {
  if (!(await confirm(t('confirm.close'), t('confirm.close_more'), t('confirm.close_yes'), t('confirm.no')))) return;
  change(sale, () => admin('POST', path(sale, '/close')), t('admin.done.close', sale));
}

async function addStock(sale, cells) {
  const add = cells.amount.valueAsNumber;
  if (!add || cells.busy) return;
  cells.busy = true; // unlike the others, this would be done twice
  await change(sale, () => admin('POST', path(sale, '/stock'), { add }), t('admin.done.stock', { title: sale.title, n: add > 0 ? `+${add}` : add }));
  cells.busy = false;
}

// ---- one sale from inside -----------------------------------------------------------------------

function inspect(sale) {
  inspected = sale;
  $('#inspect').hidden = false;
  text($('#inspect-title'), sale.title);
  for (const id of ['#filter', '#whose']) $(id).value = '';
  $('#verdict').textContent = t('loading');
  $('#verdict').className = 'verdict';
  for (const list of [$('#invariants'), $('#figures')]) list.replaceChildren();
  $('#problems').hidden = true;
  $('#inspect-title').focus({ preventScroll: true });
  $('#inspect').scrollIntoView({ block: 'start' });
  $('#inspect').setAttribute('aria-busy', 'true'); // shown when all of it is there, so that nothing moves
  Promise.all([audit(), orders()]).then(() => { if (sale === inspected) $('#inspect').removeAttribute('aria-busy'); });
}

async function audit() {
  const sale = inspected, mine = ++audits;
  let a;
  try {
    a = await admin('GET', path(sale, '/audit'));
  } catch (problem) {
    return mine === audits && failed(problem);
  }
  if (sale !== inspected || mine !== audits) return; // asked again meanwhile
  const verdict = !a.ok ? 'bad' : a.quiescent ? 'ok' : 'moving';
  $('#verdict').className = `verdict ${verdict}`;
  text($('#verdict'), t('admin.audit_line', { verdict: t(`admin.audit_${verdict}`), at: moment(clock.now(), clock.now()) }));
  $('#invariants').replaceChildren(...auditRows(a).map(({ name, holds, params }) => {
    const verdict = verdictOf(holds);
    const figures = Object.fromEntries(Object.entries(params).map(([key, value]) => [key, Number.isInteger(value) && key !== 'n' ? number(value) : value]));
    return h('li', { class: verdict },
      h('span', { class: 'mark' }, t(`verdict.${verdict}`)), h('strong', {}, t(`audit.${name}`)), h('span', {}, t(`audit.${name}_${verdict}`, figures)));
  }));
  $('#problems').hidden = a.problems.length === 0;
  $('#problems ul').replaceChildren(...a.problems.map((problem) => { const zh = language === 'zh' ? inChinese(problem) : null; return h('li', { lang: zh ? undefined : 'en' }, zh ?? problem); }));
  $('#figures').replaceChildren(...['stock', 'remaining', 'live', 'pending_payment', 'paid', 'cancelled', 'expired', 'rejected']
    .map((name) => h('div', {}, h('dt', {}, t(`fig.${name}`)), h('dd', {}, number(a[name])))));
}

async function orders(after) {
  const sale = inspected, mine = ++asked;
  const wanted = { status: $('#filter').value, user: $('#whose').value.trim(), after };
  const query = new URLSearchParams({ limit: PAGE, ...Object.fromEntries(Object.entries(wanted).filter(([, value]) => value)) });
  let page;
  try {
    ({ orders: page } = await admin('GET', path(sale, `/orders?${query}`)));
  } catch (problem) {
    return mine === asked && failed(problem);
  }
  if (sale !== inspected || mine !== asked) return; // another question was asked meanwhile
  const now = clock.now();
  const lines = page.map((order) => h('tr', {},
    h('td', { class: 'number' }, order.order_id), h('td', { class: 'number' }, order.user_id),
    h('td', {}, h('span', { class: `badge ${order.status}` }, t(`status.${order.status}`))),
    moneyCell(order, () => refund(order)),
    h('td', { class: 'num' }, money(order.price_cents, order.currency)),
    h('td', {}, moment(order.created_at, now)),
    h('td', {}, order.paid_at || order.closed_at ? moment(order.paid_at ?? order.closed_at, now) : '')));
  const body = $('#orders tbody');
  if (after) body.append(...lines); else body.replaceChildren(...lines);
  last = page.at(-1)?.order_id;
  const hadFocus = document.activeElement === $('#more');
  $('#more').hidden = page.length < PAGE;
  $('#no-orders').hidden = body.children.length > 0;
  $('#orders').hidden = body.children.length === 0;
  if (!hadFocus || !$('#more').hidden) return;
  const line = lines[0] ?? body.lastElementChild; // the first that is new
  line.tabIndex = -1;
  line.focus({ preventScroll: true });
}

/** The money of a paid order goes back, and the unit if the operator says so. */
async function refund(order) {
  const sale = inspected, return_unit = await askRefund(order);
  if (return_unit === null) return;
  try {
    await operate('POST', `orders/${encodeURIComponent(order.order_id)}/refund`, { return_unit });
    toast(t('payment.refunding'), 'good');
  } catch (problem) {
    return failed(problem);
  }
  if (sale !== inspected) return;
  await Promise.all([audit(), orders()]);
  if (document.activeElement === document.body) $('#filter').focus();
}

// ---- a sale changed, and a new one --------------------------------------------------------------

function edit(id) {
  const sale = sales.find((one) => one.id === id);
  editDialog(sale, async (changes) => {
    const changed = await admin('PATCH', path(sale), changes);
    took(changed);
    toast(t('admin.done.edit', changed), 'good');
  }, words);
}

async function create(event) {
  event.preventDefault();
  const form = event.target;
  const { body, wrong } = newSale((name) => form.elements[name].value.trim(), clock.now());
  text($('#create-error'), wrong ? t(wrong.key) : '');
  if (wrong) return pointAt(form, wrong.name);

  const { submitter } = event;
  submitter.disabled = true;
  try {
    const sale = await admin('POST', '', body);
    toast(t('admin.created', sale), 'good');
    form.reset();
    polling.now();
  } catch (problem) {
    if (problem.status === 401) failed(problem);
    else {
      text($('#create-error'), words(problem));
      pointAt(form, fieldOf(problem.detail));
    }
  }
  submitter.disabled = false;
}

function fill(name) {
  const form = $('#create');
  form.reset();
  for (const [field, value] of filled(name, t, clock.now())) form.elements[field].value = value;
  $('#advanced').open = ['waiting_room', 'purchase_pass', 'challenge_bits'].some((field) => form.elements[field].value);
  form.elements.title.focus();
}

shell();
showFigures(null);
for (const template of document.querySelectorAll('[data-template]')) template.addEventListener('click', () => fill(template.dataset.template));
$('#sign-in').addEventListener('submit', enter);
$('#leave').addEventListener('click', () => { leave(); $('#token').focus(); });
$('#create').addEventListener('submit', create);
$('#audit-again').addEventListener('click', audit);
$('#books-do').addEventListener('click', () => showBooks(() => operate('GET', 'books')).catch(failed));
for (const id of ['#filter', '#whose']) $(id).addEventListener('change', () => orders());
$('#more').addEventListener('click', () => orders(last));
if (token) enter(); else $('#sign-in').hidden = false;
