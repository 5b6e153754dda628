// The lab: choose strategies, storm them, see what each sold, read how it is done. What is chosen
// stands in the address, and finished races in its fragment, so that a link shows what its sender
// saw. What only a race needs is fetched for the first one. The other language is another load of
// the page: a race that is under way goes on there.

import { call } from '../api.js';
import { number } from '../format.js';
import { $, h, text, toast } from '../ui.js';
import { failed, frame, refusal, workedAgain } from './frame.js';
import { address, lessonCards } from './lessons.js';
import { optionInput, optionName, valueOf } from './options.js';
import { badges } from './promise.js';
import RACES from './races.js';
import { row, unpack, pack } from './results.js';
import { FIELDS, MOST_LANES, OWN, bounded, comparison, defaults, fromDemonstration, fromQuery, heats, isFair, isHere, laneParts, laneSetup, merged, optionsOf, serverOf, toQuery } from './setup.js';
import { inWords, t } from './race-words.js';

const PRESETS = RACES.lab; // each runs when it is clicked
const KEPT = 'flash-sale.race'; // in the session: a race that goes on in the other language

const setup = fromQuery(location.search), wanted = new URLSearchParams(location.search).get('run'); // ?run= names a preset
const toLessons = location.hash === '#lessons';
let strategies = [], shared = [], running = null, runner = null, underway = null, rows = unpack(/^#r=([\w-]+)$/.exec(location.hash)?.[1] ?? '');
let runs = Math.max(0, ...rows.map(({ run }) => run ?? 0));
let reading = null, toRead = [], toExplain = null; // the last: the row of a run
/** The lines and words of a strategy, below the races: fetched when somebody comes near. */
function readThese(...ids) {
  ids = ids.filter((id) => id !== OWN); // of that one there is nothing to read
  if (!ids.length) return;
  toRead = ids;
  toExplain = null;
  text($('#h-reader'), named(ids[0])?.title ?? ''); // a heading is never empty, also while its words are still to come
  if (reading) readNow();
}
function readNow() {
  reading ??= import('./reader.js').then(({ reader }) => {
    const read = reader($('#reader'), { familyName, onShow: demonstrate });
    read.know(strategies);
    return read;
  });
  return reading.then((read) => read.open(toRead, toExplain), () => { reading = null; });
}
const near = new IntersectionObserver((seen) => { if (seen.some(({ isIntersecting }) => isIntersecting)) { near.disconnect(); readNow(); } }, { rootMargin: '100px' });
/** The visitor's own server, as a strategy; it runs only for a browser on its machine. */
const own = { id: OWN, title: t('lab.server.title'), available: { ok: isHere(location.hostname) } };
const named = (key) => (key === OWN ? own : strategies.find(({ id }) => id === laneParts(key)[0]));
const able = (keys) => keys.filter((key) => named(key) && named(key).available?.ok !== false && (key !== OWN || setup.server));
async function readIn(id, result = null) {
  readThese(id);
  toExplain = result;
  await readNow();
  $('#reader').scrollIntoView();
  $('#h-reader').focus({ preventScroll: true });
}

// ---- what is chosen -----------------------------------------------------------------------------

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
/** The field for a server of the visitor's own; it is chosen as soon as there is its address. */
function ownServer() {
  const box = $(`#pick-${OWN}`), input = $('#server');
  boxes.set(OWN, box);
  input.value = setup.server;
  for (const control of [box, input]) control.disabled = !own.available.ok;
  const say = (key, params) => text($('#t-server'), t(`lab.server.${key}`, params));
  if (!own.available.ok) say('elsewhere', { command: `flash-sale judge ${setup.server || 'http://127.0.0.1:9000'}` });
  const heard = () => {
    const wrong = input.value.trim() && !serverOf(input.value.trim());
    setup.server = serverOf(input.value.trim());
    if (setup.server) input.value = setup.server;
    input.setAttribute('aria-invalid', String(Boolean(wrong)));
    say(wrong ? 'bad' : 'help');
    if (isChosen(OWN) !== Boolean(setup.server)) choose(OWN, Boolean(setup.server));
    else remember();
    box.checked = isChosen(OWN);
  };
  input.addEventListener('change', heard);
  box.addEventListener('change', () => {
    if (box.checked && !setup.server) { box.checked = false; return input.focus(); }
    choose(OWN, box.checked);
  });
}

/** By family, in the order in which the server teaches them. */
function grouped(list) {
  const groups = new Map();
  for (const one of list) groups.set(one.family, [...(groups.get(one.family) ?? []), one]);
  return groups;
}

function picker(strategy) {
  const { id, available } = strategy;
  const runs = available?.ok !== false;
  const box = h('input', { type: 'checkbox', id: `pick-${id}`, value: id, disabled: !runs, 'aria-describedby': `about-${id}` });
  box.checked = runs && isChosen(id);
  box.addEventListener('change', () => choose(id, box.checked));
  boxes.set(id, box);
  return h('div', { class: runs ? 'pick' : 'pick off-duty' }, box,
    h('label', { for: `pick-${id}` }, h('span', { class: 'nr' }, String(strategy.number)), ' ', strategy.title),
    h('button', { class: 'read', type: 'button', 'aria-label': t('lab.read_of', { title: strategy.title }), onclick: () => readIn(id) }, t('lab.read')),
    h('div', { class: 'promises', id: `about-${id}` },
      h('span', { class: 'on' }, h('small', {}, t('lab.one_node')), ' ', ...badgesOf(strategy.promise)),
      h('span', { class: 'on' }, h('small', {}, t('lab.nodes_many')), ' ', ...badgesOf(strategy.promise?.across_nodes)),
      runs ? null : h('p', { class: 'why' }, t('lab.unavailable', { why: available.why ?? '' }), ' ', strategy.needs?.includes('zookeeper') ? h('a', { href: address({ id: 'b11' }) }, t('lab.recorded')) : null)));
}

const isChosen = (id) => setup.strategies.some((key) => laneParts(key)[0] === id);
function choose(id, chosen) {
  setup.strategies = chosen ? [...setup.strategies, id] : setup.strategies.filter((key) => laneParts(key)[0] !== id);
  if (chosen) readThese(id);
  changed();
}

let latestClick = 0; // its number: the last that asks for something else to run
/** Stops what runs. Resolves to whether no later click has asked for something else. */
async function cleared() {
  const mine = ++latestClick;
  running?.abort();
  await underway;
  return mine === latestClick;
}

/** Sets everything, and off it goes: nobody has to find another button. */
async function preset(name) {
  const { strategies: wanted, ...fields } = PRESETS[name];
  if (!await cleared()) return;
  Object.assign(setup, defaults(), structuredClone(fields), { strategies: able(wanted) });
  fill();
  if (setup.strategies.length) readThese(...setup.strategies.slice(0, 2).map((key) => laneParts(key)[0]));
  start();
}

/** The strategy alone, under what makes it show its weakness, and off it goes. */
async function demonstrate(strategy, show) {
  if (!await cleared()) return;
  Object.assign(setup, fromDemonstration(strategy, show));
  fill();
  start();
  $('#race').scrollIntoView();
}

/** After any choice: the options that matter now, the button's words, the address. */
function changed() {
  optionFields();
  const n = setup.strategies.length;
  text($('#chosen'), n ? t('lab.chosen', { n, names: setup.strategies.map((key) => named(key)?.title ?? key).join(' · ') }) : t('lab.choose'));
  const start = $('#start');
  start.setAttribute('aria-disabled', String(!n && !running));
  start.classList.toggle('primary', !running);
  text(start, running ? t('lab.stop') : n > 1 ? t('lab.race', { n }) : t('lab.run'));
  text($('#heats'), setup.together && n > MOST_LANES ? t('lab.heats', { n: MOST_LANES }) : '');
  remember();
}

/** The whole form anew from the setup. */
function fill() {
  for (const [id, box] of boxes) box.checked = isChosen(id);
  for (const name of Object.keys(FIELDS)) $(`#f-${name}`).value = setup[name];
  $('#f-together').checked = setup.together;
  shownOptions = '';
  changed();
}

/** From here on the lanes run what the form says, not their demonstrations. */
const asWritten = () => { setup.strategies = [...new Set(setup.strategies.map((key) => laneParts(key)[0]))]; };

let shownOptions = '';
function optionFields() {
  const found = new Map();
  for (const key of setup.strategies) for (const option of optionsOf(named(key), shared)) {
    const [before, ...ids] = found.get(option.name) ?? [];
    found.set(option.name, [merged(before, option), ...ids, key]);
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
      asWritten();
      remember();
    });
    return h('p', { class: 'field' }, h('label', { for: `o-${name}` }, optionName(name)), input,
      h('small', { id: `o-${name}-teaches` }, option.teaches ?? '', h('span', { class: 'for' }, ` ${t('lab.option_for', { names: ids.length === setup.strategies.filter((key) => key !== OWN).length ? t('lab.option_all') : ids.map((id) => named(id).title).join(', ') })}`)));
  }));
}

