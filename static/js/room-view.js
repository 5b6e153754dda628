// What the buy panel shows of a waiting room: lays words over what buy-view.js shows of the sale.
// No DOM, no network.

import { number } from './format.js';

/** When the room can be joined, ms on the server's clock. */
export const joinsFrom = (sale) => Date.parse(sale.opens_at) - sale.waiting_room.opens_before_secs * 1000;

const OURS = ['queued', 'pending_payment', 'paid', 'already', 'buying', 'paying', 'cancelling', 'unavailable', 'too_fast'];

/**
 * `shown` as view() gives it, `state` the machine's, `place` PLACE or null, `joining` whether an
 * answer is awaited, `notice` what was said about the last attempt to join, `used` whether this
 * turn has made its order.
 */
export function roomView(shown, { state, sale, place, joining, notice, used, now }) {
  // An order of ours, or an attempt at one, is more than a place; but another unit needs a turn.
  const another = state.name === 'paid' && shown.button.action === 'buy';
  if (OURS.includes(state.name) && !another || ['ended', 'paused'].includes(state.market)) return shown;
  const with_ = (button, say, more = {}) => ({ ...shown, button: { action: null, busy: false, ...button }, say, ...more });
  // Unlike a purchase, joining is not repeated by itself.
  const told = ['network', 'unavailable'].includes(notice) ? 'room_unreached' : notice;
  const said = (key, params) => (told ? [`notice.${told}`, {}, 'notice.other'] : [key, params]);

  if (joining) return with_({ label: ['room.joining'], busy: true }, ['say.room_joining'], { tone: 'busy' });
  if (!place || place.state === 'missed') {
    if (state.market === 'sold_out') return shown;
    if (now < joinsFrom(sale)) {
      return with_({ label: ['room.later'] }, said('say.room_later'), { tone: 'wait', clock: { label: 'clock.room_opens', target: joinsFrom(sale) } });
    }
    const missed = place?.state === 'missed';
    return with_({ label: [missed ? 'room.rejoin' : 'room.join'], action: 'join' }, said(missed ? 'say.room_missed' : 'say.room_join'), { tone: missed ? 'bad' : 'go' });
  }
  switch (place.state) {
    case 'early': return with_({ label: ['room.early', { n: number(place.joined) }] }, ['say.room_early'], { tone: 'wait' });
    case 'turn': {
      if (state.market !== 'ready') return shown;
      const clock = { label: 'clock.turn', target: Date.parse(place.turn_ends_at) };
      // The server answers a used turn with the order that it has made.
      if (used) return { ...shown, clock, button: { ...shown.button, action: null } };
      return with_({ label: ['buy.ready'], action: 'buy' }, said('say.room_turn'), { tone: 'go', clock });
    }
    default: {
      const button = { label: ['room.waiting', { n: number(place.position) }] };
      if (state.market === 'sold_out') return with_(button, ['say.room_sold_out'], { tone: 'over' });
      if (place.more_ahead_than_left) return with_(button, ['say.room_beyond'], { tone: 'hold' });
      const clock = place.estimate_secs === null
        ? { label: 'clock.room_unknown', target: null }
        : { label: 'clock.room', target: Date.parse(place.server_time) + place.estimate_secs * 1000 };
      return with_(button, ['say.room_waiting'], { tone: 'wait', clock });
    }
  }
}
