// The lock theatre: the server plays the lesson for real, once, and this page walks through what
// happened, step by step.

import { call } from '../api.js';
import { number } from '../format.js';
import { $, h, text } from '../ui.js';
import { chosenOptions } from './choices.js';
import { codeView } from './code.js';
import { failed, frame, refusal, workedAgain } from './frame.js';
import { lessonStrip } from './lessons.js';
import { optionInput, optionName, valueOf } from './options.js';
import { colours, stage } from './stage.js';
import { dwellMs, isOverlap, keyed, lasts, lease, meaning, moment, prices, timeline, violation, within } from './timeline.js';
import { inWords, t } from './theatre-words.js';

const ID = location.pathname.split('/').at(-1).replace(/\.html$/, '');
const PLAYING_MS = 90_000; // some lessons start servers of their own
const chosen = Object.fromEntries([...new URLSearchParams(location.search)].filter(([name]) => /^\w{1,40}$/.test(name)));

let lesson, line, draw, paint, shownAct, step = 0, speed = 1, timer = null;
const sources = new Map(); // file → its code on the page, made when it first runs

const nameOf = (id) => line.actors.find((actor) => actor.id === id)?.name ?? id;
const listed = (ids) => new Intl.ListFormat(document.documentElement.lang, { type: 'conjunction' }).format(ids.map(nameOf));

// ---- one moment ---------------------------------------------------------------------------------

function show(to, { quiet = false } = {}) {
  step = within(line, to);
  const now = moment(line, step), { event, act } = now;
  draw(step);
  $('#seek').value = step;
  $('#seek').setAttribute('aria-valuetext', t('lesson.step_of', { n: step + 1, all: line.last + 1 }));
  text($('#where'), t('lesson.step_of', { n: step + 1, all: line.last + 1 }));
  text($('#at'), event.t_ms == null ? '' : t('lesson.at', { ms: number(Math.round(event.t_ms)) }));
  text($('#who'), event.to ? t('lesson.from_to', { from: nameOf(event.actor), to: nameOf(event.to) }) : nameOf(event.actor));
  text($('#explain'), event.say ?? '');
  const { command, reply } = event.detail ?? {};
  $('#command').hidden = command == null;
  text($('#command'), command ?? '');
  $('#reply').hidden = reply == null;
  const means = meaning(event, nameOf, t);
  text($('#reply'), reply == null ? '' : means && means !== reply ? `→ ${means}   ${reply}` : `→ ${reply}`);
  $('#staged').hidden = !event.staged;
  showLease();
  showAct(now, act);
  showHolders(now);
  showKeys(now);
  showCode(event.line);
  $('#back').disabled = $('#first').disabled = step === 0;
  $('#next').disabled = $('#end').disabled = step === line.last;
  for (const row of $('#rows').children) row.classList.toggle('now', row.dataset.step === String(step));
  if (!quiet) text($('#say'), spoken(now));
  history.replaceState(null, '', `${location.pathname}${location.search}#${step + 1}`);
}

/** The step as a screen reader says it; lease and keys are read where they stand. */
function spoken({ event, act, overlap, breaks, believers }) {
  const { command, reply } = event.detail ?? {};
  return [
    t('lesson.step_of', { n: step + 1, all: line.last + 1 }), event.to ? t('lesson.from_to', { from: nameOf(event.actor), to: nameOf(event.to) }) : nameOf(event.actor),
    command, reply == null ? null : t('lesson.replied', { reply }), event.staged ? t('lesson.staged') : null, event.say,
    overlap ? t('lesson.two', { names: listed(believers) }) : breaks ? verdictWords(act.verdict) : null,
  ].filter(Boolean).map((one) => (/[.!?。！？]$/.test(one) ? one : `${one}.`)).join(' ');
}

/** What is left of the lease, as a bar that shrinks from step to step. */
function showLease() {
  const left = lease(line, step);
  $('#lease').hidden = !left;
  if (!left) return;
  const name = nameOf(left.owner);
  text($('#lease-words'), typeof left.left === 'number' ? t('lesson.lease', { name, ms: number(left.left) }) : t(`lesson.lease_${left.left}`, { name }));
  const bar = $('#lease i');
  bar.className = paint(left.owner);
  bar.style.width = `${Math.round(left.part * 100)}%`;
}

