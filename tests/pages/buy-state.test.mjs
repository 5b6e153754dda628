// The buy machine, event by event. Run: node --test tests/pages/

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { ARMING_MS, canBuy, initial, nextTick, orderFacts, saleFacts, step } from '../../static/js/buy-state.js';
import { view } from '../../static/js/buy-view.js';
import words from '../../static/js/strings/en.js';

const OPENS = 1_000_000;
const CLOSES = OPENS + 3_600_000;
const sale = (change = {}) => ({ state: 'open', remaining: 5, limit: 1, opensAt: OPENS, closesAt: CLOSES, ...change });

/**
 * A machine with a clock of its own, which collects effects and checks that every state can be
 * shown in words.
 */
class Page {
  constructor(facts = sale(), now = OPENS + 1000) {
    this.now = now;
    this.effects = [];
    this.state = initial(facts, now);
  }
  on(type, event = {}, later = 0) {
    this.now += later;
    const out = step(this.state, { type, now: this.now, random: 0.5, ...event });
    this.state = out.state;
    this.effects.push(...out.effects);
    const shown = view(this.state, this.now);
    for (const [key, , otherwise] of [shown.button.label, shown.say, shown.second.label, [shown.clock.label]]) {
      assert.ok(key in words || otherwise in words, `no words for ${key}`);
    }
    return this;
  }
  get name() { return this.state.name; }
  get button() { return view(this.state, this.now).button; }
  sent() { return this.effects.filter((effect) => effect.type === 'send'); }
  last() { return this.effects.at(-1); }
}

const order = (status, change = {}) => ({ order: { id: '7', status, payBy: null, ...change } });
const buying = (facts, now) => new Page(facts, now).on('buy', { key: 'k1' });
const pending = () => buying().on('accepted', order('queued')).on('order', order('pending_payment', { payBy: OPENS + 60_000 }));

describe('the sale alone', () => {
  for (const [name, facts, now] of [
    ['not_open', sale({ state: 'scheduled' }), OPENS - 1],
    ['ready', sale({ state: 'scheduled' }), OPENS], // the clock opens it, not the news
    ['ready', sale(), OPENS + 1],
    ['sold_out', sale({ remaining: 0 }), OPENS + 1],
    ['sold_out', sale({ state: 'sold_out' }), OPENS + 1],
    ['paused', sale({ state: 'paused' }), OPENS + 1],
    ['paused', sale({ state: 'paused' }), OPENS - 1],
    ['ended', sale({ state: 'ended' }), OPENS + 1],
    ['ended', sale(), CLOSES],
  ]) {
    it(`${facts.state}, ${facts.remaining} left, ${now - OPENS} ms after opening: ${name}`, () => {
      const page = new Page(facts, now).on('tick');
      assert.equal(page.name, name);
      assert.equal(canBuy(page.state, page.now), name === 'ready');
      assert.equal(page.on('buy', { key: 'k' }).sent().length, name === 'ready' ? 1 : 0);
    });
  }

  it('follows news of the sale and back again', () => {
    const page = new Page();
    const names = [{ remaining: 0 }, { remaining: 1 }, { state: 'paused' }, { state: 'open' }, { state: 'ended' }]
      .map((facts) => page.on('sale', { facts }).name);
    assert.deepEqual(names, ['sold_out', 'ready', 'paused', 'ready', 'ended']);
  });

  it('counts the last three seconds on the button', () => {
    const page = new Page(sale(), OPENS - 3500);
    assert.deepEqual(page.on('tick').button.label, ['buy.not_open']);
    assert.deepEqual(page.on('tick', {}, 500).button.label, ['buy.count', { n: 3 }]);
    assert.deepEqual(page.on('tick', {}, 1000).button.label, ['buy.count', { n: 2 }]);
    assert.deepEqual(page.on('tick', {}, 1999).button.label, ['buy.count', { n: 1 }]);
    assert.deepEqual(page.on('tick', {}, 1).button, { label: ['buy.ready'], action: 'buy', busy: false });
  });

  it('a click at the opening second counts even before the tick', () => {
    const page = new Page(sale(), OPENS - 5);
    page.on('buy', { key: 'k' }, 5);
    assert.equal(page.name, 'buying');
  });

  it('ticks when the shown second changes', () => {
    assert.equal(nextTick(new Page(sale(), OPENS - 2250).state, OPENS - 2250), 250);
    assert.equal(nextTick(new Page(sale(), OPENS - 2000).state, OPENS - 2000), 1000);
  });
});

