// A QR code: bytes, error correction L, one block, mask 0. Enough for an address of 106 bytes; no
// DOM.

const SIZES = [[19, 7], [34, 10], [55, 15], [80, 20], [108, 26]]; // codewords of data and of correction, by version
const FORMAT = 0b111011111000100; // L and mask 0, with their own correction

const EXP = [], LOG = [];
for (let power = 0, x = 1; power < 255; power++, x = x & 128 ? (x << 1) ^ 0x11d : x << 1) { EXP[power] = x; LOG[x] = power; }
const times = (a, b) => (a && b ? EXP[(LOG[a] + LOG[b]) % 255] : 0);

/** Reed-Solomon: what is left of the data after division by (x - 1)(x - 2)(x - 4)… */
function correction(data, count) {
  let divisor = [1];
  for (let n = 0; n < count; n++) divisor = [...divisor, 0].map((factor, at) => factor ^ times(divisor[at - 1] ?? 0, EXP[n]));
  const left = [...data, ...Array(count).fill(0)];
  for (let at = 0; at < data.length; at++) {
    const lead = left[at];
    divisor.forEach((factor, n) => { left[at + n] ^= times(factor, lead); });
  }
  return left.slice(data.length);
}

/** Rows of true (dark) and false; null for a text that is too long. */
export function qr(text) {
  const bytes = [...new TextEncoder().encode(text)];
  const version = 1 + SIZES.findIndex(([room]) => bytes.length + 2 <= room);
  if (!version) return null;
  const [room, extra] = SIZES[version - 1];
  const halves = [4, bytes.length >> 4, bytes.length & 15, ...bytes.flatMap((byte) => [byte >> 4, byte & 15]), 0]; // "bytes", how many, they
  const data = Array.from({ length: room }, (_, n) => (2 * n < halves.length ? halves[2 * n] << 4 | halves[2 * n + 1] : (n - bytes.length) % 2 ? 0x11 : 0xec));
  const words = [...data, ...correction(data, extra)];

  const size = 17 + 4 * version, rows = Array.from({ length: size }, () => Array(size).fill(null));
  const square = (top, left, reach, dark) => { // rings around a middle
    for (let row = -reach; row <= reach; row++) for (let column = -reach; column <= reach; column++) {
      if (rows[top + row]?.[left + column] !== undefined) rows[top + row][left + column] = dark(Math.max(Math.abs(row), Math.abs(column)));
    }
  };
  for (const [top, left] of [[3, 3], [3, size - 4], [size - 4, 3]]) square(top, left, 4, (ring) => ring !== 2 && ring !== 4);
  if (version > 1) square(size - 7, size - 7, 2, (ring) => ring !== 1);
  for (let n = 8; n < size - 8; n++) rows[6][n] = rows[n][6] = n % 2 === 0;
  rows[size - 8][8] = true;
  for (let n = 0; n < 15; n++) {
    const dark = Boolean(FORMAT >> n & 1);
    rows[n < 6 ? n : n < 8 ? n + 1 : size - 15 + n][8] = dark;
    rows[8][n < 8 ? size - 1 - n : n < 9 ? 7 : 14 - n] = dark;
  }
  let bit = 0;
  for (let right = size - 1, up = true; right > 0; right -= right === 8 ? 3 : 2, up = !up) { // without the column of the timing
    for (let n = 0; n < size; n++) for (const column of [right, right - 1]) {
      const row = up ? size - 1 - n : n;
      if (rows[row][column] !== null) continue;
      rows[row][column] = Boolean((words[bit >> 3] ?? 0) >> (7 - bit % 8) & 1) !== ((row + column) % 2 === 0);
      bit += 1;
    }
  }
  return rows;
}

/** As the address of a picture, with the white that a camera looks for around it. */
export function picture(rows) {
  const dark = rows.flatMap((row, y) => row.map((is, x) => (is ? `M${x} ${y}h1v1h-1z` : ''))).join('');
  const box = `-4 -4 ${rows.length + 8} ${rows.length + 8}`;
  return `data:image/svg+xml,${encodeURIComponent(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="${box}"><path fill="#fff" d="M-4-4h99v99h-99z"/><path d="${dark}"/></svg>`)}`;
}
