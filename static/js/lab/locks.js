// All locks beside each other: four properties, what they cost, when to use which, and what none of them gives.

import { call } from '../api.js';
import { number } from '../format.js';
import { $, h, text } from '../ui.js';
import { failed, frame, workedAgain } from './frame.js';
import { inWords, t } from './theatre-words.js';

const us = (n) => (n == null ? '–' : t('locks.us', { n: number(Math.round(n)) }));
const trips = (value) => (typeof value === 'number' ? number(value, { maximumFractionDigits: 1 }) : value ?? '–');

function answer(property, given) {
  const holds = ['yes', 'no', 'partly'].includes(given?.holds) ? given.holds : 'unknown';
  return h('td', { class: `answer ${holds}`, 'data-name': property.title },
    h('strong', { class: 'mark' }, t(`locks.${holds}`)),
    given?.why ? h('p', {}, given.why) : null,
    given?.test ? h('p', { class: 'test' }, h('span', {}, t('locks.test')), ' ', h('code', {}, given.test)) : null);
}

function lock(one, properties) {
  return h('tr', {},
    h('th', { scope: 'row' }, one.title, h('code', {}, one.id)),
    ...properties.map((property) => answer(property, one.properties?.[property.id])),
    h('td', { class: 'cost', 'data-name': t('locks.cost') },
      h('p', {}, t('locks.trips', { acquire: trips(one.round_trips?.acquire), release: trips(one.round_trips?.release) })),
      one.cost_us ? h('p', {}, t('locks.measured', { p50: us(one.cost_us.p50), p99: us(one.cost_us.p99) })) : h('p', { class: 'muted' }, t('locks.not_measured'))));
}

/** One sentence or a list of them. */
const sentences = (value) => (Array.isArray(value) ? h('ul', {}, ...value.map((one) => h('li', {}, one))) : h('p', {}, value));

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
  const { locks, properties, note_on_fencing: note } = answered;
  $('#page').hidden = false;
  $('#properties').replaceChildren(...properties.map((one, index) => h('li', {}, h('span', { class: 'nr' }, String(index + 1)), h('h2', {}, one.title), h('p', {}, one.explanation))));
  $('#columns').replaceChildren(h('th', { scope: 'col' }, t('locks.lock')), ...properties.map((one) => h('th', { scope: 'col' }, one.title)), h('th', { scope: 'col' }, t('locks.cost')));
  $('#rows').replaceChildren(...locks.map((one) => lock(one, properties)));
  $('#uses').replaceChildren(...locks.filter((one) => one.use_when || one.not_given).map((one) => h('li', { class: 'use' }, h('h3', {}, one.title),
    one.use_when ? h('div', {}, h('h4', {}, t('locks.use_when')), sentences(one.use_when)) : null,
    one.not_given ? h('div', { class: 'not-given' }, h('h4', {}, t('locks.not_given')), sentences(one.not_given)) : null)));
  text($('#fencing'), note ?? '');
  $('#fencing-box').hidden = !note;
}

frame();
load();
