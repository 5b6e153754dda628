// Solves one challenge beside the page, which stays smooth meanwhile.

import { solve } from './work-hash.js';

addEventListener('message', ({ data: { challenge, bits } }) => postMessage(solve(challenge, bits)));
