// The words of the page for the projector, on top of the lab's.

import { add, language } from '../strings.js';

const { default: words } = await import(`./why-strings/${language}.js`);
add(words);

export { inWords, language, t } from './words.js';
