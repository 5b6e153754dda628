// The page for the projector: one button opens a real race, stops it at two of its buyers, and
// repairs it.

import { call } from '../api.js';
import { number } from '../format.js';
import { $, h, shareResult, text, toast } from '../ui.js';
import { frame } from './frame.js';
import { leave, race, recording, STOCK } from './why-race.js';
import { crowd, shop } from './why-stage.js';
import { buyerNumber, GAP, LINES, MOMENTS, onSale, walk } from './why-steps.js';
import { inWords, language, t } from './why-words.js';

const BROKEN = 'naive', CURED = 'conditional-update';
const people = crowd($('#crowd')), left = shop($('#left'), STOCK, people), right = shop($('#right'), STOCK, people);
let at = { scene: 'start', moment: 0 }, racing = false, met = null, broke = 0, sale = null; // what the broken one sold; what the third door is about
const marking = import('./marked.js'); // with the page: S may be pressed where there is no server any more
marking.catch(() => {});

const GO = { start: 'why.open', raced: 'why.why', stopped: 'why.fix', fixed: 'why.again', again: 'why.doors_go', doors: 'why.over' };

function show(focus = false) {
  const { scene, moment } = at;
  $('#main').dataset.scene = scene;
  $('#stopped').hidden = scene !== 'stopped';
  $('#fixed').hidden = !['fixed', 'again', 'doors'].includes(scene);
  $('#shops').hidden = $('#crowd').hidden = ['stopped', 'fixed', 'doors'].includes(scene);
  $('#right').hidden = scene === 'again';
  $('#doors').hidden = scene !== 'doors';
  $('#picture').hidden = scene !== 'raced' || racing;
  if (scene === 'doors' && sale) join().catch(() => {}); // without a server, no code
  text($('#h-left'), t(scene === 'again' ? 'why.fixed_title' : 'why.left'));
  text($('#go'), t(racing ? 'why.racing' : scene === 'stopped' && moment < MOMENTS.length - 1 ? 'why.step' : GO[scene]));
  $('#go').setAttribute('aria-disabled', String(racing));
  if (scene === 'stopped') stopped(moment);
  if (focus) $('#go').focus({ preventScroll: true });
}

/** Two real buyers of this race on the five lines that they ran. */
function stopped(moment) {
  const names = met ? met.buyers.map((name) => t('why.buyer', { n: buyerNumber(name) })) : [t('why.buyer', { n: 'A' }), t('why.buyer', { n: 'B' })];
  const read = met?.a.read; // a recorded run may not know
  const values = read == null || read !== met.b.read ? { stock: 'n', less: 'n - 1' } : { stock: number(read), less: number(read - 1) };
  text($('#h-stopped'), met ? t('why.two', { a: names[0], b: names[1], ms: number(Math.round(met.at_ms)) }) : t('why.two_unknown'));
  $('#code').replaceChildren(...LINES.map((line, index) => h('li', { class: moment === GAP && (index === 1 || index === 2) ? 'glows' : '' },
    h('span', { class: 'cursor a' }, MOMENTS[moment][0] === index ? names[0] : ''), h('code', {}, t(`why.code.${line}`, values)),
    h('span', { class: 'cursor b' }, MOMENTS[moment][1] === index ? names[1] : ''))));
  const gap = $('#gap');
  gap.className = `gap ${moment === GAP ? 'now' : moment === MOMENTS.length - 1 ? 'wrong' : ''}`;
  text(gap, t(`why.gap.${moment}`, values));
  text($('#say'), t(`why.gap.${moment}`, values));
  $('#scrub').value = moment;
  $('#scrub').setAttribute('aria-valuetext', t(`why.gap.${moment}`, values));
}

function clear(...places) {
  people.back();
  for (const place of places) place.reset();
}

/** The broken one as it ended, where the cured one has been in its place. */
function brokenAgain() {
  clear(left);
  left.sold(broke);
}

