// What the answers of a server mean by its adapter: the rule of crates/judge/src/adapter.rs, proved
// to be the same by tests/support/answers.json.

const LONGEST_ID = 200;
const LONGEST_ERROR = 200;

/** What stands at this JSON pointer, or undefined. */
export function at(pointer, document) {
  const steps = pointer.split('/').slice(1).map((step) => step.replaceAll('~1', '/').replaceAll('~0', '~'));
  const has = (inner, step) => typeof inner === 'object' && inner !== null && Object.keys(inner).includes(step);
  return steps.reduce((inner, step) => (has(inner, step) ? inner[step] : undefined), document);
}

/** The body of an answer; what is not JSON is one text. */
export function bodyOf(response) {
  try {
    return JSON.parse(response.body);
  } catch (_) {
    return response.body;
  }
}

const isScalar = (value) => ['string', 'number', 'boolean'].includes(typeof value);

/** An id or a name as text; `member` of the adapter says where it stands. */
export function textOf(value, member) {
  if (!isScalar(value)) throw new Error(`adapter: ${member}: no text, number or truth value, but ${JSON.stringify(value)}`);
  // JSON.parse has rounded it, and two of them may have become one.
  if (Number.isInteger(value) && !Number.isSafeInteger(value)) throw new Error(`k6 cannot read the whole number ${value}`);
  return String(value);
}

const list = (one) => (Array.isArray(one) ? one : [one]);
const isOneOf = (wanted, found) => list(wanted).some((one) => JSON.stringify(one) === JSON.stringify(found));

export const isSkipped = (skip, row) => skip !== undefined && isOneOf(skip.is, at(skip.at, row));

/** Why it is another answer. */
function misfit({ at: place, is }, body) {
  if (place === undefined) return undefined;
  const value = at(place, body);
  if (value === undefined) return `at: nothing at "${place}"`;
  return is === undefined || isOneOf(is, value) ? undefined : `is: ${JSON.stringify(value)} at "${place}"`;
}

/** Only a sale must have an id. */
function idOf({ means, order_id: place }, body, member) {
  if (place === undefined) return {};
  const value = at(place, body);
  const id = isScalar(value) ? textOf(value, member) : undefined;
  if (id !== undefined && [...id].length <= LONGEST_ID) return { order_id: id };
  return means === 'sold' ? { why: `${id === undefined ? 'nothing' : 'no id'} at "${place}"` } : {};
}

/** `{means, order_id}` of an answer to an order. */
export function meaningOf(order, response) {
  if (response.status === 0) return { means: 'lost', error: response.error };
  const body = bodyOf(response);
  const unexpected = (why) => ({ means: 'unexpected', error: [...`${why} in ${JSON.stringify(body)}`].slice(0, LONGEST_ERROR).join('') });
  let nearest;
  for (const [index, answer] of order.answers.entries()) {
    if (!isOneOf(answer.status, response.status)) continue;
    const member = `order.answers[${index}]`;
    const other = misfit(answer, body);
    if (other === undefined) {
      const { why, ...id } = idOf(answer, body, `${member}.order_id`);
      return why === undefined ? { means: answer.means, ...id } : unexpected(`${member}.order_id: ${why}`);
    }
    nearest = nearest || `${member}.${other}`;
  }
  return unexpected(nearest || `order.answers: none has the status ${response.status}`);
}