function showHolders({ believers, overlap }) {
  const box = $('#holders');
  box.className = overlap ? 'holders overlap' : 'holders';
  text($('#holders-title'), overlap ? t('lesson.two', { names: listed(believers) }) : believers.length ? t('lesson.believes') : line.events.some((event) => event.believers?.length) ? t('lesson.nobody') : '');
  $('#holders-list').replaceChildren(...(overlap ? [] : believers.map((id) => h('li', { class: paint(id) }, nameOf(id)))));
  $('#which-line').hidden = $('#marks-box').hidden;
}

function lasting(key) {
  const left = lasts(key.name, key);
  return left == null ? '–' : typeof left === 'number' ? t('ms', { n: number(left) }) : t(`lesson.lasts_${left}`);
}

function showKeys({ keys }) {
  $('#keys').replaceChildren(...keys.map((key) => h('tr', { class: key.changed ? 'changed' : '' },
    h('th', { scope: 'row' }, h('code', {}, t(`lesson.keyed.${key.name}`, { name: key.name }, 'lab.option_other'))),
    h('td', {}, key.value == null ? h('span', { class: 'muted' }, t('lesson.no_value')) : h('code', {}, String(key.value))),
    h('td', {}, key.owner == null ? '–' : nameOf(key.owner)),
    h('td', { class: 'num' }, lasting(key)))));
  $('#keys-none').hidden = keys.length > 0;
  $('#keys-table').hidden = keys.length === 0;
}

function showCode(at) {
  $('#code-idle').hidden = Boolean(at);
  if (!at) return sources.forEach(({ show: mark }) => mark(null));
  const source = line.play.code?.[at.file];
  text($('#file'), `${at.file}:${at.line}`);
  if (source == null) return;
  if (!sources.has(at.file)) {
    sources.set(at.file, codeView(source, { file: at.file, label: t('lab.source_of', { title: at.file }) }));
    $('#code').append(sources.get(at.file).element);
  }
  for (const [file, view] of sources) view.element.hidden = file !== at.file;
  sources.get(at.file).show(at.line);
}

function verdictWords(verdict) { return verdict?.broken ? t('lesson.broken', { why: verdict.why ?? '' }) : t('lesson.held', { why: verdict?.why ?? '' }); }

function showAct({ ends, number: current }, act) {
  for (const [index, button] of [...$('#acts').querySelectorAll('.act')].entries()) {
    if (index === current) button.setAttribute('aria-current', 'step');
    else button.removeAttribute('aria-current');
  }
  text($('#act-say'), act.say ?? '');
  const strip = $('#acts'), here = strip.children[current];
  if (shownAct !== act) strip.scrollLeft = here.offsetLeft - strip.offsetLeft - 16;
  if (shownAct !== act) {
    shownAct = act;
    $('#marks-box').hidden = !act.marks?.length;
    import('./marked.js').then(({ byInterest, marked }) => {
      if (shownAct === act) $('#marks').replaceChildren(...byInterest(act.marks, act.kind !== 'cure').map((mark, index) => marked(mark, String(index + 1))));
    }, () => {}); // without them the lesson is still whole
  }
  const box = $('#verdict');
  box.hidden = !ends || !act.verdict;
  box.className = `verdict ${act.verdict?.broken ? 'bad' : 'ok'}`;
  text(box, ends && act.verdict ? verdictWords(act.verdict) : '');
}

// ---- playing ------------------------------------------------------------------------------------

function playing(on) {
  clearTimeout(timer);
  timer = null;
  const button = $('#play');
  text($('#play-word'), t(on ? 'lesson.pause' : 'lesson.play'));
  button.dataset.on = on;
  if (on) timer = setTimeout(tick, dwellMs(line.events[step], speed));
}

function tick() {
  show(step + 1);
  playing(step < line.last);
}

function toggle() {
  if (timer) return playing(false);
  if (step === line.last) show(0);
  playing(true);
}

const seek = (to) => { playing(false); show(to); };

function key(event) {
  if (!line || event.ctrlKey || event.metaKey || event.altKey) return;
  const at = event.target;
  // A field has its own keys, a button its space, and a box that scrolls its arrows.
  if (at.matches('select, textarea, input:not([type="range"])') || (event.key === ' ' && at.matches('button, summary, a, input'))) return;
  if (at.matches('.code, .scroll') && event.key !== ' ') return;
  if (event.key === ' ') { event.preventDefault(); return toggle(); }
  const to = keyed(line, step, event.key);
  if (to === null) return;
  event.preventDefault();
  seek(to);
}