// ---- the race -----------------------------------------------------------------------------------

function start() {
  if (running) { latestClick += 1; return running.abort(); }
  const lanes = setup.strategies.filter(named).map((key) => laneOf(key, setup));
  if (!lanes.length) return toast(t('lab.choose'));
  begin({ lanes, together: setup.together, run: ++runs, at: 0, states: [] });
}

function laneOf(key, asked) {
  const strategy = named(key);
  return { key, strategy, show: strategy.demonstrations?.find(({ id }) => id && id === laneParts(key)[1]), setup: structuredClone(laneSetup(asked, key, strategy)) };
}

/** `heat`: {lanes, together, run, at: which heat is on, states: of the lanes that have been}. */
function begin(heat) {
  running = new AbortController();
  running.heat = heat;
  changed();
  underway = race(heat, running.signal).catch(() => toast(t('error.network'), 'bad')) // a part of the page could not be fetched
    .finally(() => { running = null; underway = null; changed(); });
}

async function race(heat, signal) {
  const { lanes, together, run } = heat;
  const [{ laneView, outcomeWords }, { lane, scale }] = await Promise.all([import('./lanes.js'), import('./race.js')]);
  runner ??= await import('./run.js');
  const all = heats(lanes, together), latest = new Map();
  for (const one of lanes) one.fair = isFair(one.setup, all[0].length);
  $('#race').hidden = false;
  const views = new Map(lanes.map((one) => [one.key, laneView(one, () => readIn(one.strategy.id))]));
  $('#lanes').replaceChildren(...[...views.values()].map(({ element }) => element));
  text($('#race-how'), t(`lab.how.${comparison(lanes, all[0].length)}`, { n: number(lanes[0].setup.concurrency) }));
  $('#race').scrollIntoView({ block: 'nearest' });
  text($('#say'), t('lab.say.started', { n: lanes.length }));
  let waiting = 0;
  const onLane = (now) => {
    const before = latest.get(now.id);
    latest.set(now.id, now);
    if (now.oversold > 0 && !(before?.oversold > 0)) text($('#say'), t('lab.say.oversold', { title: named(now.id).title, sold: number(now.sold), stock: number(now.stock) }));
    waiting ||= requestAnimationFrame(() => { // several arenas speak at once: paint once
      waiting = 0;
      const states = [...latest.values()];
      for (const one of states) views.get(one.id).show(one, scale(states.filter(({ stock }) => stock === one.stock)));
    });
  };
  for (const one of lanes) onLane(heat.states.find(({ id }) => id === one.key) ?? lane(one.key, one.setup.stock));
  text($('#race-state'), '');
  for (const [index, members] of all.entries()) {
    if (index < heat.at) continue;
    if (signal.aborted) break;
    heat.at = index;
    if (all.length > 1) text($('#race-state'), t('lab.race_now', { names: members.map(({ strategy }) => strategy.title).join(' · ') }));
    const states = await runner.heat(members, shared, onLane, signal);
    heat.states.push(...states);
    for (const [nth, one] of states.entries()) {
      const { strategy, setup: asked, show } = members[nth];
      if (one.verdict && one.verdict.verdict !== 'undecided') rows.push({ ...row(one.verdict, asked, run, members.length), strategy: strategy.id, demonstration: show?.id ?? '', arena: one.arena });
      else if (one.status === 'refused' && one.why.code !== 'stopped') toast(`${strategy.title}: ${refusal(one.why)}`, 'bad');
    }
    await results();
  }
  text($('#race-state'), t(signal.aborted ? 'lab.stopped' : 'lab.race_over'));
  text($('#say'), [...latest.values()].filter(({ verdict }) => verdict).map(({ id, sold, oversold, duplicates, verdict }) => t('lab.say.over', { title: named(id).title, sold: number(sold), outcome: outcomeWords({ ...verdict, oversold, duplicates }) })).join(' ')
    || t('lab.stopped'));
}

