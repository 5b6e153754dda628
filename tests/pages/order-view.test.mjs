// What a shopper is told of an order and its money. Run: node --test tests/pages/

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { isNews, moneyOf, settled, TERMINAL, wordsOf } from '../../static/js/order-view.js';
import en from '../../static/js/strings/en.js';
import zh from '../../static/js/strings/zh.js';

const STATUSES = ['queued', 'pending_payment', ...TERMINAL];
const PAYMENTS = [undefined, 'pending', 'declined', 'captured', 'refunding', 'refunded', 'of a later server'];
const every = STATUSES.flatMap((status) => PAYMENTS.map((payment) => ({ status, payment, pay_by: null })));

describe('an order and its money', () => {
  it('have words in both languages, whatever comes together', () => {
    for (const order of every) {
      for (const words of [en, zh]) {
        assert.ok(`status.${wordsOf(order)}` in words, JSON.stringify(order));
        assert.ok(`say.${wordsOf(order)}` in words, JSON.stringify(order));
      }
    }
    const told = every.filter(moneyOf);
    assert.equal(new Set(told.map((order) => en[`say.${wordsOf(order)}`])).size, told.length, 'each its own');
    assert.equal(told.length, 10);
  });

  it('are settled when nothing can come any more', () => {
    const unsettled = every.filter((order) => TERMINAL.includes(order.status) && !settled(order));
    assert.deepEqual(new Set(unsettled.map(({ payment }) => payment)), new Set(['pending', 'refunding']));
    assert.ok(!settled({ status: 'pending_payment', payment: 'declined' }));
    assert.ok(settled({ status: 'paid', payment: 'captured' }) && settled({ status: 'expired' }));
  });

  it('go forwards: late news counts for nothing, and a paid one can only be cancelled', () => {
    const order = (status, payment, pay_by = null) => ({ status, payment, pay_by });
    for (const [news, known, counts] of [
      [order('pending_payment'), order('queued'), true],
      [order('queued'), order('pending_payment'), false],
      [order('pending_payment', 'pending'), order('pending_payment'), true],
      [order('pending_payment', 'declined'), order('pending_payment', 'pending'), true],
      [order('pending_payment', 'pending'), order('pending_payment', 'pending'), false],
      [order('pending_payment', 'pending', 'later'), order('pending_payment', 'pending'), true],
      [order('paid', 'captured'), order('pending_payment', 'pending'), true],
      [order('pending_payment', 'pending'), order('paid', 'captured'), false],
      [order('paid', 'refunding'), order('paid', 'captured'), true],
      [order('cancelled', 'refunding'), order('paid', 'captured'), true],
      [order('paid', 'captured'), order('cancelled', 'refunding'), false],
      [order('expired', 'refunded'), order('expired', 'refunding'), true],
      [order('expired', 'pending'), order('cancelled', 'pending'), false],
    ]) assert.equal(isNews(news, known), counts, JSON.stringify([news, known]));
  });
});
