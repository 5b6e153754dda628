// A flash sale in Node, naive. `node naive.mjs` listens on 127.0.0.1:9000, or on PORT.
import { createServer } from 'node:http';
import { existsSync, readFileSync, truncateSync, writeFileSync } from 'node:fs';
import { appendFile } from 'node:fs/promises';
import { randomUUID } from 'node:crypto';

const port = Number(process.env.PORT ?? 9000);
const file = `orders-${port}.jsonl`; // the stock, then a line for each order

let left = 0;
const buyers = new Set();
const byKey = new Map(); // Idempotency-Key → the order, and when it is on disk

const sold = (order) => [201, { order_id: order.order_id }];
const refused = (code) => [409, { code }];
const end = () => process.exit(1); // nobody knows what a disk that fails has written

async function buy(user, key = randomUUID()) {
  if (byKey.has(key)) {
    const { order, stored } = byKey.get(key);
    await stored;
    return sold(order);
  }
  if (buyers.has(user)) return refused('already_ordered');
  const seen = left;
  if (seen < 1) return refused('sold_out');

  const order = { order_id: randomUUID(), user, key };
  const stored = appendFile(file, `${JSON.stringify(order)}\n`).catch(end);
  await stored; // FLAW: while this one waits for the disk, others see the same stock
  count(order, seen, stored);
  return sold(order);
}

function count(order, seen, stored) {
  left = seen - 1;
  buyers.add(order.user);
  byKey.set(order.key, { order, stored });
}

/** Reads the file: after a reset, and after a crash. */
function load() {
  buyers.clear();
  byKey.clear();
  left = lines()[0];
  for (const order of lines().slice(1)) count(order, left);
}

/** The whole lines of the file; half a line at its end was never acknowledged. */
function lines() {
  return readFileSync(file, 'utf8').split('\n').slice(0, -1).map((line) => JSON.parse(line));
}

async function answer(request) {
  let body = '';
  for await (const chunk of request) body += chunk;
  switch (`${request.method} ${request.url}`) {
    case 'POST /reset':
      writeFileSync(file, `${JSON.parse(body).stock}\n`);
      return [204, load()];
    case 'POST /orders': return buy(JSON.parse(body).user, request.headers['idempotency-key']);
    case 'GET /orders': return [200, { orders: lines().slice(1) }];
    case 'GET /stock': return [200, { remaining: left }];
    default: return [404, { code: 'not_found' }];
  }
}

if (!existsSync(file)) writeFileSync(file, '0\n');
truncateSync(file, readFileSync(file).lastIndexOf('\n') + 1); // of half a line, nothing stays
load();
createServer(async (request, response) => {
  const [status, said] = await answer(request).catch(() => [400, { code: 'bad_request' }]);
  response.writeHead(status, { 'content-type': 'application/json' });
  response.end(JSON.stringify(said));
}).listen(port, '127.0.0.1', () => console.log(`listening on http://127.0.0.1:${port}`));
