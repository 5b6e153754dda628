// The API's document, /openapi.json, for people.

import { curl, shape } from './docs-schema.js';
import { t } from './strings.js';
import { $, h, shell, text } from './ui.js';

const VERBS = ['get', 'post', 'patch', 'put', 'delete'];

/** Text in which `code` is marked. */
const prose = (words = '') => words.split('`').map((part, index) => (index % 2 ? h('code', {}, part) : part));

function answers(document, operation) {
  return Object.entries(operation.responses).map(([status, answer]) => {
    const [kind, { schema } = {}] = Object.entries(answer.content ?? {})[0] ?? [];
    const body = schema && !kind.startsWith('text/') && kind !== 'application/problem+json' ? h('pre', { tabindex: '0' }, shape(document, schema)) : null;
    return h('div', { class: 'answer' }, h('p', {}, h('code', {}, h('strong', {}, status)), ' ', ...prose(answer.description)), body);
  });
}

function operation(document, path, method, what) {
  const words = [what.summary, what.description].filter(Boolean).join(' ');
  const body = what.requestBody?.content?.['application/json']?.schema;
  const inside = h('div', { class: 'inside' });
  const element = h('details', { class: 'operation', id: what.operationId },
    h('summary', {}, h('span', { class: `verb ${method}` }, method.toUpperCase()), h('span', { class: 'path' }, path), h('span', { class: 'muted' }, ...prose(words))), inside);
  // Built when it is opened for the first time.
  const fill = () => {
    if (inside.childElementCount) return;
    const parameters = (what.parameters ?? []).map((one) => [
      h('dt', {}, one.name, one.required ? '' : '?'),
      h('dd', {}, h('code', {}, shape(document, one.schema)), ` ${one.in}. `, ...prose(one.description)),
    ]);
    inside.append(
      h('pre', { tabindex: '0' }, curl({ method, path, operation: what, document, origin: location.origin })),
      ...(parameters.length ? [h('h3', {}, 'Parameters'), h('dl', {}, ...parameters.flat())] : []),
      ...(body ? [h('h3', {}, 'Body'), h('pre', { tabindex: '0' }, shape(document, body))] : []),
      h('h3', {}, 'Answers'), ...answers(document, what));
  };
  element.addEventListener('click', fill);
  return { element, fill, words: `${method} ${path} ${words}`.toLowerCase() };
}

function show(document) {
  const all = Object.entries(document.paths).flatMap(([path, item]) => VERBS.filter((verb) => item[verb]).map((verb) => [path, verb, item[verb]]));
  const sections = document.tags.map(({ name, description }) => {
    const operations = all.filter(([, , { tags }]) => tags?.[0] === name).map(([path, verb, what]) => operation(document, path, verb, what));
    return { operations, element: h('section', {}, h('h2', {}, name), h('p', { class: 'muted' }, ...prose(description)), ...operations.map(({ element }) => element)) };
  });
  $('#about').append(...prose(document.info.description));
  $('#operations').replaceChildren(...sections.map(({ element }) => element));
  $('#operations').removeAttribute('aria-busy');

  $('#find').addEventListener('input', () => {
    const wanted = $('#find').value.trim().toLowerCase();
    for (const { element, operations } of sections) {
      for (const one of operations) one.element.hidden = !one.words.includes(wanted);
      element.hidden = operations.every((one) => one.element.hidden);
    }
    text($('#none'), sections.every(({ element }) => element.hidden) ? t('docs.none') : '');
  });
  const open = () => {
    const wanted = sections.flatMap(({ operations }) => operations).find(({ element }) => `#${element.id}` === location.hash);
    if (!wanted) return;
    wanted.fill();
    wanted.element.open = true;
    requestAnimationFrame(() => requestAnimationFrame(() => wanted.element.scrollIntoView({ behavior: 'instant' }))); // once all has been painted, or else it would count as moved
  };
  addEventListener('hashchange', open);
  open();
}

shell();
fetch('/openapi.json').then((response) => (response.ok ? response.json() : Promise.reject(response))).then(show, () => text($('#none'), t('error.timeout')));
