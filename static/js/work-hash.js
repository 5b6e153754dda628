// SHA-256 (FIPS 180-4) of short ASCII texts. The browser's own, crypto.subtle, is only there over
// https, and a demo is often shown over http on a local network; it is also asynchronous, which a
// loop of a million does not want.

const K = new Uint32Array(64), H = new Uint32Array(8);
for (let n = 2, found = 0; found < 64; n++) { // the fractions of the roots of the first primes
  let prime = true;
  for (let d = 2; d * d <= n; d++) if (n % d === 0) { prime = false; break; }
  if (!prime) continue;
  const fraction = (root) => ((n ** root % 1) * 2 ** 32) | 0;
  if (found < 8) H[found] = fraction(1 / 2);
  K[found++] = fraction(1 / 3);
}

const right = (x, n) => (x >>> n) | (x << (32 - n));
const W = new Uint32Array(64);

/** The first 32 bits of the hash of `text`, as an unsigned number. */
export function head(text) {
  const length = text.length, blocks = ((length + 8) >> 6) + 1;
  const state = Uint32Array.from(H);
  const byteAt = (at) => (at < length ? text.charCodeAt(at) : at === length ? 0x80 : 0);
  for (let block = 0; block < blocks; block++) {
    for (let i = 0; i < 16; i++) {
      const at = block * 64 + i * 4;
      W[i] = (byteAt(at) << 24) | (byteAt(at + 1) << 16) | (byteAt(at + 2) << 8) | byteAt(at + 3);
    }
    if (block === blocks - 1) W[15] = length * 8; // ids and numbers are far below 2^29 bytes
    for (let i = 16; i < 64; i++) {
      const x = W[i - 15], y = W[i - 2];
      W[i] = W[i - 16] + (right(x, 7) ^ right(x, 18) ^ (x >>> 3)) + W[i - 7] + (right(y, 17) ^ right(y, 19) ^ (y >>> 10));
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let i = 0; i < 64; i++) {
      const one = (h + (right(e, 6) ^ right(e, 11) ^ right(e, 25)) + ((e & f) ^ (~e & g)) + K[i] + W[i]) | 0;
      const two = ((right(a, 2) ^ right(a, 13) ^ right(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g; g = f; f = e; e = (d + one) | 0; d = c; c = b; b = a; a = (one + two) | 0;
    }
    for (const [i, value] of [a, b, c, d, e, f, g, h].entries()) state[i] += value;
  }
  return state[0];
}

/** `challenge:number` whose hash begins with `bits` (at most 24) zero bits, tried from `from` on. */
export function solve(challenge, bits, from = 0) {
  const below = 2 ** (32 - bits);
  for (let number = from; ; number++) {
    const solution = `${challenge}:${number}`;
    if (head(solution) < below) return solution;
  }
}