describe('one intent', () => {
  it('is sent once however often it is clicked', () => {
    const page = buying().on('buy', { key: 'k2' }).on('buy', { key: 'k3' });
    assert.deepEqual(page.sent(), [{ type: 'send', key: 'k1', delayMs: 0 }]);
    page.on('accepted', order('queued')).on('buy', { key: 'k4' });
    assert.equal(page.name, 'queued');
    assert.equal(page.sent().length, 1);
  });

  it('repeats a lost request silently with the same key, then leaves it to the buyer', () => {
    const page = buying().on('failed').on('failed');
    assert.equal(page.name, 'buying');
    page.on('failed');
    assert.equal(page.name, 'unavailable');
    assert.equal(page.button.action, null);
    page.on('tick', {}, 1000);
    assert.deepEqual(page.button, { label: ['buy.retry'], action: 'buy', busy: false });
    page.on('buy', { key: 'k2' });
    assert.deepEqual(page.sent().map((effect) => effect.key), ['k1', 'k1', 'k1', 'k1']);
    assert.ok(page.sent()[1].delayMs > 0);
  });

  it('keeps its key through 503, even when the sale looks sold out: it may have been ours', () => {
    const page = buying().on('refused', { code: 'unavailable', retryAfterMs: 3000 }).on('sale', { facts: { remaining: 0 } });
    assert.equal(page.name, 'unavailable');
    page.on('buy', { key: 'k2' }, 1000);
    assert.equal(page.sent().length, 1, 'not before Retry-After');
    page.on('buy', { key: 'k2' }, 3000).on('accepted', order('queued'));
    assert.deepEqual(page.sent().map((effect) => effect.key), ['k1', 'k1']);
    assert.equal(page.name, 'queued');
  });

  it('asks again by itself with the same key, ever more seldom, and at once when the server is back', () => {
    const page = buying().on('failed').on('failed').on('failed');
    const pauses = [];
    for (let round = 0; round < 6; round++) {
      const { again } = page.state.hold;
      pauses.push(again - page.now);
      assert.equal(page.on('tick', {}, again - page.now - 1).name, 'unavailable', 'not before');
      assert.equal(page.on('tick', {}, 1).name, 'buying');
      assert.ok(nextTick(page.state, page.now) > 0);
      page.on('failed');
    }
    assert.deepEqual(pauses.map((pause) => pause - 1000), [7500, 15_000, 30_000, 60_000, 90_000, 90_000]);
    page.on('back', {}, 1000);
    assert.equal(page.name, 'buying');
    assert.deepEqual(new Set(page.sent().map(({ key }) => key)), new Set(['k1']));
    assert.equal(page.on('accepted', order('queued')).name, 'queued');
  });

  it('waits for Retry-After although the server is back', () => {
    const page = buying().on('refused', { code: 'unavailable', retryAfterMs: 3000 }).on('back', {}, 100);
    assert.equal(page.name, 'unavailable');
    assert.equal(page.on('tick', {}, 3150).name, 'buying');
  });

  it('asks nothing by itself where nothing is open', () => {
    const page = new Page().on('back').on('tick', {}, 100_000);
    assert.equal(page.sent().length, 0);
    const refused = buying().on('refused', { code: 'sold_out' }).on('back').on('tick', {}, 100_000);
    assert.equal(refused.sent().length, 1);
  });

  it('does not repeat by itself what will be refused again', () => {
    for (const code of ['unauthenticated', 'cross_origin', 'invalid', 'too_large']) {
      const page = buying().on('refused', { code }).on('tick', {}, 600_000);
      assert.equal(page.sent().length, 1, code);
      assert.equal(page.on('buy', { key: 'k2' }).sent().length, 2, code);
    }
  });

  it('an order found elsewhere settles an intent whose outcome was unknown', () => {
    const page = buying().on('refused', { code: 'unavailable' }).on('found', { orders: [order('pending_payment').order] });
    assert.equal(page.name, 'pending_payment');
    assert.equal(page.state.intent, null);
  });

  it('waits out 429, then may buy again', () => {
    const page = buying().on('refused', { code: 'rate_limited', retryAfterMs: 2000 });
    assert.equal(page.name, 'too_fast');
    assert.deepEqual(page.button.label, ['buy.in', { n: 2 }]);
    assert.equal(page.on('buy', { key: 'k2' }, 1999).sent().length, 1);
    assert.equal(page.on('tick', {}, 1).name, 'ready');
    assert.equal(page.on('buy', { key: 'k2' }).sent().length, 2);
  });

  it('429 on a retry leaves open whether it had worked: the page asks again with the same key', () => {
    const page = buying().on('failed').on('refused', { code: 'rate_limited', retryAfterMs: 2000 });
    assert.equal(page.name, 'unavailable');
    page.on('sale', { facts: { remaining: 0 } });
    assert.equal(page.on('buy', { key: 'k2' }, 2000).last().key, 'k1');
  });

  it('also when the retry was a click', () => {
    const page = buying().on('refused', { code: 'unavailable' }).on('buy', { key: 'k2' }, 9000);
    page.on('refused', { code: 'rate_limited' }).on('sale', { facts: { remaining: 0 } });
    assert.deepEqual([page.name, page.state.intent.key], ['unavailable', 'k1']);
  });

  it('429 does not outlive the sale', () => {
    const page = buying().on('refused', { code: 'rate_limited', retryAfterMs: 9000 }).on('sale', { facts: { remaining: 0 } });
    assert.equal(page.name, 'sold_out');
    assert.equal(page.state.intent, null);
  });

  it('a little early: keeps trying by itself until the server opens', () => {
    const page = buying(sale({ state: 'scheduled' }), OPENS).on('refused', { code: 'not_open', opensAt: OPENS + 200, retryAfterMs: 1000 });
    assert.equal(page.name, 'buying');
    assert.equal(page.last().key, 'k1');
    assert.equal(page.last().delayMs, 300);
    for (let n = 0; n < 8; n++) page.on('refused', { code: 'not_open', opensAt: OPENS + 200 }, 300);
    assert.notEqual(page.name, 'buying', 'but not for ever');
  });

  it('much too early: back to the countdown', () => {
    const page = buying().on('refused', { code: 'not_open', opensAt: OPENS + 60_000 });
    assert.equal(page.name, 'not_open');
    assert.equal(page.last().type, 'refresh_sale');
  });

  for (const [code, name] of [['sold_out', 'sold_out'], ['paused', 'paused'], ['ended', 'ended'], ['sale_not_found', 'ended']]) {
    it(`${code} is a definite answer: the next click is a new intent`, () => {
      const page = buying().on('refused', { code });
      assert.equal(page.name, name);
      assert.equal(page.state.intent, null);
      assert.match(view(page.state, page.now).say[0], /^notice\./, 'says what happened to this click');
      if (name === 'ended') return;
      page.on('sale', { facts: { state: 'open', remaining: 1 } });
      assert.equal(page.name, 'ready');
      assert.deepEqual(view(page.state, page.now).say, ['say.ready'], 'and drops it when it is no longer true');
      assert.equal(page.on('buy', { key: 'k2' }).last().key, 'k2');
    });
  }

  it('already_ordered leads to the order it names', () => {
    const page = buying().on('refused', { code: 'already_ordered', orderId: '7' });
    assert.equal(page.name, 'already');
    assert.deepEqual(page.last(), { type: 'follow', id: '7' });
    page.on('order', order('pending_payment', { payBy: OPENS + 60_000 }));
    assert.equal(page.name, 'pending_payment');
    assert.deepEqual(view(page.state, page.now).say, ['say.pending_already']);
  });

  it('late answers of a request that is over change nothing', () => {
    const page = new Page().on('accepted', order('queued')).on('failed').on('refused', { code: 'sold_out' });
    assert.equal(page.name, 'ready');
  });
});

