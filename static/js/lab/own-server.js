// A server of the visitor's own as a lane: what the judge has found, in words and with the requests
// that prove it.

import { number } from '../format.js';
import { h } from '../ui.js';
import { t } from './words.js';

const MOST = 8; // requests that are shown; the report has more

const said = ({ kind, count }) => t(`lab.finding.${kind}`, { n: number(count) });

/** The verdict in a sentence; doubts come first, as findings may mean little then. */
export function explained({ verdict, findings, doubts, doubt_codes: codes }) {
  const why = doubts.map((doubt, i) => t(`lab.doubt.${codes?.[i] ?? 'run'}`, { why: doubt })).join(t('lab.doubt.and'));
  if (verdict === 'undecided') return t('lab.server.undecided', { why });
  if (verdict === 'held') return t('lab.server.held');
  return [...why ? [t('lab.server.doubted', { why })] : [], ...findings.map(said)].join(' ');
}

const ms = (us) => number(us / 1000, { maximumFractionDigits: 2 });

function heard({ status, means, order_id: order, error, phase }) {
  return [status, t(`lab.heard.${means}`), order, error, phase === 'storm' ? null : t(`lab.phase.${phase}`)].filter(Boolean).join(' · ');
}

/** Who asked when, and what they heard: each request on one time line, the first to ask on top. */
function asked(requests) {
  const first = Math.min(...requests.map(({ start_us: start }) => start)), whole = Math.max(1, ...requests.map(({ end_us: end }) => end - first));
  const bar = ({ start_us: start, end_us: end }) => {
    const element = h('i', {});
    element.style.marginLeft = `${((start - first) / whole) * 100}%`;
    element.style.width = `${((end - start) / whole) * 100}%`;
    return h('td', { class: 'when', 'aria-hidden': 'true' }, element);
  };
  return h('div', { class: 'scroll', tabindex: '0', role: 'group', 'aria-label': t('lab.proof.title') }, h('table', { class: 'asked' }, h('caption', {}, t('lab.proof.title')),
    h('thead', {}, h('tr', {}, ...['buyer', 'from', 'to', 'line', 'heard'].map((name) => h('th', { scope: 'col' }, t(`lab.proof.${name}`))))),
    h('tbody', {}, ...requests.map((one) => h('tr', {}, h('th', { scope: 'row' }, one.user), h('td', { class: 'num' }, ms(one.start_us)), h('td', { class: 'num' }, ms(one.end_us)), bar(one), h('td', {}, heard(one)))))));
}

/** The proof of the first finding: its requests, and what is stored of their buyers. */
export function proof(verdict) {
  if (!verdict) return h('p', {}, t('lab.server.wait'));
  const [first] = verdict.findings;
  const requests = first?.requests.slice(0, MOST) ?? [], rows = first?.rows.slice(0, MOST) ?? [];
  return h('div', { class: 'cause' },
    h('p', {}, first ? said(first) : explained(verdict)),
    requests.length ? asked(requests) : null,
    rows.length ? h('p', {}, t('lab.proof.stored', { rows: rows.map(({ order_id: order, user }) => `${order} (${user})`).join(', ') })) : null,
    verdict.verdict === 'undecided' ? null : h('p', {}, h('a', { href: verdict.report, download: 'judged.html' }, t('lab.server.report'))));
}
