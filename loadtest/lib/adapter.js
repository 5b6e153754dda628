// A server by its adapter (docs/judge.md): requests with their variables filled in, and what the
// answers mean.

import http from 'k6/http';

const NAME = /\{([A-Za-z0-9_:]+)\}/g;

function value(name, variables) {
  const found = name.startsWith('env:') ? __ENV[name.slice(4)] : variables[name];
  if (found === undefined) throw new Error(`adapter: there is no {${name}} here`);
  return found;
}

const text = (template, variables, encode = String) =>
  template.replace(NAME, (_, name) => encode(String(value(name, variables))));

/** A text that is one name and nothing else becomes its value, with its type. */
function json(template, variables) {
  if (typeof template === 'string') {
    const [, name] = /^\{([A-Za-z0-9_:]+)\}$/.exec(template) || [];
    return name ? value(name, variables) : text(template, variables);
  }
  if (Array.isArray(template)) return template.map((item) => json(item, variables));
  if (template === null || typeof template !== 'object') return template;
  return Object.fromEntries(Object.entries(template).map(([name, item]) => [name, json(item, variables)]));
}

/** What stands at this JSON pointer, or undefined. */
export function at(pointer, document) {
  const steps = pointer.split('/').slice(1);
  const unescaped = (step) => step.replaceAll('~1', '/').replaceAll('~0', '~');
  return steps.reduce((inner, step) => (inner === null || inner === undefined ? inner : inner[unescaped(step)]), document);
}

/** The request of a call, as http.batch takes it. */
export function requestOf(base, call, variables, path = call.path) {
  const headers = Object.fromEntries(
    Object.entries(call.headers || {}).map(([name, template]) => [name, text(template, variables)]),
  );
  const body = call.body === undefined ? null : json(call.body, variables);
  if (body !== null && typeof body !== 'string' && !Object.keys(headers).some((name) => /^content-type$/i.test(name))) {
    headers['Content-Type'] = 'application/json';
  }
  return {
    method: call.method || 'GET',
    url: base + text(path, variables, encodeURIComponent),
    body: body === null || typeof body === 'string' ? body : JSON.stringify(body),
    // A session may set a cookie, which would be everybody's.
    params: { headers, jar: new http.CookieJar(), redirects: 0, timeout: '15s', tags: { name: `${call.method || 'GET'} ${call.path}` } },
  };
}

/** An id or a name as text; `member` of the adapter says where it stands. */
export function textOf(value, member) {
  if (!['string', 'number', 'boolean'].includes(typeof value)) {
    throw new Error(`adapter: ${member}: no text, number or truth value, but ${JSON.stringify(value)}`);
  }
  // JSON.parse has rounded it, and two of them may have become one.
  if (Number.isInteger(value) && !Number.isSafeInteger(value)) throw new Error(`k6 cannot read the whole number ${value}`);
  return String(value);
}

/** What stands at a JSON pointer, or in `header:` of this name; cookies as they are sent back. */
export function found(place, response) {
  if (!place.startsWith('header:')) return at(place, bodyOf(response));
  const name = place.slice('header:'.length).toLowerCase();
  const cookies = Object.values(response.cookies).flat();
  if (name === 'set-cookie' && cookies.length > 0) return cookies.map((own) => `${own.name}=${own.value}`).join('; ');
  const own = Object.entries(response.headers).find(([header]) => header.toLowerCase() === name);
  return own && own[1];
}

/** The body of an answer; what is not JSON is one text. */
export function bodyOf(response) {
  try {
    return JSON.parse(response.body);
  } catch (_) {
    return response.body;
  }
}

const list = (one) => (Array.isArray(one) ? one : [one]);
const isOneOf = (wanted, found) => list(wanted).some((one) => one === found);

/** `{means, order_id}` of an answer to an order. */
export function meaningOf(order, response) {
  if (response.status === 0) return { means: 'lost', error: response.error };
  const body = bodyOf(response);
  const fits = (answer) => {
    if (!isOneOf(answer.status, response.status)) return false;
    const found = answer.at === undefined ? undefined : at(answer.at, body);
    if (answer.at !== undefined && found === undefined) return false;
    return answer.is === undefined || isOneOf(answer.is, found);
  };
  const unexpected = (why) => ({ means: 'unexpected', error: `${why}${JSON.stringify(body)}`.slice(0, 200) });
  const index = order.answers.findIndex(fits);
  if (index < 0) return unexpected('');
  const { means, order_id: place } = order.answers[index];
  if (!place) return { means };
  const member = `order.answers[${index}].order_id`;
  const id = at(place, body);
  if (id === undefined || id === null || typeof id === 'object') return unexpected(`${member}: nothing at "${place}" in `);
  const text = textOf(id, member);
  return text.length <= 200 ? { means, order_id: text } : unexpected(`${member}: no id at "${place}" in `);
}

export const isSkipped = (skip, row) => skip !== undefined && isOneOf(skip.is, at(skip.at, row));
