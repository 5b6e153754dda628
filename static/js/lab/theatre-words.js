// The words of the theatre, of the locks and of the order numbers, on top of the lab's.

import { add, language } from '../strings.js';

const { default: words } = await import(`./theatre-strings/${language}.js`);
add(words);

export { inWords, t } from './words.js';
