// The server's clock, kept in the browser.
//
// A countdown must not follow the visitor's wall clock: it may be wrong, and it jumps when the system corrects it.
// So time here is performance.now(), which only moves forward, plus an offset learnt from answers that carry
// `server_time`. An answer bounds the true offset to within half its round trip; the tightest bound wins, and bounds
// widen with age because two crystals drift apart.

const DRIFT = 0.0002; // how much a bound widens per millisecond of age: 200 ppm, generous for quartz
const COARSE_MS = 500; // error of a time stamp that has no fraction of a second

export class Clock {
  constructor(monotonic = () => performance.now(), wall = () => Date.now()) {
    this.monotonic = monotonic;
    this.offset = wall() - monotonic(); // read once: only a guess until the first answer
    this.error = Infinity;
    this.learntAt = monotonic();
    this.last = -Infinity;
  }

  /** Milliseconds since 1970 on the server's clock. Small corrections hold it still rather than turn it back. */
  now() {
    const now = this.monotonic() + this.offset;
    this.last = now < this.last && this.last - now < 1000 ? this.last : now;
    return this.last;
  }

  /** An answer with this time stamp was asked for at `sent` and began to arrive at `received` (both monotonic). */
  observe(stamp, sent, received) {
    const server = Date.parse(stamp);
    if (Number.isNaN(server)) return;
    const coarse = /\.\d/.test(stamp) ? 0 : COARSE_MS;
    const offset = server + coarse - (sent + received) / 2;
    const error = (received - sent) / 2 + coarse;
    const aged = this.error + (received - this.learntAt) * DRIFT;
    const contradicts = Math.abs(offset - this.offset) > error + aged; // the computer slept, say
    if (error <= aged || contradicts) Object.assign(this, { offset, error, learntAt: received });
  }

  /** A pushed time stamp is late by an unknown amount, so it can only prove that our clock is slow. */
  atLeast(stamp) {
    const behind = Date.parse(stamp) - (this.monotonic() + this.offset);
    if (behind > 0) this.offset += behind;
  }
}

export const clock = new Clock();
