// What a shopper is told of an order, and which news of it counts. No DOM, no network.

export const TERMINAL = ['paid', 'cancelled', 'expired', 'rejected'];

/**
 * How far an order has come. An operator may cancel one that is paid; after that it stays what it
 * is.
 */
const COME = { queued: 0, pending_payment: 1, paid: 2, cancelled: 3, expired: 3, rejected: 3 };

/** Where its money has something to tell that its status does not. */
const MONEY = {
  pending_payment: ['pending', 'declined'], paid: ['refunding', 'refunded'],
  expired: ['pending', 'refunding', 'refunded'], cancelled: ['pending', 'refunding', 'refunded'],
};

/**
 * The ending of the keys of its words: of its money if there is something to tell, else of its
 * status.
 */
export const wordsOf = (order) => moneyOf(order) ?? order.status;

/** The same, or null where its status says it all. */
export const moneyOf = ({ status, payment }) => (MONEY[status]?.includes(payment) ? `${status}_${payment}` : null);

/**
 * Whether no more news is to be expected: the order is over, and none of its money is under way.
 */
export const settled = ({ status, payment }) => TERMINAL.includes(status) && !['pending', 'refunding'].includes(payment);

/** Whether `news` tells more than what is `known`; it may have been under way for longer. */
export function isNews(news, known) {
  if (COME[news.status] !== COME[known.status]) return COME[news.status] > COME[known.status];
  return news.status === known.status && (news.pay_by !== known.pay_by || news.payment !== known.payment);
}