// ---- the play -----------------------------------------------------------------------------------

/**
 * What a server said, as it said it; only what the play adds about its way is in words, and that it
 * was not heard.
 */
function replied(reply) {
  const [, lost] = /^\(reply lost: (.*)\)$/s.exec(reply) ?? [], [, played] = /^(.*) \(played as lost\)$/s.exec(reply) ?? [];
  if (reply === '(not sent)') return { reply: t('lesson.not_sent'), heard: false };
  if (lost != null) return { reply: t('lesson.reply_lost', { reply: lost }), heard: false };
  return played != null ? { reply: t('lesson.played_lost', { reply: played }), heard: false } : { reply };
}

function perform(play) {
  for (const { detail } of play.events ?? []) if (typeof detail?.reply === 'string') Object.assign(detail, replied(detail.reply));
  line = timeline(play);
  if (line.last < 0) return failed({ code: 'empty', detail: t('lesson.empty') }, run);
  sources.clear();
  $('#code').replaceChildren();
  paint = colours(line.actors);
  shownAct = null;
  $('#theatre').hidden = $('#after').hidden = false;
  draw = stage($('#stage'), line, seek, { nameOf, listed });
  $('#as-recorded').hidden = !play.recorded;
  $('#repeats').hidden = !play.repeats;
  text($('#repeats'), play.repeats ? t('lesson.repeats', { n: play.repeats }) : '');
  $('#prices').replaceChildren(...prices(line).map(({ act, sent, ms }) => h('tr', {},
    h('th', { scope: 'row' }, act.title), h('td', { class: act.verdict?.broken ? 'bad' : '' }, t(act.verdict?.broken ? 'lesson.mark_broken' : 'lesson.mark_held')),
    h('td', {}, [...sent.map(([to, n]) => t('lesson.sent', { n, to: nameOf(to) })), t('ms', { n: number(ms) })].join(' · ')), h('td', {}, '–'))));
  text($('#measured-how'), '');
  if (!$('#measure').checkVisibility()) price(); // an export: the figures are in a file
  $('#acts').replaceChildren(...line.acts.map((act, index) => {
    const breaks = violation(line, index);
    return h('li', {}, h('button', { type: 'button', class: `act ${act.kind}`, onclick: () => seek(act.first) },
      h('small', {}, `${index + 1} · ${t(`lesson.kind.${act.kind}`)}`), h('span', { class: 'act-title' }, act.title),
      act.verdict ? h('em', { class: act.verdict.broken ? 'bad' : 'ok' }, t(act.verdict.broken ? 'lesson.mark_broken' : 'lesson.mark_held')) : null),
      breaks === null ? null : h('button', { type: 'button', class: 'button small quiet', onclick: () => seek(breaks) }, t(isOverlap(line.events[breaks]) ? 'lesson.to_overlap' : 'lesson.to_violation')));
  }));
  $('#rows').replaceChildren(...line.events.map((event, index) => h('tr', { class: event.overlap || moment(line, index).breaks ? 'overlap' : '', 'data-step': index },
    h('td', {}, h('a', { class: 'button small', 'aria-label': t('lesson.go_to', { n: index + 1 }), href: `${location.search}#${index + 1}` }, String(index + 1))),
    h('td', {}, event.to ? t('lesson.from_to', { from: nameOf(event.actor), to: nameOf(event.to) }) : nameOf(event.actor)),
    h('td', {}, h('code', {}, event.detail?.command ?? '–'), event.detail?.reply == null ? null : h('code', { class: 'reply' }, ` → ${event.detail.reply}`)),
    h('td', { class: 'says' }, event.say ?? '', event.staged ? h('span', { class: 'staged-mark' }, t('lesson.staged')) : null),
    h('td', {}, event.believers?.length ? listed(event.believers) : '–', event.overlap ? h('strong', { class: 'error' }, ` ${t('lesson.overlap')}`) : null))));
  $('#seek').max = line.last;
  text($('#outcome'), play.verdict?.why ? t('lesson.outcome', { why: play.verdict.why }) : '');
  show(Number(/^#(\d+)$/.exec(location.hash)?.[1] ?? 1) - 1, { quiet: true });
}

const price = () => import('./lesson-price.js').then(({ measure }) => measure(line), () => {});

async function run() {
  playing(false);
  const again = $('#again');
  again.disabled = true;
  $('#preparing').hidden = false;
  try {
    const options = chosenOptions(lesson.options ?? [], chosen);
    const play = await call('POST', inWords(`/api/v1/lab/lessons/${encodeURIComponent(ID)}/play`), { body: { options }, timeoutMs: PLAYING_MS });
    workedAgain();
    perform(play);
    text($('#say'), t('lesson.ready', { n: line.last + 1 }));
  } catch (problem) {
    if (line) { text($('#say'), refusal(problem)); text($('#again-why'), refusal(problem)); } else failed(problem, run);
  } finally {
    again.disabled = false;
    prepared();
  }
}

/** Shows the strip of lessons once the play is there, or will not come. */
function prepared() {
  $('#preparing').hidden = true;
  const strip = $('#strip'), here = $('[aria-current]', strip)?.parentElement;
  if (here) strip.scrollLeft = here.offsetLeft - strip.offsetLeft - 16;
}

function optionForm() {
  const options = lesson.options ?? [];
  $('#options').hidden = options.length === 0;
  $('#option-fields').replaceChildren(...options.map((option) => {
    const input = optionInput(option, chosen[option.name], `o-${option.name}`);
    input.addEventListener('change', () => {
      const value = valueOf(input);
      if (value === '' || value === String(option.default)) delete chosen[option.name];
      else chosen[option.name] = value;
    });
    return h('p', { class: 'field' }, h('label', { for: `o-${option.name}` }, optionName(option.name)), input, h('small', { id: `o-${option.name}-teaches` }, option.teaches ?? ''));
  }));
}

async function load() {
  let lessons;
  try {
    ({ lessons } = await call('GET', inWords('/api/v1/lab/lessons')));
  } catch (problem) {
    $('#preparing').hidden = true;
    return failed(problem, load);
  }
  workedAgain();
  lesson = lessons.find(({ id }) => id === ID);
  $('#strip').replaceChildren(...lessonStrip(lessons, ID));
  $('#missing').hidden = Boolean(lesson);
  $('#preparing').hidden = !lesson;
  $('#page').hidden = !lesson;
  if (!lesson) return;
  document.title = `${lesson.title} · ${t('lesson.title')}`;
  text($('#number'), t('lesson.number', { n: lesson.number }));
  text($('#title'), lesson.title);
  for (const part of ['failure', 'forced_how', 'cure', 'source']) {
    $(`#${part}`).parentElement.hidden = !lesson[part];
    text($(`#${part}`), lesson[part] ?? '');
  }
  optionForm();
  if (lesson.available?.ok === false) {
    prepared();
    $('#unplayed').hidden = false;
    text($('#unplayed-why'), t('lab.unavailable', { why: lesson.available.why ?? '' }));
    $('#recording').hidden = !lesson.available.recorded;
    return;
  }
  await run();
}

frame();
$('#recording').addEventListener('click', () => { $('#unplayed').hidden = true; run(); });
$('#measure').addEventListener('click', price);
$('#which-line').addEventListener('click', () => { $('#marks-box').scrollIntoView(); $('#h-marks').focus({ preventScroll: true }); });
$('#first').addEventListener('click', () => seek(0));
$('#back').addEventListener('click', () => seek(step - 1));
$('#next').addEventListener('click', () => seek(step + 1));
$('#end').addEventListener('click', () => seek(line.last));
$('#play').addEventListener('click', toggle);
$('#seek').addEventListener('input', (event) => seek(event.target.value));
$('#speed').addEventListener('change', (event) => { speed = Number(event.target.value); if (timer) playing(true); });
$('#option-form').addEventListener('submit', (event) => {
  event.preventDefault();
  text($('#again-why'), '');
  const query = new URLSearchParams(chosen).toString();
  history.replaceState(null, '', `${location.pathname}${query ? `?${query}` : ''}#1`);
  run();
});
addEventListener('keydown', key);
addEventListener('hashchange', () => { if (line && /^#\d+$/.test(location.hash)) seek(location.hash.slice(1) - 1); });
document.addEventListener('visibilitychange', () => { if (document.hidden) playing(false); });
load();
