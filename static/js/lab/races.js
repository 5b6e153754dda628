// The races that are one click away, by page. `strategy:demonstration` is a lane that runs what
// this strategy is shown by. `lab export` reads them: after `default` stands JSON, all numbers in.
export default {
  "lab": {
    "first": { "strategies": ["naive", "conditional-update"], "together": true, "stock": 10, "nodes": 1, "buyers": 400, "concurrency": 64, "duplicates": 10 },
    "nodes": { "strategies": ["process-mutex", "row-lock"], "together": true, "stock": 100, "nodes": 2, "buyers": 1000, "concurrency": 64, "duplicates": 10 },
    "locks": { "strategies": ["token-lock:paused", "set-px-no-owner:slow-work", "reentrant-lock:redis-forgets", "fenced-lock:paused"], "together": true },
    "buys": { "strategies": ["lock-and-hincrby:without-lock", "lock-and-hincrby:with-lock"], "together": true },
    "real": { "strategies": ["row-lock", "lua-sync", "lua-stream", "bucketed"], "together": false, "stock": 2000, "nodes": 1, "buyers": 6000, "concurrency": 512, "duplicates": 0, "options": { "interleave": "off" } }
  },
  "why": {
    "ten": { "strategies": ["naive", "conditional-update"], "together": true, "stock": 10, "nodes": 1, "buyers": 300, "concurrency": 64, "duplicates": 0 }
  }
};
