// The life of one order, as it happens: by events, and by asking while the event stream is away.

import { poll } from './api.js';
import { settled, TERMINAL } from './order-view.js';
import { shop, session } from './session.js';
import { follow } from './sse.js';

const ASK_MS = 2000;
const ASK_OF_MONEY_MS = 5000; // its stream has ended with the order

/** Calls `onOrder(ORDER)` at once and on every change, until it is settled or close(). */
export function followOrder(orderId, onOrder) {
  const path = `/api/v1/orders/${encodeURIComponent(orderId)}`;
  let stream, asking, over = false, closed = false;
  const close = () => { closed = true; stream?.close(); asking?.stop(); };
  const tell = (order) => {
    if (closed) return;
    if (settled(order)) close();
    else if (!over && TERMINAL.includes(order.status)) {
      over = true;
      stream?.close();
      ask();
    }
    onOrder(order);
  };
  const ask = () => { asking ??= poll(async () => tell(await shop('GET', path)), () => (over ? ASK_OF_MONEY_MS : ASK_MS)); };
  session().then(() => {
    if (closed) return;
    stream = follow(`${path}/events`, {
      onEvent: (name, order) => { if (name === 'order') tell(order); },
      onStatus: (status) => { if (status === 'live') { asking?.stop(); asking = undefined; } else if (!closed) ask(); },
      onRefused: () => { if (!closed) ask(); },
    });
  }, () => { if (!closed) ask(); });
  return { close };
}
