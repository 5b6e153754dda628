// Stands in for the server on the pages that `lab export` writes: what the lab's API would answer
// is in files, a race goes as fast as it went. A plain script: it is there before any module asks.
(() => {
  const root = new URL('../../../', document.currentScript.src), fetched = fetch;
  const answer = (status, body = {}) => Response.json(body, { status });
  const later = (ms) => new Promise((done) => { setTimeout(done, ms); });

  /** `moments` are [after so many ms, this text]. */
  function replayed(moments, signal) {
    const encoder = new TextEncoder(), began = performance.now();
    return new Response(new ReadableStream({
      async start(stream) {
        signal?.addEventListener('abort', () => stream.error(signal.reason));
        for (const [at, text] of moments) {
          await later(at - (performance.now() - began));
          if (signal?.aborted) return;
          stream.enqueue(encoder.encode(text));
        }
        stream.close();
      },
    }));
  }

  /**
   * The arena of a lane is named after it, so nothing has to be remembered: a page that is loaded
   * again goes on.
   */
  function arena({ strategy, stock, nodes, options = {} }) {
    return answer(201, { arena_id: [document.body.dataset.room, strategy, stock, nodes, ...Object.keys(options).sort()].join('-') });
  }

  globalThis.fetch = async (path, { method = 'GET', body, signal } = {}) => {
    const { pathname, searchParams } = new URL(path, location.href);
    const [, what] = /^\/api\/v1\/lab\/(.+)$/.exec(pathname) ?? [];
    if (method === 'DELETE') return new Response(null, { status: 204 });
    if (!what) return answer(404, { code: 'not_found' });
    if (what === 'arenas') return arena(JSON.parse(body));
    if (what.endsWith('/storm')) return answer(202);
    const recorded = await fetched(new URL(`data/${searchParams.get('lang')}/${what}.json`, root), { signal });
    return what.endsWith('/events') && recorded.ok ? replayed(await recorded.json(), signal) : recorded;
  };
})();
