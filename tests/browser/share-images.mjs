// The pictures that a shared link to /lab/why or to a lesson shows: squares and lifelines, as on
// the pages, and the words in both languages. Made by scripts/screenshots.sh.

import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { RUN } from '../../static/js/lab/recorded.js';

const WIDTH = 1200, HEIGHT = 630;
const FACE = '"DIN Alternate", Bahnschrift, "Roboto Condensed", "DejaVu Sans Condensed", "PingFang SC", "Microsoft YaHei", "Noto Sans CJK SC", "WenQuanYi Micro Hei", sans-serif';
const page = (body) => `<!doctype html><style>
  * { box-sizing: border-box; margin: 0; }
  body { width: ${WIDTH}px; height: ${HEIGHT}px; padding: 48px 56px; background: #f7f3ec; color: #1c1714; font: 800 52px/1.25 ${FACE}; display: grid; grid-template-columns: 1fr 1fr; gap: 40px; }
  .words { display: grid; align-content: space-between; }
  .words small { display: block; color: #645a52; font-size: 44px; font-weight: 700; }
  .large { font-size: 76px; line-height: 1.1; }
  .count { color: #a32210; font-size: 330px; line-height: .9; letter-spacing: -.05em; }
  .frame { display: grid; grid-template-columns: repeat(5, 1fr); gap: 10px; padding: 14px; border: 7px solid #1c1714; }
  .frame i { aspect-ratio: 1; background: #1c1714; }
  .spill { display: flex; flex-wrap: wrap; gap: 7px; margin-top: 18px; }
  .spill i { width: 36px; aspect-ratio: 1; background: #a32210; }
</style>${body}`;

const { sold, oversold } = RUN.naive.verdict, STOCK = sold - oversold;
const why = page(`<div class="words"><p class="count">${sold}</p><p>${sold} sold. ${STOCK} existed.<small>卖出 ${sold}，库存 ${STOCK}</small></p></div>
  <div><div class="frame">${'<i></i>'.repeat(STOCK)}</div><div class="spill">${'<i></i>'.repeat(sold - STOCK)}</div></div>`);

const CLIENTS = ['#1c5a86', '#ffc533', '#17693d', '#7a4b9a'], INK = '#1c1714', RED = '#a32210';
const WIDE = 524, HIGH = 534, TOP = 96;

/**
 * What a failure looks like: who sent what to whom, who believed to hold the lock, and in red,
 * since when two did.
 */
function diagram({ acts, actors, events }) {
  const { first, last } = acts.find((act) => act.verdict.broken), steps = events.slice(first, last + 1);
  const seen = actors.filter(({ id }) => steps.some((step) => [step.actor, step.to].includes(id)));
  const x = (id) => WIDE * (seen.findIndex((actor) => actor.id === id) + 0.5) / seen.length;
  const gap = (HIGH - TOP) / steps.length, y = (at) => TOP + (at + 0.5) * gap;
  const shapes = seen.map(({ id, kind }, at) => {
    const colour = kind === 'client' ? CLIENTS[at % CLIENTS.length] : INK;
    const held = steps.map((step, row) => (step.believers.includes(id) ? `M${x(id)} ${y(row)}v${gap}` : '')).join('');
    const head = kind === 'client' ? `<circle cx="${x(id)}" cy="32" r="30"` : `<rect x="${x(id) - 28}" y="4" width="56" height="56"`;
    return `<path d="M${x(id)} 60V${HIGH}" stroke="#e3dbd0"/><path d="${held}" stroke="${colour}" stroke-width="30"/>${head} fill="${colour}" stroke="none"/>`;
  });
  const marks = steps.map((step, row) => {
    const [from, to, at, colour] = [x(step.actor), x(step.to), y(row), step.overlap ? RED : INK], back = from < to ? -14 : 14;
    if (!step.to) return `<circle cx="${from}" cy="${at}" r="10" fill="${colour}" stroke="none"/>`; // a crash, a pause
    return `<path d="M${from} ${at}H${to}m${back} -10 ${-back} 10 ${back} 10" stroke="${colour}"/>`;
  });
  const bands = steps.map((step, at) => (step.overlap ? `<rect y="${y(at)}" width="${WIDE}" height="${gap + 1}" fill="#fde3dd" stroke="none"/>` : ''));
  return `<svg width="${WIDE}" height="${HIGH}" fill="none" stroke-width="5">${[...bands, ...shapes, ...marks].join('')}</svg>`;
}

/** A picture of each lesson, from a play of it. */
async function lessons(server) {
  const [english, chinese] = await Promise.all(['en', 'zh'].map((lang) => server.call('GET', `/api/v1/lab/lessons?lang=${lang}`)));
  const pictures = {};
  for (const [at, { id, title }] of english.lessons.entries()) {
    const play = await server.call('POST', `/api/v1/lab/lessons/${id}/play`);
    pictures[`share-${id}`] = page(`<div class="words"><p class="large">${title}<small>${chinese.lessons[at].title}</small></p><p><small>flash-sale lab</small></p></div>${diagram(play)}`);
  }
  return pictures;
}

/** Writes all of them into the folder. */
export async function shareImages(browser, folder, server) {
  const context = await browser.newContext({ viewport: { width: WIDTH, height: HEIGHT } }), sheet = await context.newPage();
  for (const [name, html] of Object.entries({ 'share-why': why, ...await lessons(server) })) {
    await sheet.setContent(html);
    const png = await sheet.screenshot();
    await writeFile(join(folder, `${name}.png`), png);
    console.log(`${name}.png  ${Math.round(png.length / 1024)} KB`);
  }
  await context.close();
}