describe('an order', () => {
  it('goes queued, pending_payment, paying, paid', () => {
    const page = buying().on('accepted', order('queued'));
    assert.deepEqual([page.name, page.last()], ['queued', { type: 'follow', id: '7' }]);
    page.on('order', order('pending_payment', { payBy: OPENS + 60_000 }));
    assert.equal(page.name, 'pending_payment');
    assert.equal(page.button.action, null, 'a double click on buy must not pay');
    assert.equal(page.on('pay').name, 'pending_payment');
    page.on('tick', {}, ARMING_MS);
    assert.equal(page.button.action, 'pay');
    assert.deepEqual(page.on('pay').last(), { type: 'pay', id: '7' });
    assert.equal(page.name, 'paying');
    assert.equal(page.on('pay').on('cancel').effects.length, 3, 'one action at a time');
    assert.equal(page.on('acted', order('paid')).name, 'paid');
    assert.equal(page.button.action, null);
  });

  it('news that arrives late does not turn it back', () => {
    const page = pending().on('order', order('queued'));
    assert.equal(page.name, 'pending_payment');
    page.on('order', order('paid')).on('order', order('pending_payment'));
    assert.equal(page.name, 'paid');
    assert.equal(page.on('order', order('cancelled', { id: 'another' })).name, 'paid');
  });

  for (const status of ['expired', 'cancelled', 'rejected']) {
    it(`${status}: may buy again with a new key`, () => {
      const page = pending().on('order', order(status));
      assert.equal(page.name, status);
      assert.deepEqual(page.button.label, ['buy.again']);
      assert.equal(page.on('buy', { key: 'k2' }).last().key, 'k2');
      assert.equal(page.on('accepted', order('queued', { id: '8' })).state.order.id, '8');
    });

    it(`${status} and nothing left: says both`, () => {
      const page = pending().on('order', order(status)).on('sale', { facts: { remaining: 0 } });
      assert.deepEqual(page.button, { label: ['buy.sold_out'], action: null, busy: false });
      assert.deepEqual(view(page.state, page.now).say, [`say.${status}`]);
      assert.equal(page.on('sale', { facts: { remaining: 1 } }).button.action, 'buy');
    });
  }

  it('past pay_by cannot be paid, and asks what became of it now and then', () => {
    const page = pending();
    page.on('tick', {}, 60_000);
    assert.deepEqual([page.button.label, page.button.action], [['buy.checking'], null]);
    assert.deepEqual(page.last(), { type: 'refresh_order', id: '7' });
    const before = page.effects.length;
    assert.equal(page.on('pay').on('tick', {}, 1000).effects.length, before);
    assert.equal(page.on('tick', {}, 2500).effects.length, before + 1);
  });

  it('can be cancelled', () => {
    const page = pending().on('cancel');
    assert.deepEqual([page.name, page.last()], ['cancelling', { type: 'cancel', id: '7' }]);
    assert.equal(page.on('acted', order('cancelled')).name, 'cancelled');
  });

  it('a payment that fails says why and looks again', () => {
    const page = pending();
    page.on('pay', {}, ARMING_MS).on('action_failed', { code: 'not_payable' });
    assert.deepEqual([page.name, page.last()], ['pending_payment', { type: 'refresh_order', id: '7' }]);
    assert.equal(view(page.state, page.now).say[0], 'notice.not_payable');
    assert.equal(page.on('order', order('expired')).name, 'expired');
  });

  it('a payment of which nobody knows says that nobody pays twice, and then what came of it', () => {
    const page = pending().on('pay', {}, ARMING_MS).on('action_failed', { code: 'network', known: false });
    assert.deepEqual([view(page.state, page.now).say[0], page.last()], ['notice.pay_unknown', { type: 'refresh_order', id: '7' }]);
    page.on('order', order('pending_payment', { payBy: OPENS + 60_000 }));
    assert.equal(view(page.state, page.now).say[0], 'notice.pay_open');
    assert.equal(page.on('order', order('paid')).state.notice, null);
  });

  it('a payment under way says so, and can be paid again; a declined one is offered again while there is time', () => {
    const at = { payBy: OPENS + 60_000 };
    const page = pending().on('tick', {}, ARMING_MS).on('order', order('pending_payment', { ...at, payment: 'pending' }));
    assert.deepEqual([view(page.state, page.now).say, page.button.label, page.button.action], [['say.pending_payment_pending'], ['buy.pay'], 'pay']);
    page.on('order', order('pending_payment', { ...at, payment: 'declined' }));
    assert.deepEqual([view(page.state, page.now).say, page.button.label, page.button.action], [['say.pending_payment_declined'], ['buy.retry'], 'pay']);
    page.on('pay').on('order', order('pending_payment', { ...at, payment: 'pending' }));
    assert.equal(page.name, 'paying', 'that the payment has begun is no answer');
    assert.equal(page.on('order', order('paid', { payment: 'captured' })).name, 'paid');
    assert.deepEqual(view(page.state, page.now).say, ['say.paid']);
    page.on('tick', {}, 60_000).on('order', order('paid', { payment: 'refunding' }));
    assert.deepEqual(view(page.state, page.now).say, ['say.paid_refunding']);
  });

  it('a lost answer that leaves the payment open is not called unpaid', () => {
    const page = pending().on('pay', {}, ARMING_MS).on('action_failed', { code: 'payment_pending', known: false });
    page.on('order', order('pending_payment', { payBy: OPENS + 60_000, payment: 'pending' }));
    assert.deepEqual(view(page.state, page.now).say, ['say.pending_payment_pending']);
    page.on('pay').on('action_failed', { code: 'payment_pending', known: false }).on('order', order('pending_payment', { payBy: OPENS + 60_000, payment: 'pending' }));
    assert.deepEqual(view(page.state, page.now).say, ['say.pending_payment_pending'], 'the second time, too');
  });

  it('a payment page that cannot be reached is no payment, and stays said although the attempt has begun', () => {
    const page = pending().on('pay', {}, ARMING_MS).on('action_failed', { code: 'page_away' });
    page.on('order', order('pending_payment', { payBy: OPENS + 60_000, payment: 'pending' }));
    assert.equal(page.on('tick', {}, ARMING_MS).button.action, 'pay');
    assert.equal(view(page.state, page.now).say[0], 'notice.page_away');
  });

  it('the back button leads from the payment page to a button that pays', () => {
    const page = pending().on('pay', {}, ARMING_MS).on('returned');
    assert.deepEqual([page.name, page.last()], ['pending_payment', { type: 'refresh_order', id: '7' }]);
    assert.equal(page.on('tick', {}, ARMING_MS).button.action, 'pay');
    assert.equal(new Page().on('returned').effects.length, 0);
  });

  it('money that came too late is on its way back, then returned, while the sale goes on', () => {
    const page = pending().on('order', order('expired', { payment: 'pending' }));
    for (const payment of ['pending', 'refunding', 'refunded']) {
      page.on('order', order('expired', { payment }));
      assert.deepEqual([view(page.state, page.now).say, page.button.action], [[`say.expired_${payment}`], 'buy']);
    }
    page.on('buy', { key: 'k2' }).on('refused', { code: 'sold_out' });
    assert.equal(view(page.state, page.now).say[0], 'notice.sold_out');
  });

  it('expiry that is learnt while paying wins', () => {
    const page = pending().on('pay', {}, ARMING_MS).on('order', order('expired'));
    assert.equal(page.name, 'expired');
  });

  it('a closed sale does not hide an order that can still be paid', () => {
    const page = pending().on('sale', { facts: { state: 'ended' } });
    assert.equal(page.name, 'pending_payment');
  });
});