/** The page is about to be loaded again in the other language: what is under way is kept for it. */
function keep() {
  if (!runner) return;
  const heat = running?.heat;
  const kept = { arenas: runner.stay(), given: rows.map(({ arena }) => arena ?? null), heat: heat && { ...heat, lanes: heat.lanes.map(({ key, setup: asked, arena, begun }) => ({ key, setup: asked, arena, begun })) } };
  try { sessionStorage.setItem(KEPT, JSON.stringify(kept)); } catch { /* storage is off: the race ends here */ }
}

/** And taken up again there; the address has the setup and the results. */
async function takeUp() {
  let kept = null;
  try { kept = JSON.parse(sessionStorage.getItem(KEPT)); sessionStorage.removeItem(KEPT); } catch { /* as if there were none */ }
  if (!kept) return false;
  runner ??= await import('./run.js');
  runner.adopt(kept.arenas);
  kept.given.forEach((arena, index) => { if (rows[index] && arena) rows[index].arena = arena; });
  if (!kept.heat) return false;
  runs = Math.max(runs, kept.heat.run);
  const lanes = kept.heat.lanes.filter(({ key }) => named(key)).map((one) => ({ ...laneOf(one.key, one.setup), ...one }));
  begin({ ...kept.heat, lanes });
  return true;
}

