// The lab: choose strategies, storm them, see what each sold, read how it is done. What is chosen stands in the address, and
// finished races in its fragment, so that a link shows what its sender saw. What only a race needs is fetched for the first one.

import { call } from '../api.js';
import { number } from '../format.js';
import { $, h, text, toast } from '../ui.js';
import { failed, frame, refusal, workedAgain } from './frame.js';
import { lessonCards } from './lessons.js';
import { optionInput, optionName, valueOf } from './options.js';
import { badges } from './promise.js';
import { reader } from './reader.js';
import { row, unpack, pack } from './results.js';
import { FIELDS, MOST_LANES, bounded, defaults, fromDemonstration, fromQuery, heats, merged, optionsOf, toQuery } from './setup.js';
import { inWords, t } from './words.js';

const PRESETS = {
  first: { strategies: ['naive', 'conditional-update'] },
  nodes: { strategies: ['process-mutex', 'row-lock'], nodes: 3 },
  locks: { strategies: ['setnx-expire', 'set-px-no-owner', 'token-lock', 'fenced-lock'] },
  buys: { strategies: ['hincrby', 'lock-and-hincrby'] },
  real: { strategies: ['row-lock', 'lua-sync', 'lua-stream', 'bucketed'] },
};

const setup = fromQuery(location.search);
let strategies = [], shared = [], running = null, runner = null, rows = unpack(/^#r=([\w-]+)$/.exec(location.hash)?.[1] ?? '');
let runs = Math.max(0, ...rows.map(({ run }) => run ?? 0));
const read = reader($('#reader'), { familyName: (family) => familyName(family), onShow: demonstrate });
const named = (id) => strategies.find((one) => one.id === id);

// ---- what is chosen ----------------------------------------------------------------------------------------------

function remember() {
  const query = toQuery(setup), results = rows.length ? `#r=${pack(rows)}` : '';
  history.replaceState(null, '', `${location.pathname}${query ? `?${query}` : ''}${results}`);
}

function badgesOf(harms) {
  return badges(harms).map(({ tone, key }) => h('span', { class: `promise ${tone}` }, t(key)));
}

const familyName = (family) => t(`lab.family.${family}`, { name: family }, 'lab.option_other');

const boxes = new Map();
function pickers() {
  $('#picker').replaceChildren(...[...grouped(strategies)].map(([family, members]) => h('fieldset', { class: 'family' },
    h('legend', {}, familyName(family)), ...members.map(picker))));
}
/** By family, in the order in which the server teaches them. */
function grouped(list) {
  const groups = new Map();
  for (const one of list) groups.set(one.family, [...(groups.get(one.family) ?? []), one]);
  return groups;
}

function picker(strategy) {
  const { id, available } = strategy;
  const able = available?.ok !== false;
  const box = h('input', { type: 'checkbox', id: `pick-${id}`, value: id, disabled: !able, 'aria-describedby': `about-${id}` });
  box.checked = able && setup.strategies.includes(id);
  box.addEventListener('change', () => choose(id, box.checked));
  boxes.set(id, box);
  return h('div', { class: able ? 'pick' : 'pick off-duty' }, box,
    h('label', { for: `pick-${id}` }, h('span', { class: 'nr' }, String(strategy.number)), ' ', strategy.title),
    h('button', { class: 'read', type: 'button', 'aria-label': t('lab.read_of', { title: strategy.title }), onclick: () => { read.open(id); $('#reader').scrollIntoView(); $('#h-reader').focus({ preventScroll: true }); } }, t('lab.read')),
    h('div', { class: 'promises', id: `about-${id}` },
      h('span', { class: 'on' }, h('small', {}, t('lab.one_node')), ' ', ...badgesOf(strategy.promise)),
      h('span', { class: 'on' }, h('small', {}, t('lab.nodes_many')), ' ', ...badgesOf(strategy.promise?.across_nodes)),
      able ? null : h('p', { class: 'why' }, t('lab.unavailable', { why: available.why ?? '' }))));
}

function choose(id, chosen) {
  setup.strategies = chosen ? [...setup.strategies, id] : setup.strategies.filter((one) => one !== id);
  if (chosen) read.open(id);
  changed();
}

function preset(name) {
  const { strategies: wanted, ...fields } = PRESETS[name];
  Object.assign(setup, defaults(), fields, { strategies: wanted.filter((id) => named(id)?.available?.ok) });
  fill();
  if (setup.strategies.length) read.open(setup.strategies[0], setup.strategies[1]);
}

/** The strategy alone, under what makes it show its weakness, and off it goes. */
function demonstrate(strategy, show) {
  if (running) return;
  Object.assign(setup, fromDemonstration(strategy, show));
  fill();
  start();
}

/** Something was chosen or written: the options that matter now, the button's words, the address. */
function changed() {
  optionFields();
  const n = setup.strategies.length;
  text($('#chosen'), n ? t('lab.chosen', { n, names: setup.strategies.map((id) => named(id)?.title ?? id).join(' · ') }) : t('lab.choose'));
  const start = $('#start');
  start.setAttribute('aria-disabled', String(!n && !running));
  start.classList.toggle('primary', !running);
  text(start, running ? t('lab.stop') : n > 1 ? t('lab.race', { n }) : t('lab.run'));
  text($('#heats'), setup.together && n > MOST_LANES ? t('lab.heats', { n: MOST_LANES }) : '');
  remember();
}

/** The whole form anew from the setup. */
function fill() {
  for (const [id, box] of boxes) box.checked = setup.strategies.includes(id);
  for (const name of Object.keys(FIELDS)) $(`#f-${name}`).value = setup[name];
  $('#f-together').checked = setup.together;
  shownOptions = '';
  changed();
}

let shownOptions = '';
function optionFields() {
  const found = new Map();
  for (const id of setup.strategies) for (const option of optionsOf(named(id), shared)) {
    const [before, ...ids] = found.get(option.name) ?? [];
    found.set(option.name, [merged(before, option), ...ids, id]);
  }
  const now = [...found].map(([name, [, ...ids]]) => `${name}:${ids}`).join();
  $('#options').hidden = found.size === 0;
  if (now === shownOptions) return;
  shownOptions = now;
  $('#option-fields').replaceChildren(...[...found].map(([name, [option, ...ids]]) => {
    const input = optionInput(option, setup.options[name], `o-${name}`);
    input.addEventListener('change', () => {
      const value = valueOf(input);
      if (value === '' || value === String(option.default)) delete setup.options[name];
      else setup.options[name] = value;
      remember();
    });
    return h('p', { class: 'field' }, h('label', { for: `o-${name}` }, optionName(name)), input,
      h('small', { id: `o-${name}-teaches` }, option.teaches ?? '', h('span', { class: 'for' }, ` ${t('lab.option_for', { names: ids.length === setup.strategies.length ? t('lab.option_all') : ids.map((id) => named(id).title).join(', ') })}`)));
  }));
}

// ---- the race ----------------------------------------------------------------------------------------------------

async function start() {
  if (running) return running.abort();
  const chosen = setup.strategies.map(named).filter(Boolean);
  if (!chosen.length) return toast(t('lab.choose'));
  running = new AbortController();
  changed();
  try {
    await race(chosen, structuredClone(setup), ++runs, running.signal);
  } catch {
    toast(t('error.network'), 'bad'); // a part of the page could not be fetched
  } finally {
    running = null;
    changed();
  }
}

async function race(chosen, asked, run, signal) {
  const [{ laneView }, { lane, scale }] = await Promise.all([import('./lanes.js'), import('./race.js')]);
  runner ??= await import('./run.js');
  $('#race').hidden = false;
  const views = new Map(chosen.map((one) => [one.id, laneView(one, asked.stock)]));
  const latest = new Map();
  $('#lanes').replaceChildren(...[...views.values()].map(({ element }) => element));
  $('#race').scrollIntoView({ block: 'nearest' });
  text($('#say'), t('lab.say.started', { n: chosen.length }));
  let waiting = 0;
  const onLane = (now) => {
    const before = latest.get(now.id);
    latest.set(now.id, now);
    if (now.oversold > 0 && !(before?.oversold > 0)) text($('#say'), t('lab.say.oversold', { title: named(now.id).title, sold: number(now.sold), stock: number(now.stock) }));
    waiting ||= requestAnimationFrame(() => { // several arenas speak at once: paint once
      waiting = 0;
      const lanes = [...latest.values()], to = scale(lanes);
      lanes.forEach((one) => views.get(one.id).show(one, to));
    });
  };
  for (const { id } of chosen) onLane(lane(id, asked.stock));
  const all = heats(chosen.map(({ id }) => id), asked.together);
  text($('#race-state'), '');
  for (const ids of all) {
    if (signal.aborted) break;
    if (all.length > 1) text($('#race-state'), t('lab.race_now', { names: ids.map((id) => named(id).title).join(' · ') }));
    const lanes = await runner.heat(ids.map(named), asked, shared, onLane, signal);
    for (const one of lanes) {
      if (one.verdict) rows.push({ ...row(one.verdict, asked, run, ids.length), strategy: one.id, arena: one.arena });
      else if (one.status === 'refused' && one.why.code !== 'stopped') toast(`${named(one.id).title}: ${refusal(one.why)}`, 'bad');
    }
    await results();
  }
  text($('#race-state'), t(signal.aborted ? 'lab.stopped' : 'lab.race_over'));
  text($('#say'), [...latest.values()].filter(({ verdict }) => verdict).map(({ id, sold, oversold }) => t(oversold ? 'lab.say.bad' : 'lab.say.good', { title: named(id).title, sold: number(sold), over: number(oversold) })).join(' ')
    || t('lab.stopped'));
}

// ---- the results -------------------------------------------------------------------------------------------------

async function results() {
  remember();
  $('#results').hidden = rows.length === 0;
  if (rows.length) (await import('./results-view.js')).showResults(rows, named, runner?.standing() ?? []);
}

function forget() {
  rows = [];
  results();
}

// ---- the page ----------------------------------------------------------------------------------------------------

async function load() {
  try {
    const answer = await call('GET', inWords('/api/v1/lab/strategies'));
    ({ strategies } = answer);
    shared = answer.options ?? [];
  } catch (problem) {
    return failed(problem, load);
  } finally {
    $('#loading').hidden = true;
  }
  workedAgain();
  $('#page').hidden = false;
  setup.strategies = setup.strategies.filter((id) => named(id)?.available?.ok !== false && named(id));
  if (!new URLSearchParams(location.search).has('s')) setup.strategies = PRESETS.first.strategies.filter((id) => named(id)?.available?.ok !== false && named(id));
  pickers();
  read.know(strategies);
  read.open(setup.strategies[0] ?? strategies[0]?.id, setup.strategies[1]);
  fill();
  results();
  call('GET', inWords('/api/v1/lab/lessons')).then(({ lessons }) => {
    $('#lesson-list').replaceChildren(...lessonCards(lessons));
  }).catch(() => { $('#lessons').hidden = true; }); // they have a page of their own, which says why
}

frame();
for (const name of Object.keys(FIELDS)) {
  $(`#f-${name}`).addEventListener('change', (event) => { setup[name] = bounded(name, event.target.value); event.target.value = setup[name]; changed(); });
}
$('#f-together').addEventListener('change', (event) => { setup.together = event.target.checked; changed(); });
for (const name of Object.keys(PRESETS)) $('#presets').append(h('button', { class: 'button small', type: 'button', onclick: () => preset(name) }, t(`lab.preset.${name}`)));
$('#setup').addEventListener('submit', (event) => { event.preventDefault(); start(); });
$('#none').addEventListener('click', () => { setup.strategies = []; fill(); });
$('#forget').addEventListener('click', forget);
addEventListener('pagehide', () => runner?.leave());
addEventListener('pageshow', (event) => { if (event.persisted) results(); }); // back again: the arenas have gone, so has their report
load();
