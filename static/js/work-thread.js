// Solves one challenge beside the page, which stays smooth meanwhile.

import { solve } from './work-hash.js';

addEventListener('message', ({ data: { challenge, bits, from } }) => postMessage({ solution: solve(challenge, bits, from, (tried) => postMessage({ tried })) }));
