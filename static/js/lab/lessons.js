// The lessons of the lock theatre as a list: cards on the lab's page, a strip on each lesson.

import { $, h } from '../ui.js';
import { t } from './words.js';

/** As the page's own link to the theatre has it, which in an export is another. */
export const address = ({ id }) => $('.rooms [data-room="lesson"]').getAttribute('href').replace('b01', encodeURIComponent(id));

export const lessonCards = (lessons) => lessons.map((one) => h('li', { class: 'lesson-card' },
  h('span', { class: 'nr' }, String(one.number)), h('h3', {}, h('a', { href: address(one) }, one.title)), h('p', {}, one.failure), one.available?.ok === false ? h('p', { class: 'why' }, t('lab.unavailable', { why: one.available.why ?? '' })) : null));

export const lessonStrip = (lessons, here) => lessons.map((one) => h('li', {},
  h('a', { href: address(one), 'aria-current': one.id === here ? 'page' : undefined, title: one.title },
    h('span', { class: 'nr' }, String(one.number)), h('span', { class: 'short' }, one.title), one.id === here ? h('span', { class: 'unseen' }, ` ${t('lesson.here')}`) : null)));
