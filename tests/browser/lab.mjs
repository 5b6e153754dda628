// The lab's pages. The server's side is stubbed (lab-stubs.mjs) where a test needs an answer that a
// real race does not bring about at will.

import { everywhere } from './lab-everywhere.mjs';
import { exported } from './lab-export.mjs';
import { locks } from './lab-locks.mjs';
import { ownServers } from './lab-own-server.mjs';
import { races } from './lab-races.mjs';
import { theatre } from './lab-theatre.mjs';
import { why } from './lab-why.mjs';

export function lab(stage) {
  races(stage);
  ownServers(stage);
  why(stage);
  theatre(stage);
  locks(stage);
  everywhere(stage);
  exported(stage);
}
