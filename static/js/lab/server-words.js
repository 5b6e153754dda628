// The words of what the judge has found, on top of the races': few visitors bring a server.

import { add, language } from '../strings.js';

const { default: words } = await import(`./server-strings/${language}.js`);
add(words);
