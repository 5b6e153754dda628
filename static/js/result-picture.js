// The picture of a result, to be shared: the stock as a frame of squares, and in red what was sold
// beyond it.

import { number } from './format.js';
import { h } from './ui.js';

const WIDTH = 1200, HEIGHT = 630, MARGIN = 56, RIGHT = 644; // as link previews want it
const PAPER = '#f7f3ec', INK = '#1c1714', SOFT = '#645a52', FREE = '#d8cec1', RED = '#a32210';
const IN_FRAME = 50, BEYOND = 160; // squares that fit

function canvasOf({ sold, stock, line, name }) {
  const canvas = h('canvas', { width: WIDTH, height: HEIGHT }), pen = canvas.getContext('2d');
  const face = getComputedStyle(document.documentElement).getPropertyValue('--display');
  const over = Math.max(0, sold - stock);
  const rect = (colour, ...at) => { pen.fillStyle = colour; pen.fillRect(...at); };
  rect(PAPER, 0, 0, WIDTH, HEIGHT);

  /** Words in lines of the left half; answers where the next line would stand. */
  function write(words, colour, size, y) {
    pen.fillStyle = colour;
    pen.font = `700 ${size}px ${face}`;
    let row = '';
    for (const piece of words.match(/\S+\s*|[\u3000-\uffef]/gu) ?? []) {
      if (row && pen.measureText((row + piece).trimEnd()).width > RIGHT - 2 * MARGIN) {
        pen.fillText(row, MARGIN, y);
        [row, y] = ['', y + size * 1.2];
      }
      row += piece;
    }
    pen.fillText(row, MARGIN, y);
    return y + size * 1.2;
  }
  const digits = number(sold);
  write(digits, over ? RED : INK, Math.min(300, 1000 / digits.length), 290);
  write(name, SOFT, 36, write(line, INK, 54, 400));

  const per = Math.max(1, Math.ceil(stock / IN_FRAME), Math.ceil(over / BEYOND));
  const squares = Math.ceil(stock / per), full = Math.ceil(Math.min(sold, stock) / per);
  for (let n = 0; n < squares; n++) rect(n < full ? INK : FREE, RIGHT + 10 + 49 * (n % 10), 70 + 49 * Math.floor(n / 10), 42, 42);
  pen.strokeStyle = INK;
  pen.lineWidth = 6;
  const bottom = 66 + 49 * Math.ceil(squares / 10);
  pen.strokeRect(RIGHT, 60, 503, bottom - 56);
  for (let n = 0; n < Math.ceil(over / per); n++) rect(RED, RIGHT + 25 * (n % 20), bottom + 26 + 25 * Math.floor(n / 20), 20, 20);
  return canvas;
}

/** Hands the picture to whoever shares files on this device, else to the downloads. `line` is what happened, `name` what did it. */
export async function share(result) {
  await document.fonts.load('700 54px "Archivo Narrow"').catch(() => {});
  const blob = await new Promise((done) => { canvasOf(result).toBlob(done, 'image/png'); });
  const file = new File([blob], `flash-sale-${result.sold}-of-${result.stock}.png`, { type: blob.type });
  if (navigator.canShare?.({ files: [file] })) return navigator.share({ files: [file] }).catch(() => {}); // thought better of it
  const link = h('a', { href: URL.createObjectURL(file), download: file.name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
