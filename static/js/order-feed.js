// The life of one order, as it happens: by events, and by asking while the event stream is away.

import { poll } from './api.js';
import { shop, session } from './session.js';
import { follow } from './sse.js';

export const TERMINAL = ['paid', 'cancelled', 'expired', 'rejected'];

/** Calls `onOrder(ORDER)` at once and on every change, until the order is terminal or close(). */
export function followOrder(orderId, onOrder) {
  const path = `/api/v1/orders/${encodeURIComponent(orderId)}`;
  let stream, asking, closed = false;
  const close = () => { closed = true; stream?.close(); asking?.stop(); };
  const tell = (order) => {
    if (closed) return;
    if (TERMINAL.includes(order.status)) close();
    onOrder(order);
  };
  const ask = () => { asking ??= poll(async () => tell(await shop('GET', path)), () => 2000); };
  session().then(() => {
    if (closed) return;
    stream = follow(`${path}/events`, {
      onEvent: (name, order) => { if (name === 'order') tell(order); },
      onStatus: (status) => { if (status === 'live') { asking?.stop(); asking = undefined; } else if (!closed) ask(); },
      onRefused: () => { if (!closed) ask(); },
    });
  }, ask);
  return { close };
}
