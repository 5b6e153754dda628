// Records a race for /lab/why, which plays it where there is no server: static/js/lab/recorded.js.
//
//   node scripts/record_race.mjs http://127.0.0.1:8080

import { writeFile } from 'node:fs/promises';

const [base = 'http://127.0.0.1:8080'] = process.argv.slice(2);
const API = `${base}/api/v1/lab`;
const headers = { 'content-type': 'application/json' };
const post = async (path, body) => {
  const response = await fetch(API + path, { method: 'POST', headers, body: JSON.stringify(body) });
  if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`);
  return response.json();
};

async function run(strategy) {
  const { arena_id: id } = await post('/arenas', { strategy, stock: 10 });
  const events = await fetch(`${API}/arenas/${id}/events`);
  await post(`/arenas/${id}/storm`, { buyers: 300, concurrency: 64 });
  const sold = [];
  let text = '';
  for await (const chunk of events.body.pipeThrough(new TextDecoderStream())) {
    text += chunk;
    if (text.includes('event: verdict') && text.endsWith('\n\n')) break;
  }
  for (const [, name, data] of text.matchAll(/event: (\w+)\ndata: (.*)\n/g)) {
    const news = JSON.parse(data);
    if (news.of || name === 'verdict') sold.push(news.sold);
    if (name === 'verdict') return { sold, verdict: { sold: news.sold, oversold: news.oversold, collision: news.collision ?? null } };
  }
  throw new Error('no verdict');
}

const { strategies } = await (await fetch(`${API}/strategies`)).json();
const RUN = { day: new Date().toISOString().slice(0, 10) };
for (const id of ['naive', 'conditional-update']) RUN[id] = { ...await run(id), marks: strategies.find((one) => one.id === id).marks ?? [] };
const head = '// A race as it was, for /lab/why where there is no server. Made by scripts/record_race.mjs.\n\n';
await writeFile(new URL('../static/js/lab/recorded.js', import.meta.url), `${head}export const RUN = ${JSON.stringify(RUN, null, 2)};\n`);
console.log(`${RUN.naive.verdict.sold} sold of 10, ${RUN['conditional-update'].verdict.sold} of 10`);