describe('found when the page opens', () => {
  it('shows the live order and follows it', () => {
    const page = new Page().on('found', { orders: [order('queued').order] });
    assert.deepEqual([page.name, page.state.already, page.last()], ['queued', true, { type: 'follow', id: '7' }]);
  });
  it('a paid one needs no following', () => {
    const page = new Page().on('found', { orders: [order('paid').order] });
    assert.equal(page.name, 'paid');
    assert.equal(page.effects.length, 0);
  });
  it('a paid one whose money goes back is followed until it is there', () => {
    const page = new Page().on('found', { orders: [order('paid', { payment: 'refunding' }).order] });
    assert.deepEqual([page.last(), view(page.state, page.now).say], [{ type: 'follow', id: '7' }, ['say.paid_refunding']]);
  });
  it('does not disturb a purchase under way', () => {
    assert.equal(buying().on('found', { orders: [order('paid').order] }).name, 'buying');
  });
  it('nothing found changes nothing', () => {
    assert.equal(new Page().on('found', { orders: [] }).name, 'ready');
  });
});

describe('more than one per person', () => {
  it('may buy another once the first is paid, up to the limit', () => {
    const page = new Page(sale({ limit: 2 })).on('found', { orders: [order('paid').order] });
    assert.deepEqual(page.button.label, ['buy.another']);
    page.on('buy', { key: 'k2' }).on('accepted', order('queued', { id: '8' })).on('order', order('paid', { id: '8' }));
    assert.equal(page.button.action, null);
  });
  it('keeps showing what is owned when another is refused', () => {
    const page = new Page(sale({ limit: 2 })).on('found', { orders: [order('paid').order] });
    page.on('buy', { key: 'k2' }).on('refused', { code: 'sold_out' });
    assert.equal(page.name, 'paid');
    assert.equal(view(page.state, page.now).say[0], 'notice.sold_out');
  });
});

it('facts are read from the API\'s objects', () => {
  const iso = new Date(OPENS).toISOString();
  assert.deepEqual(saleFacts({ state: 'open', remaining: 5, per_user_limit: 2, opens_at: iso, closes_at: iso }),
    { state: 'open', remaining: 5, limit: 2, opensAt: OPENS, closesAt: OPENS });
  assert.deepEqual(orderFacts({ order_id: '7', status: 'queued', pay_by: null }), { id: '7', status: 'queued', payBy: null });
  assert.equal(orderFacts({ order_id: '7', status: 'paid', pay_by: null, payment: 'captured' }).payment, 'captured');
});
