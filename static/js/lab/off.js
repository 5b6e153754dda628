// What the lab's addresses show where it is switched off: the server answers 404 with these words.

import { frame } from './frame.js';

frame();
