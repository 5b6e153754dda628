// A race as it was, for /lab/why where there is no server. Made by scripts/record_race.mjs.

export const RUN = {
  "day": "2026-11-24",
  "naive": {
    "sold": [
      13,
      78,
      92,
      92,
      92,
      92,
      92,
      93,
      93
    ],
    "verdict": {
      "sold": 93,
      "oversold": 83,
      "collision": null
    },
    "marks": []
  },
  "conditional-update": {
    "sold": [
      0,
      0,
      0,
      0,
      0,
      9,
      10,
      10,
      10,
      10
    ],
    "verdict": {
      "sold": 10,
      "oversold": 0,
      "collision": null
    },
    "marks": []
  }
};
