// What a shopper does with an order. It is paid on the provider's page where there is one, else at
// once.

import { shop } from './session.js';

/** The server leaves the mark out where it has no such page. */
const PAGE = document.querySelector('meta[name="payment-page"]') !== null;

/** Pays or cancels, both repeatable. Answers ORDER, or null: the browser goes to the provider's page. */
export async function act(id, verb) {
  const path = `/api/v1/orders/${encodeURIComponent(id)}`;
  if (verb !== 'pay' || !PAGE) return shop('POST', `${path}/${verb}`);
  try {
    const { url } = await shop('POST', `${path}/checkout`);
    location.assign(url);
    return null;
  } catch (problem) {
    if (!isAnswer(problem)) problem.code = 'page_away';
    throw problem;
  }
}

const isAnswer = ({ status }) => status > 0 && status < 500;

/** A failure's code, whether it is known what came of the call, and whether the same call may go better. */
export const whyNot = (problem) => {
  const answered = isAnswer(problem);
  // A page that nobody has seen has charged nothing.
  return { code: problem.code, known: answered || problem.code === 'page_away', again: !answered || problem.code === 'still_queued' };
};

/** Calls `then` when the back button shows a page again that was on its way to the provider's. */
export const cameBack = (then) => addEventListener('pageshow', ({ persisted }) => { if (persisted) then(); });
