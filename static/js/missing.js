// The page for addresses that lead nowhere.

import { shell } from './ui.js';

shell();
