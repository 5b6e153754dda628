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

/** Alice holds the lock from the second step on; her lease ends, and Bob gets it while she still works. */
const lesson = page(`<div class="words"><p class="large">One lock,<br>two holders.<small>一把锁，两个人持有</small></p><p><small>flash-sale lab</small></p></div>
  <svg width="524" height="534" fill="none" stroke="#1c1714" stroke-width="6">
    <rect x="0" y="330" width="524" height="204" fill="#fde3dd" stroke="none"/>
    <path d="M80 60V534M262 60V534M444 60V534" stroke="#e3dbd0"/>
    <path d="M80 120V534" stroke="#1c5a86" stroke-width="34"/><path d="M444 330V534" stroke="#ffc533" stroke-width="34"/>
    <path d="M80 120H262m-24-16 24 16-24 16M444 330H262m24-16-24 16 24 16"/>
    <path d="M80 470H262m-24-16 24 16-24 16M444 420H262m24-16-24 16 24 16" stroke="#a32210"/>
    <rect x="202" y="170" width="120" height="16" stroke-width="3"/><rect x="202" y="170" width="90" height="16" fill="#1c5a86" stroke="none"/>
    <rect x="202" y="250" width="120" height="16" stroke-width="3"/><rect x="202" y="250" width="24" height="16" fill="#1c5a86" stroke="none"/>
    <circle cx="80" cy="32" r="30" fill="#1c5a86" stroke="none"/><circle cx="444" cy="32" r="30" fill="#ffc533" stroke="none"/><rect x="234" y="4" width="56" height="56" fill="#1c1714" stroke="none"/>
  </svg>`);

/** Writes both into the folder. */
export async function shareImages(browser, folder) {
  const context = await browser.newContext({ viewport: { width: WIDTH, height: HEIGHT } }), sheet = await context.newPage();
  for (const [name, html] of Object.entries({ 'share-why': why, 'share-lesson': lesson })) {
    await sheet.setContent(html);
    const png = await sheet.screenshot();
    await writeFile(join(folder, `${name}.png`), png);
    console.log(`${name}.png  ${Math.round(png.length / 1024)} KB`);
  }
  await context.close();
}