async function sell(shops) {
  const anew = () => clear(...shops.map(([, place]) => place));
  racing = true;
  try {
    anew();
    show();
    const verdicts = await race([...new Set(shops.map(([id]) => id))], (id, sold) => shops.forEach(([own, place]) => { if (own === id) place.sold(sold); }), anew);
    for (const [id, place] of shops) place.sold(verdicts[id].sold); // counted from the rows
    await Promise.all(shops.map(([, place]) => place.settled()));
    $('#recorded').hidden = !verdicts.recorded;
    if (verdicts.recorded) text($('#recorded'), t('why.recorded', { day: new Intl.DateTimeFormat(language, { dateStyle: 'long', timeZone: 'UTC' }).format(new Date(verdicts.recorded)) }));
    return verdicts;
  } finally {
    racing = false;
  }
}

async function go(by = 1) {
  if (racing) return;
  const before = at, { scene } = before;
  if (scene === 'doors' && by > 0) return reset();
  at = walk(at, by);
  if (at.scene === 'start') return reset();
  try {
    if (scene === 'start' && at.scene === 'raced') {
      const verdicts = await sell([[BROKEN, left], [CURED, right]]);
      met = verdicts[BROKEN].collision ?? null;
      broke = left.shown;
      text($('#say'), t('why.said', { left: number(left.shown), right: number(right.shown) }));
    }
    if (scene === 'fixed' && at.scene === 'again') {
      await sell([[CURED, left]]);
      text($('#say'), t('why.said_fixed', { left: number(left.shown) }));
    }
    if (scene === 'again' && at.scene === 'fixed') brokenAgain();
  } catch { // not even the recorded run could be fetched
    at = before;
    if (scene === 'start') clear(left, right);
    else brokenAgain();
    toast(t('error.timeout'), 'bad');
  }
  show(true);
}

function reset() {
  at = { scene: 'start', moment: 0 };
  clear(left, right);
  show(true);
}

/** The real lines, with their marks; of a recorded run, the excerpts of that day. */
async function lines() {
  const { marked, byInterest } = await marking;
  const found = await call('GET', inWords('/api/v1/lab/strategies')).then(({ strategies }) => strategies, async () => {
    const run = await recording();
    return [BROKEN, CURED].map((id) => ({ id, marks: run[id].marks }));
  });
  return [BROKEN, CURED].flatMap((id) => byInterest(found.find((one) => one.id === id)?.marks, id === BROKEN).slice(0, 2)).map((mark, index) => marked(mark, String(index + 1)));
}

async function source() {
  const dialog = $('#lines');
  if (dialog.open) return dialog.close();
  const both = await lines().catch(() => []);
  $('#lines-body').replaceChildren(...(both.length ? both : [h('p', {}, t('why.no_lines'))]));
  if (!dialog.open) dialog.showModal();
}

/** Behind the third door is the wall of this sale; phones come to the sale itself. */
async function join() {
  const { picture, qr } = await import('../qr.js');
  const address = location.origin + sale, rows = qr(address);
  if (!rows) return;
  const mine = ['localhost', '127.0.0.1', '[::1]'].includes(location.hostname); // no phone gets there
  $('#join').replaceChildren(h('img', { src: picture(rows), alt: '' }), h('span', {}, t(mine ? 'why.join.mine' : 'why.join'), h('small', {}, address)));
  $('#join').hidden = false;
}

function key(event) {
  const { target } = event, by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
  if (by && target.matches('input') && target.value !== (by > 0 ? target.max : target.min)) return; // the scrubber's own, up to its end
  if (event.key.toLowerCase() === 's') return source();
  if (!by || $('#lines').open) return;
  go(by);
  event.preventDefault();
}

frame();
$('#go').addEventListener('click', () => go(1));
$('#scrub').addEventListener('input', ({ target }) => { at = { scene: 'stopped', moment: Number(target.value) }; show(); });
$('#source').addEventListener('click', source);
$('#picture').addEventListener('click', () => shareResult({ sold: broke, stock: STOCK, line: t('result.says', { sold: number(broke), stock: STOCK }), name: t('why.left') }));
addEventListener('keydown', key);
addEventListener('pagehide', leave);
show();
call('GET', '/api/v1/sales').then(({ sales }) => {
  const found = onSale(sales);
  if (!found) return; // the catalogue
  sale = `/sales/${encodeURIComponent(found.id)}`;
  $('#wall').href = `${sale}/live`;
}).catch(() => {});
