// The picture of a result, to be shared: the stock as a frame of squares, and in red what was sold
// beyond it.

import { number } from './format.js';
import { t } from './strings.js';
import { h } from './ui.js';

const WIDTH = 1200, HEIGHT = 630, MARGIN = 56, RIGHT = 644; // as link previews want it
const PAPER = '#f7f3ec', INK = '#1c1714', SOFT = '#645a52', FREE = '#d8cec1', RED = '#a32210';
const SQUARES = 450, BROAD = 503, HIGH = 470; // how many fit into which room

function canvasOf({ sold, stock, line, name }) {
  const canvas = h('canvas', { width: WIDTH, height: HEIGHT }), pen = canvas.getContext('2d');
  const face = getComputedStyle(document.documentElement).getPropertyValue('--display');
  const over = Math.max(0, sold - stock), room = RIGHT - 2 * MARGIN;
  const rect = (colour, ...at) => { pen.fillStyle = colour; pen.fillRect(...at); };
  const type = (colour, size) => { pen.fillStyle = colour; pen.font = `700 ${size}px ${face}`; };
  rect(PAPER, 0, 0, WIDTH, HEIGHT);

  /** Words of the left half, in at most two rows; answers where the next row would stand. */
  function write(words, colour, size, y) {
    type(colour, size);
    const rows = [''], fits = (row) => pen.measureText(row.trimEnd()).width <= room;
    for (const piece of words.match(/[\u3000-\uffef]\s*|[^\s\u3000-\uffef]+\s*/gu) ?? []) {
      if (fits(rows.at(-1) + piece)) rows[rows.length - 1] += piece;
      else rows.push(piece);
    }
    const shown = rows.filter(Boolean).slice(0, 2);
    if (rows.filter(Boolean).length > 2) shown[1] += '…';
    for (let row of shown) {
      while (!fits(row)) row = `${row.slice(0, -2)}…`;
      pen.fillText(row, MARGIN, y);
      y += size * 1.2;
    }
    return y;
  }
  const digits = number(sold);
  type(over ? RED : INK, 300);
  type(over ? RED : INK, Math.min(300, 300 * room / pen.measureText(digits).width));
  pen.fillText(digits, MARGIN, 290);
  write(name, SOFT, 36, write(line, INK, 54, 400));

  const per = Math.max(1, Math.ceil((stock + over) / SQUARES));
  const [squares, full, red] = [stock, Math.min(sold, stock), over].map((units) => Math.ceil(units / per));
  let columns = Math.min(10, squares), rows, pitch;
  do { // all of one size
    pitch = Math.min(64, Math.floor((BROAD - 20) / columns));
    rows = Math.ceil(squares / columns);
  } while ((rows + Math.ceil(red / columns)) * pitch > HIGH - 40 && columns++);
  const square = (colour, n, top) => rect(colour, RIGHT + 10 + pitch * (n % columns), top + pitch * Math.floor(n / columns), pitch * 0.86, pitch * 0.86);
  pen.strokeStyle = INK;
  pen.lineWidth = 6;
  pen.strokeRect(RIGHT, 60, pitch * columns + 14, pitch * rows + 14);
  for (let n = 0; n < squares; n++) square(n < full ? INK : FREE, n, 70);
  for (let n = 0; n < red; n++) square(RED, n, 70 + pitch * rows + 24);
  type(SOFT, 24);
  if (per > 1) pen.fillText(t('result.square', { n: number(per) }), RIGHT, HEIGHT - 40);
  return canvas;
}

/**
 * Hands the picture to a reader who can share files on this device, else to the downloads. `line`
 * is what happened, `name` what did it.
 */
export async function share(result) {
  await Promise.race([document.fonts.load('700 54px "Archivo Narrow"').catch(() => {}), new Promise((done) => { setTimeout(done, 500); })]);
  const blob = await new Promise((done) => { canvasOf(result).toBlob(done, 'image/png'); });
  const file = new File([blob], `flash-sale-${result.sold}-of-${result.stock}.png`, { type: blob.type });
  if (navigator.canShare?.({ files: [file] })) {
    const refused = await navigator.share({ files: [file] }).then(() => null, ({ name }) => name);
    if (refused !== 'NotAllowedError') return; // shared, or thought better of it
  }
  const link = h('a', { href: URL.createObjectURL(file), download: file.name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
