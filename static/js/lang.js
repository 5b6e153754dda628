// Chooses the language before anything is shown: the one picked last, else the first that the
// browser asks for and we have. A plain script in <head>, because a module would run after the
// first paint and the English would flash.
(() => {
  const TAGS = { en: 'en', zh: 'zh-Hans' };
  let kept;
  try { kept = localStorage.getItem('flash-sale.lang'); } catch { /* storage is switched off */ }
  const wanted = [kept, ...(navigator.languages ?? [])].map((tag) => String(tag).slice(0, 2).toLowerCase());
  const language = wanted.find((one) => one in TAGS) ?? 'en';
  document.documentElement.lang = TAGS[language];
  // The page carries the English; in another language it waits until its words are there.
  if (language !== 'en') document.documentElement.classList.add('wordless');
  // `data-more` names folders with further words, for pages that need them.
  for (const folder of ['strings', ...(document.currentScript.dataset.more ?? '').split(' ').filter(Boolean)]) {
    const words = document.createElement('link');
    words.rel = 'modulepreload';
    words.href = new URL(`${folder}/${language}.js`, document.currentScript.src);
    document.head.append(words);
  }
  // `data-early`: asked before the modules come, for api.js; nobody reads it in the background.
  if (document.currentScript.dataset.early !== undefined && !document.hidden) {
    const path = `/api/v1${location.pathname === '/' ? '/sales' : location.pathname}`, sent = performance.now();
    globalThis.early = { path, answer: fetch(path, { headers: { accept: 'application/json' }, cache: 'no-store', signal: AbortSignal.timeout(1e4) }).then((response) => ({ response, sent, received: performance.now() })) };
    globalThis.early.answer.catch(() => {}); // its reader handles the error
  }
})();
