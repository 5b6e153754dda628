// The payment provider's sandbox (flash-sale sandbox-pay): what goes wrong there, and what shoppers
// do on its page.

import http from 'k6/http';
import { giveUp } from './promises.js';
import { inFewWords } from './requests.js';

const PAYMENT_URL = (__ENV.PAYMENT_URL || '').replace(/\/+$/, '');
const PAYMENT_KEY = __ENV.PAYMENT_KEY || '';

function ask(method, url, { body = null, headers = {}, name }) {
  try {
    return http.request(method, url, body, { headers, tags: { name }, redirects: 0, timeout: '15s' });
  } catch (error) {
    return { status: 0, body: '', error: inFewWords(error), headers: {} };
  }
}

/**
 * Says what goes wrong from now on (`flash-sale sandbox-pay --help`); what is not named goes right.
 */
export function setFaults(faults) {
  if (!PAYMENT_URL || !PAYMENT_KEY) {
    giveUp('PAYMENT_URL and PAYMENT_KEY are not set: the address of the sandbox that the server pays with, and its key.');
  }
  const headers = { Authorization: `Bearer ${PAYMENT_KEY}`, 'Content-Type': 'application/json' };
  const { status, body, error } = ask('PUT', `${PAYMENT_URL}/v1/faults`, { body: JSON.stringify(faults), headers, name: 'PUT /v1/faults' });
  if (status !== 200) giveUp(`The sandbox at ${PAYMENT_URL} does not change its faults: ${status} ${body || error}`);
}

/** The provider's page, as a browser gets it. */
export const visitPage = (url) => ask('GET', url, { name: 'GET /pay/{checkout}' });

/** A click on it: `confirm`, `decline` or `leave`. It leads back to the shop. */
export const click = (url, button) => ask('POST', `${url}/${button}`, { name: `POST /pay/{checkout}/${button}` });
