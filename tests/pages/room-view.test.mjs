// What the buy panel says of a waiting room, in every place that one can have.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { initial, saleFacts, step } from '../../static/js/buy-state.js';
import { view } from '../../static/js/buy-view.js';
import { joinsFrom, roomView } from '../../static/js/room-view.js';

const NOW = Date.parse('2026-11-20T10:00:00Z');
const at = (seconds) => new Date(NOW + seconds * 1000).toISOString();
const sale = (more = {}) => ({
  state: 'open', remaining: 10, per_user_limit: 1, opens_at: at(-60), closes_at: at(3600),
  waiting_room: { opens_before_secs: 600 }, ...more,
});
const place = (more = {}) => ({
  state: 'waiting', position: 7, joined: 1234, estimate_secs: null, more_ahead_than_left: false,
  server_time: at(0), turn_ends_at: null, ...more,
});
const shown = (facts, where, more = {}) => {
  const state = more.state ?? initial(saleFacts(facts), NOW);
  return roomView(view(state, NOW), { state, sale: facts, place: where, joining: false, notice: null, now: NOW, ...more });
};

describe('a waiting room', () => {
  it('can be joined from its opening on', () => {
    const early = sale({ state: 'scheduled', opens_at: at(700) });
    assert.equal(joinsFrom(early), NOW + 100_000);
    assert.equal(shown(early, null).button.action, null);
    assert.deepEqual(shown(early, null).clock, { label: 'clock.room_opens', target: NOW + 100_000 });
    assert.equal(shown(sale({ state: 'scheduled', opens_at: at(500) }), null).button.action, 'join');
    assert.equal(shown(sale(), null).button.action, 'join');
  });

  it('keeps everybody from buying but those whose turn it is', () => {
    for (const where of [null, place(), place({ state: 'early', position: null }), place({ state: 'missed' })]) {
      assert.notEqual(shown(sale(), where).button.action, 'buy');
    }
    const turn = shown(sale(), place({ state: 'turn', turn_ends_at: at(90) }));
    assert.equal(turn.button.action, 'buy');
    assert.deepEqual(turn.clock, { label: 'clock.turn', target: NOW + 90_000 });
  });

  it('offers nothing during a turn that the sale does not sell', () => {
    for (const state of ['sold_out', 'paused', 'ended']) {
      const facts = sale({ state, remaining: state === 'sold_out' ? 0 : 10 });
      const turn = shown(facts, place({ state: 'turn', turn_ends_at: at(90) }));
      assert.deepEqual([turn.button.label, turn.button.action], [[`buy.${state}`], null]);
    }
  });

  it('asks for another turn for another unit', () => {
    const facts = sale({ per_user_limit: 2 });
    const { state } = step(initial(saleFacts(facts), NOW), { type: 'found', now: NOW, orders: [{ id: '5', status: 'paid', payBy: null }] });
    assert.equal(shown(facts, null, { state }).button.action, 'join');
    assert.deepEqual(shown(facts, place({ state: 'missed' }), { state }).button.label, ['room.rejoin']);
    assert.deepEqual(shown(facts, place(), { state }).button.label, ['room.waiting', { n: '7' }]);
    const turn = place({ state: 'turn', turn_ends_at: at(90) });
    assert.equal(shown(facts, turn, { state }).button.action, 'buy');
    const used = shown(facts, turn, { state, used: true });
    assert.deepEqual([used.button.action, used.say[0], used.second.action], [null, 'say.paid_already', 'receipt']);
  });

  it('promises nothing that nobody knows', () => {
    assert.deepEqual(shown(sale(), place()).clock, { label: 'clock.room_unknown', target: null });
    assert.deepEqual(shown(sale(), place({ estimate_secs: 30 })).clock, { label: 'clock.room', target: NOW + 30_000 });
    assert.deepEqual(shown(sale(), place({ more_ahead_than_left: true })).say, ['say.room_beyond']);
    assert.deepEqual(shown(sale({ state: 'sold_out', remaining: 0 }), place()).say, ['say.room_sold_out']);
  });

  it('offers no place in a sale that is sold out, over or paused', () => {
    for (const state of ['sold_out', 'ended', 'paused']) {
      assert.notEqual(shown(sale({ state, remaining: state === 'sold_out' ? 0 : 10 }), null).button.action, 'join');
    }
  });

  it('says why joining did not work', () => {
    assert.equal(shown(sale(), null, { notice: 'rate_limited' }).say[0], 'notice.rate_limited');
    for (const notice of ['network', 'unavailable']) {
      assert.equal(shown(sale(), null, { notice }).say[0], 'notice.room_unreached', 'that the page asks again by itself would be false');
    }
    assert.equal(shown(sale(), null, { joining: true }).button.busy, true);
  });

  it('is out of the way of an order', () => {
    const facts = sale();
    const found = step(initial(saleFacts(facts), NOW), { type: 'found', now: NOW, orders: [{ id: '5', status: 'paid', payBy: null }] });
    assert.deepEqual(shown(facts, place(), { state: found.state }).button.label, ['buy.paid']);
  });

  it('takes the word of the server on a turn that is over', () => {
    const facts = sale();
    const buying = step(initial(saleFacts(facts), NOW), { type: 'buy', key: 'k', now: NOW }).state;
    const over = step(buying, { type: 'refused', code: 'admission_expired', now: NOW }).state;
    assert.deepEqual([over.name, over.notice, over.intent], ['ready', 'admission_expired', null]);
    const used = step(buying, { type: 'refused', code: 'admission_used', orderId: '5', now: NOW });
    assert.deepEqual(used.effects, [{ type: 'follow', id: '5' }]);
  });
});
