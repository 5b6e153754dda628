// The lesson on id generators: sections of words, tables and code, in the order in which the server
// tells them.

import { call } from '../api.js';
import { $, h } from '../ui.js';
import { codeView } from './code.js';
import { failed, frame, workedAgain } from './frame.js';
import { inWords, t } from './theatre-words.js';

const paragraphs = (words) => String(words ?? '').split(/\n{2,}/).filter(Boolean).map((one) => h('p', {}, one));
const figure = (value) => typeof value === 'number' || /^[\d.,\s]+(?:[a-zµ%/]+)?$/i.test(String(value));

function table({ columns = [], rows, title }) {
  return h('div', { class: 'scroll', tabindex: '0', role: 'group', 'aria-label': title },
    h('table', {}, columns.length ? h('thead', {}, h('tr', {}, ...columns.map((one) => h('th', { scope: 'col' }, one)))) : null,
      h('tbody', {}, ...rows.map((cells) => h('tr', {}, ...cells.map((value, index) => h(index === 0 ? 'th' : 'td',
        index === 0 ? { scope: 'row' } : { class: figure(value) ? 'digits' : '' }, value == null ? '–' : String(value))))))));
}

function section(one, index) {
  const id = `s-${index}`;
  return h('section', { class: 'box idea', 'aria-labelledby': id }, h('h2', { id }, one.title), ...paragraphs(one.text),
    one.rows?.length ? table(one) : null,
    one.code ? codeView(one.code, { file: one.file ?? '.rs', label: t('lab.source_of', { title: one.title }) }).element : null);
}

async function load() {
  try {
    const { sections } = await call('GET', inWords('/api/v1/lab/ids'), { timeoutMs: 60_000 });
    workedAgain();
    $('#sections').replaceChildren(...sections.map(section));
  } catch (problem) {
    return failed(problem, load);
  } finally {
    $('#loading').hidden = true;
  }
}

frame();
load();
