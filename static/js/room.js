// One's place in the waiting room of a sale: found when the page opens, taken when asked for,
// followed by events, and asked for while the event stream is away. One place for a user, however
// many tabs.

import { backoff, poll } from './api.js';
import { session, shop } from './session.js';
import { follow } from './sse.js';

const mark = (path) => `flash-sale.joined ${path}`;

/** Whether somebody in this browser has joined: who has not need not ask, and hear 404. */
function joined(path) {
  try { return localStorage.getItem(mark(path)) !== null; } catch { return true; }
}

function remember(path, is) {
  try { if (is) localStorage.setItem(mark(path), '1'); else localStorage.removeItem(mark(path)); } catch { /* private mode: ask each time */ }
}

/** `onPlace(PLACE or null)` on every change; `onProblem(problem)` when joining does not work. */
export function room(sale, { onPlace, onProblem }) {
  const path = `${sale}/waiting-room`;
  let stream, asking, pause = 5000, left = false;

  function tell(place) {
    if (left) return;
    pause = place?.poll_after_ms ?? 5000;
    onPlace(place);
    if (!place || place.state === 'missed' || place.sale_state === 'ended') rest();
  }

  function rest() {
    stream?.close();
    asking?.stop();
    stream = asking = undefined;
  }

  function ask() {
    asking ??= poll(async () => {
      try { tell(await shop('GET', path)); } catch (problem) {
        if (problem.status !== 404) throw problem;
        tell(null);
      }
    }, () => pause);
  }

  function watch() {
    if (stream || left) return;
    stream = follow(`${path}/events`, {
      onEvent: (name, place) => { if (name === 'place') tell(place); },
      onStatus: (status) => { if (status === 'live') { asking?.stop(); asking = undefined; } else if (stream) ask(); },
      onRefused: (problem) => { if (problem.status === 404) tell(null); else ask(); },
    });
  }

  async function find() {
    if (left) return;
    try {
      tell(await shop('GET', path));
      watch();
    } catch (problem) {
      if (problem.status !== 404) setTimeout(find, problem.retryAfterMs || backoff(2));
      else remember(path, false);
    }
  }
  const begin = () => { if (joined(path)) session().then(find, () => setTimeout(find, backoff(2))); };
  addEventListener('storage', ({ key }) => { if (key === mark(path) && !stream) begin(); }); // joined in another tab
  begin();

  return {
    /** The sale goes on after all. */
    again() { if (!stream && !asking && !left) find(); },
    /** `credentials` are headers that the sale asks for. */
    async join(credentials) {
      try {
        rest();
        tell(await shop('POST', path, { credentials }));
        remember(path, true);
        watch();
      } catch (problem) { onProblem(problem); }
    },
    leave() { left = true; rest(); },
  };
}
