// Several WebP pictures → one animated WebP, so that no other tool is needed: Chromium encodes the
// frames, and putting them together is a matter of a few chunks (WebP container specification:
// RIFF, VP8X, ANIM, ANMF).

const chunk = (name, data) => {
  const head = Buffer.alloc(8);
  head.write(name, 'latin1');
  head.writeUInt32LE(data.length, 4);
  return Buffer.concat([head, data, Buffer.alloc(data.length % 2)]);
};
const u24 = (value) => Buffer.from([value & 255, (value >> 8) & 255, (value >> 16) & 255]);

/**
 * The chunks of a still picture that are its image: lossy (VP8) or lossless (VP8L), perhaps with an
 * alpha channel.
 */
function image(webp) {
  const kept = [];
  for (let at = 12; at + 8 <= webp.length;) {
    const name = webp.toString('latin1', at, at + 4), size = webp.readUInt32LE(at + 4);
    if (['VP8 ', 'VP8L', 'ALPH'].includes(name)) kept.push(chunk(name, webp.subarray(at + 8, at + 8 + size)));
    at += 8 + size + (size % 2);
  }
  return Buffer.concat(kept);
}

/** `frames` are [{webp, ms}], all `width` by `height`; it runs for ever. */
export function animated(frames, width, height) {
  const canvas = Buffer.concat([Buffer.from([2, 0, 0, 0]), u24(width - 1), u24(height - 1)]); // 2: there is an animation
  const parts = frames.map(({ webp, ms }) => chunk('ANMF', Buffer.concat([u24(0), u24(0), u24(width - 1), u24(height - 1), u24(ms), Buffer.from([2]), image(webp)]))); // 2: no blending
  const body = Buffer.concat([Buffer.from('WEBP', 'latin1'), chunk('VP8X', canvas), chunk('ANIM', Buffer.from([255, 255, 255, 255, 0, 0])), ...parts]);
  return chunk('RIFF', body);
}
