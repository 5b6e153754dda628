// The words of the races, on top of the lab's.

import { add, language } from '../strings.js';

const { default: words } = await import(`./race-strings/${language}.js`);
add(words);

export { inWords, language, t } from './words.js';
