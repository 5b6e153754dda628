// The open model: people arrive at a rate of their own, whether or not the server keeps up.

/**
 * How many people arrive in stages `[{duration: seconds, target: arrivals a second}, …]`, from
 * `startRate` on: the area under the rate. A few more than k6 will start, so that nobody is left
 * without a token.
 */
export function arrivals(startRate, stages) {
  let [people, rate] = [0, startRate];
  for (const { duration, target } of stages) {
    people += (duration * (rate + target)) / 2;
    rate = target;
  }
  return Math.ceil(people) + stages.length;
}

/** k6's `ramping-arrival-rate` scenario for these stages. */
export function ramping(startRate, stages, vus) {
  return {
    executor: 'ramping-arrival-rate',
    startRate,
    timeUnit: '1s',
    stages: stages.map(({ duration, target }) => ({ duration: `${duration}s`, target })),
    // All of them from the start: making a VU in the middle of the rush costs the generator what it
    // should measure.
    preAllocatedVUs: vus,
    maxVUs: vus,
    gracefulStop: '15s',
  };
}

/** The same at one rate. */
export function steady(rate, durationSecs, vus) {
  return {
    executor: 'constant-arrival-rate',
    rate,
    timeUnit: '1s',
    duration: `${durationSecs}s`,
    preAllocatedVUs: vus,
    maxVUs: vus,
    gracefulStop: '15s',
  };
}
