// All locks on one screen: four properties as signs, what each costs; a row opens to its reasons,
// tests and uses.

import { call } from '../api.js';
import { number } from '../format.js';
import { $, h, text } from '../ui.js';
import { failed, frame, workedAgain } from './frame.js';
import { inWords, t } from './theatre-words.js';

const us = (n) => (n == null ? '–' : t('locks.us', { n: number(Math.round(n)) }));
const trips = (value) => (typeof value === 'number' ? number(value, { maximumFractionDigits: 1 }) : value ?? '–');

const SIGNS = { yes: '✓', partly: '~', no: '✕', unknown: '?' };

function answer(property, given) {
  const holds = given?.holds in SIGNS ? given.holds : 'unknown';
  return h('td', { class: `answer ${holds}` }, h('span', { class: 'sign', 'aria-hidden': 'true' }, SIGNS[holds]), h('span', { class: 'unseen' }, t(`locks.${holds}`)));
}

/** One sentence or a list of them. */
const sentences = (value) => (Array.isArray(value) ? h('ul', {}, ...value.map((one) => h('li', {}, one))) : h('p', {}, value));
const part = (title, ...content) => h('div', {}, h('p', { class: 'reason-title' }, title), ...content);

/** Why each property holds or does not, the test that shows it, and when to use the lock. */
const reasons = (one, properties) => h('div', { class: 'reasons' },
  ...properties.map((property) => {
    const given = one.properties?.[property.id], holds = given?.holds in SIGNS ? given.holds : 'unknown';
    return h('div', { class: `reason ${holds}` }, h('p', { class: 'reason-title' }, `${SIGNS[holds]} ${property.title} · ${t(`locks.${holds}`)}`), given?.why ? h('p', {}, given.why) : null,
      given?.test ? h('p', { class: 'test' }, h('span', {}, t('locks.test')), ' ', h('code', {}, given.test)) : null);
  }),
  one.cost_us ? part(t('locks.cost'), h('p', {}, t('locks.measured_all', { p50: us(one.cost_us.p50), p99: us(one.cost_us.p99), n: number(one.cost_us.samples ?? 0) }))) : null,
  one.use_when ? part(t('locks.use_when'), sentences(one.use_when)) : null,
  one.not_given ? part(t('locks.not_given'), sentences(one.not_given)) : null);

/** A row of signs, and below it, when it is opened, the reasons. */
function lock(one, properties) {
  const id = `why-${one.id}`, cost = one.cost_us;
  const more = h('tr', { class: 'more', id, hidden: true }, h('td', { colspan: String(properties.length + 3) }, reasons(one, properties)));
  const open = h('button', { type: 'button', class: 'open', 'aria-expanded': 'false', 'aria-controls': id, onclick() {
    more.hidden = !more.hidden;
    open.setAttribute('aria-expanded', String(!more.hidden));
  } }, one.title);
  return [h('tr', { class: 'lock' }, h('th', { scope: 'row' }, open), ...properties.map((property) => answer(property, one.properties?.[property.id])),
    h('td', { class: 'num' }, t('locks.trips', { acquire: trips(one.round_trips?.acquire), release: trips(one.round_trips?.release) })),
    h('td', { class: 'num cost' }, cost ? t('locks.measured', { p50: us(cost.p50), n: number(cost.samples ?? 0) }) : t('locks.not_measured'))), more];
}

async function load() {
  let answered;
  try {
    answered = await call('GET', inWords('/api/v1/lab/locks'), { timeoutMs: 60_000 }); // the costs may be measured just now
  } catch (problem) {
    return failed(problem, load);
  } finally {
    $('#loading').hidden = true;
  }
  workedAgain();
  const { locks, properties, note_on_fencing: note, note_on_costs: costs } = answered;
  $('#page').hidden = false;
  $('#properties').replaceChildren(...properties.map((one) => h('div', {}, h('dt', {}, one.title), h('dd', {}, one.explanation))));
  $('#columns').replaceChildren(h('th', { scope: 'col' }, t('locks.lock')), ...properties.map((one) => h('th', { scope: 'col', class: 'property' }, one.title)),
    h('th', { scope: 'col', class: 'num' }, t('locks.trips_col')), h('th', { scope: 'col', class: 'num' }, t('locks.cost')));
  $('#rows').replaceChildren(...locks.flatMap((one) => lock(one, properties)));
  text($('#costs'), costs ?? '');
  text($('#fencing'), note ?? '');
  $('#fencing-box').hidden = !note;
}

frame();
load();
