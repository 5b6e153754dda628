// A server by its adapter (docs/judge.md): requests with their variables filled in.

import http from 'k6/http';
import { at, bodyOf } from './answers.js';

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

/** What stands at a JSON pointer, or in `header:` of this name; cookies as they are sent back. */
export function found(place, response) {
  if (!place.startsWith('header:')) return at(place, bodyOf(response));
  const name = place.slice('header:'.length).toLowerCase();
  const cookies = Object.values(response.cookies).flat();
  if (name === 'set-cookie' && cookies.length > 0) return cookies.map((own) => `${own.name}=${own.value}`).join('; ');
  const own = Object.entries(response.headers).find(([header]) => header.toLowerCase() === name);
  return own && own[1];
}
