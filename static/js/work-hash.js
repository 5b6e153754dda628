// SHA-256 (FIPS 180-4) of short ASCII texts. The browser's own, crypto.subtle, is only there over
// https, and a demo is often shown over http on a local network; it is also asynchronous, which a
// loop of a million does not want.

const K = new Int32Array(64), H = new Int32Array(8);
for (let n = 2, found = 0; found < 64; n++) { // the fractions of the roots of the first primes
  let prime = true;
  for (let d = 2; d * d <= n; d++) if (n % d === 0) { prime = false; break; }
  if (!prime) continue;
  const fraction = (root) => ((n ** root % 1) * 2 ** 32) | 0;
  if (found < 8) H[found] = fraction(1 / 2);
  K[found++] = fraction(1 / 3);
}

const W = new Int32Array(64);

/** Takes the block of `bytes` that begins at `at` into `state`. */
function compress(state, bytes, at) {
  for (let i = 0, j = at; i < 16; i++, j += 4) W[i] = (bytes[j] << 24) | (bytes[j + 1] << 16) | (bytes[j + 2] << 8) | bytes[j + 3];
  for (let i = 16; i < 64; i++) {
    const x = W[i - 15], y = W[i - 2];
    W[i] = (W[i - 16] + ((x >>> 7 | x << 25) ^ (x >>> 18 | x << 14) ^ (x >>> 3)) + W[i - 7] + ((y >>> 17 | y << 15) ^ (y >>> 19 | y << 13) ^ (y >>> 10))) | 0;
  }
  let a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6], h = state[7];
  for (let i = 0; i < 64; i++) {
    const one = (h + ((e >>> 6 | e << 26) ^ (e >>> 11 | e << 21) ^ (e >>> 25 | e << 7)) + ((e & f) ^ (~e & g)) + K[i] + W[i]) | 0;
    const two = (((a >>> 2 | a << 30) ^ (a >>> 13 | a << 19) ^ (a >>> 22 | a << 10)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    h = g; g = f; f = e; e = (d + one) | 0; d = c; c = b; b = a; a = (one + two) | 0;
  }
  state[0] += a; state[1] += b; state[2] += c; state[3] += d; state[4] += e; state[5] += f; state[6] += g; state[7] += h;
}

/** Hashes texts that begin alike: what they share is taken in once. */
function hasher(start) {
  const begun = Int32Array.from(H), state = new Int32Array(8);
  const whole = start.length & ~63, bytes = new Uint8Array(whole + 192), view = new DataView(bytes.buffer);
  for (let i = 0; i < start.length; i++) bytes[i] = start.charCodeAt(i);
  for (let at = 0; at < whole; at += 64) compress(begun, bytes, at);
  return (rest) => { // of at most a hundred characters
    let end = start.length;
    for (let i = 0; i < rest.length; i++) bytes[end++] = rest.charCodeAt(i);
    const blocks = (end - whole + 72) >> 6, last = whole + blocks * 64;
    bytes.fill(0, end, last);
    bytes[end] = 0x80;
    view.setUint32(last - 4, end * 8); // ids and numbers are far below 2^29 bytes
    state.set(begun);
    for (let at = whole; at < last; at += 64) compress(state, bytes, at);
    return state[0] >>> 0;
  };
}

/** The first 32 bits of the hash of `text`, as an unsigned number. */
export const head = (text) => hasher(text)('');

const TELL_EVERY = 4096;

/**
 * `challenge:number` whose hash begins with `bits` (at most 24) zero bits, tried from `from` on.
 * `tell(n)` hears every now and then that `n` more were tried.
 */
export function solve(challenge, bits, from = 0, tell = () => {}) {
  const below = 2 ** (32 - bits), start = `${challenge}:`, hash = hasher(start);
  for (let number = from; ; number++) {
    if (hash(String(number)) < below) return start + number;
    if ((number - from) % TELL_EVERY === TELL_EVERY - 1) tell(TELL_EVERY);
  }
}
