// What the pages say, in the visitor's language. The words stand in strings/<language>.js, one
// object of the same keys for each; a visitor loads only their own. lang.js, which runs before
// anything is shown, has already chosen which.

const KEPT = 'flash-sale.lang'; // the same name in lang.js, which is no module and can import nothing

export const language = globalThis.document?.documentElement.lang.startsWith('zh') ? 'zh' : 'en';

const { default: words } = await import(`./strings/${language}.js`);

/** More words, for pages that have their own (the lab). */
export const add = (more) => { Object.assign(words, more); };

/** The words of `key`. `otherwise` is the key to use where there is no such key. */
export function t(key, params = {}, otherwise) {
  const value = words[key] ?? (otherwise ? words[otherwise] : key);
  return typeof value === 'function' ? value(params) : value.replace(/\{(\w+)\}/g, (_, name) => params[name] ?? '');
}

/**
 * An error in the visitor's words, by its code; the server's own sentence where the code is not
 * known here.
 */
export function errorWords(problem) {
  const key = `error.${problem.code}`;
  if (key in words) return t(key, { detail: problem.detail });
  return problem.detail || t('error.other', { code: problem.code ?? problem.message });
}

/**
 * Remembers the other language and shows the page in it. What is under way lives on the server, so
 * a reload keeps it.
 */
export function switchLanguage(to) {
  try { localStorage.setItem(KEPT, to); } catch { /* private mode: this page only */ }
  dispatchEvent(new Event('flash-sale:language')); // for what a page has under way
  location.reload();
}
