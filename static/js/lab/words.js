// The lab's own words, on top of those that every page has: only who comes here loads them. The
// lab's pages take t() from here.

import { add, language, t } from '../strings.js';

const { default: words } = await import(`./strings/${language}.js`);
add(words);

/** An address of the API that answers in the page's language. */
export const inWords = (path) => `${path}${path.includes('?') ? '&' : '?'}lang=${language}`;

export { language, t };
