// The QR code, bit by bit as python-qrcode 8.2 makes it: error correction L, mask 0.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { it } from 'node:test';
import { qr } from '../../static/js/qr.js';

const digest = (text) => createHash('sha256').update(qr(text).map((row) => row.map(Number).join('')).join('|')).digest('hex').slice(0, 16);

it('is that of another generator, in every size', () => {
  const known = [
    ['http://a.b:80/', '5188af3a4af4840d'],
    ['http://10.0.0.5:8080/', '156b2a6475de02a5'],
    ['http://192.168.1.50:8080/sales/sale-7', 'ef896b2faa9786ca'],
    ['https://sale.example.com/sales/018f3c1a-aaaa-bbbb-cccc-1234567890ab', 'b74e390a5d069434'],
    ['Z'.repeat(106), '6273935868c8b247'],
  ];
  for (const [text, hash] of known) assert.equal(digest(text), hash, text);
});

it('what is too long has none', () => assert.equal(qr('x'.repeat(107)), null));