// ---- the results --------------------------------------------------------------------------------

async function results() {
  remember();
  $('#results').hidden = rows.length === 0;
  if (rows.length) (await import('./results-view.js')).showResults(rows, named, runner?.standing() ?? [], readIn);
}

function forget() {
  rows = [];
  results();
}

// ---- the page -----------------------------------------------------------------------------------

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
  setup.strategies = able(setup.strategies);
  if (!new URLSearchParams(location.search).has('s')) setup.strategies = able(PRESETS.first.strategies);
  pickers();
  ownServer();
  const [first = strategies[0]?.id, second] = setup.strategies.filter((key) => key !== OWN).map((key) => laneParts(key)[0]);
  readThese(first, second);
  near.observe($('#reader'));
  fill();
  const goesOn = await takeUp();
  await results();
  if (Object.hasOwn(PRESETS, wanted) && !goesOn) preset(wanted);
  else if (rows.length && !goesOn) $('#results').scrollIntoView(); // a shared link shows its result
  call('GET', inWords('/api/v1/lab/lessons')).then(({ lessons }) => {
    $('#lesson-list').replaceChildren(...lessonCards(lessons));
    if (toLessons) $('#lessons').scrollIntoView();
  }).catch(() => { $('#lessons').hidden = true; }); // they have a page of their own, which says why
}

frame();
for (const name of Object.keys(FIELDS)) {
  $(`#f-${name}`).addEventListener('change', (event) => { setup[name] = bounded(name, event.target.value); event.target.value = setup[name]; asWritten(); changed(); });
}
$('#f-together').addEventListener('change', (event) => { setup.together = event.target.checked; changed(); });
for (const name of Object.keys(PRESETS)) {
  $('#presets').append(h('button', { class: name === 'first' ? 'button primary' : 'button', type: 'button', 'aria-label': t('lab.preset_run', { name: t(`lab.preset.${name}`) }), onclick: () => preset(name) },
    h('span', { class: 'go-mark', 'aria-hidden': 'true' }), t(`lab.preset.${name}`)));
}
$('#setup').addEventListener('submit', (event) => { event.preventDefault(); start(); });
$('#start').addEventListener('click', (event) => { if (event.detail > 1) event.preventDefault(); }); // a double click does not stop it
$('#none').addEventListener('click', () => { setup.strategies = []; fill(); });
$('#forget').addEventListener('click', forget);
addEventListener('flash-sale:language', keep);
addEventListener('pagehide', () => runner?.leave());
addEventListener('pageshow', (event) => { if (event.persisted) results(); }); // back again: the arenas have gone, so has their report
load();
