// The operators' words, on top of those that every page has.

import { add, language } from './strings.js';

const { default: words } = await import(`./admin-strings/${language}.js`);
add(words);

export { errorWords, language, t } from './strings.js';
