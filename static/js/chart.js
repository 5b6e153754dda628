// A live line chart: uPlot, in the page's colours and language, as wide as its box. The figure has
// a text beside it that says the same, so the canvas itself is silent for screen readers.

import { clock } from './clock.js';
import { number, time } from './format.js';

const LEAST_S = 30; // seconds across, however young the page is: a line should crawl, not stretch

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/**
 * Up to the newest moment, or to now where there is none yet. uPlot's own idea for a single moment
 * is a whole day.
 */
function across({ data: [times] }) {
  const end = times.at(-1) ?? clock.now() / 1000;
  return [Math.min(times[0] ?? end, end - LEAST_S), end];
}

/**
 * From nothing, with some air above; a few units at least, so that a lonely one does not look like
 * a storm.
 */
const upwards = (_, low, high) => [0, Math.max(high ?? 0, 4) * 1.08];

/**
 * `lines` is [[field of a moment, name of a colour]…]. Answers a function that draws moments ({at,
 * …} with ms times).
 */
export function chart(box, lines) {
  let plot, em, data = [[], ...lines.map(() => [])];

  function build() {
    plot?.destroy();
    const { fontSize, fontFamily } = getComputedStyle(box);
    em = parseFloat(fontSize); // grows with the screen, so that a projector's back row can read it
    const axis = (more) => ({
      stroke: colour('--soft'), font: `${em}px ${fontFamily}`,
      grid: { stroke: colour('--line'), width: 1 }, ticks: { show: false }, ...more,
    });
    plot = new globalThis.uPlot({
      padding: [8, em * 2.6, 0, 0], // the last time is as wide as that beyond the plot
      width: box.clientWidth || 300, height: box.clientHeight || 200, legend: { show: false }, cursor: { show: false },
      scales: { x: { range: across }, y: { range: upwards } },
      axes: [
        axis({ values: (_, seconds) => seconds.map((at) => time(at * 1000)), space: em * 7, gap: em * 0.7, size: em * 2.4 }),
        axis({ values: (_, values) => values.map((value) => (Number.isInteger(value) ? number(value, { notation: 'compact' }) : '')), size: em * 3.5 }),
      ],
      series: [{}, ...lines.map(([, name], index) => ({
        stroke: colour(name), width: 2.5, points: { show: false },
        fill: index === 0 ? `${colour(name)}26` : undefined, // the same colour, mostly transparent
      }))],
    }, data, box);
  }

  build();
  new ResizeObserver(() => {
    if (parseFloat(getComputedStyle(box).fontSize) !== em) build(); // another screen: other letters
    else plot.setSize({ width: box.clientWidth, height: box.clientHeight });
  }).observe(box);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', build);
  return (moments) => {
    data = [moments.map(({ at }) => at / 1000), ...lines.map(([field]) => moments.map((one) => one[field]))];
    plot.setData(data);
  };
}
