// What a shopper does with an order. It is paid on the provider's page where there is one, else at
// once.

import { shop } from './session.js';

/** The server leaves the mark out where it has no such page. */
const PAGE = document.querySelector('meta[name="payment-page"]') !== null;
/** After this long somebody has stopped the way there. */
const STOPPED_MS = 10_000;
let back = () => {};

/**
 * Pays or cancels, both repeatable. Answers ORDER, or null: the browser goes to the provider's
 * page.
 */
export async function act(id, verb) {
  const path = `/api/v1/orders/${encodeURIComponent(id)}`;
  if (verb !== 'pay' || !PAGE) return shop('POST', `${path}/${verb}`);
  try {
    const { url } = await shop('POST', `${path}/checkout`);
    location.assign(url);
    setTimeout(back, STOPPED_MS);
    return null;
  } catch (problem) {
    if (problem.code === 'no_payment_page') return shop('POST', `${path}/pay`); // this page is older than the setting
    if (!isAnswer(problem)) problem.code = 'page_away';
    throw problem;
  }
}

const isAnswer = ({ status }) => status > 0 && status < 500;

/**
 * A failure's code, whether it is known what came of the call, and whether the same call may go
 * better.
 */
export const whyNot = (problem) => {
  const answered = isAnswer(problem);
  // This click has charged nothing: there was no page to confirm on.
  return { code: problem.code, known: answered || problem.code === 'page_away', again: !answered || problem.code === 'still_queued' };
};

/**
 * Calls `then` when a page that was on its way to the provider's is shown again by the back button,
 * or was never left.
 */
export const cameBack = (then) => {
  back = then;
  addEventListener('pageshow', ({ persisted }) => { if (persisted) then(); });
};
