// The server's clock, kept in the browser.
//
// A countdown must not follow the visitor's wall clock, which may be wrong and jumps. Time here is
// performance.now() plus an offset learnt from answers with `server_time`. An answer bounds the
// offset to half its round trip; the tightest bound wins, and bounds widen with age. A correction
// is not a jump: the shown time runs faster or slower, so no second is skipped or shown twice.

const DRIFT = 0.0002; // how much a bound widens per millisecond of age: 200 ppm, generous for quartz
const COARSE_MS = 500; // error of a time stamp that has no fraction of a second
const SLEW = 0.1; // how much faster or slower the shown time may run: a correction of 300 ms takes 3 s
const STEP_MS = 1000; // beyond this it is no correction but another time: the first answer, or the computer slept

export class Clock {
  constructor(monotonic = () => performance.now(), wall = () => Date.now()) {
    this.monotonic = monotonic;
    this.offset = wall() - monotonic(); // read once: only a guess until the first answer
    this.error = Infinity;
    this.learntAt = monotonic();
    this.shown = this.offset; // follows `offset`
    this.shownAt = this.learntAt;
  }

  /** Milliseconds since 1970 on the server's clock. */
  now() {
    const now = this.monotonic();
    const gap = this.offset - this.shown;
    const most = (now - this.shownAt) * SLEW;
    this.shown += Math.abs(gap) > STEP_MS ? gap : Math.max(-most, Math.min(most, gap));
    this.shownAt = now;
    return now + this.shown;
  }

  /**
   * An answer with this time stamp was asked for at `sent` and began to arrive at `received` (both
   * monotonic).
   */
  observe(stamp, sent, received) {
    const server = Date.parse(stamp);
    if (Number.isNaN(server)) return;
    const coarse = /\.\d/.test(stamp) ? 0 : COARSE_MS;
    const offset = server + coarse - (sent + received) / 2;
    const error = (received - sent) / 2 + coarse;
    const aged = this.error + (received - this.learntAt) * DRIFT;
    const contradicts = Math.abs(offset - this.offset) > error + aged; // the computer slept, say
    if (this.error === Infinity) this.shown = offset; // until now it was a guess, which nothing need be smoothed from
    if (error <= aged || contradicts) Object.assign(this, { offset, error, learntAt: received });
  }

  /**
   * A pushed time stamp is late by an unknown amount, so it can only prove that our clock is slow.
   */
  atLeast(stamp) {
    const behind = Date.parse(stamp) - (this.monotonic() + this.offset);
    if (behind > 0) this.offset += behind;
  }
}

export const clock = new Clock();
