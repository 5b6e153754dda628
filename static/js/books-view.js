// The books of the API as rows of the operators' page: keys of strings/ and amounts. No DOM.

/** `ok`, `moving` (payments are under way) or `bad`. */
export const verdictOf = ({ ok, quiescent }) => (!ok ? 'bad' : quiescent ? 'ok' : 'moving');

/** [key, amount] of the ledger, the orders and the provider; null where there is none. */
export const figuresOf = (books) => [
  ['captured', books?.captured_cents], ['refunded', books?.refunded_cents], ['paid', books?.paid_cents], ['under_way', books?.under_way],
  ['provider_captured', books?.provider?.captured_cents], ['provider_refunded', books?.provider?.refunded_cents],
].map(([name, amount]) => [name, amount ?? null]);

const ZH = [
  [/^(\S+): (-?\d+) captured for order (\d+), which is not paid$/, '$1：订单 $3 入账 $2，但该订单未付款'],
  [/^order (\d+): (-?\d+) captured, its price is (-?\d+)$/, '订单 $1：入账 $2，价格是 $3'],
  [/^order (\d+) is paid, and nothing was captured$/, '订单 $1 已付款，但没有入账'],
  [/^(\S+): (-?\d+) captured for order (\d+), and unknown to the provider$/, '$1：订单 $3 入账 $2，支付渠道没有这笔'],
  [/^(\S+): (-?\d+) captured for (\S+), and not in the ledger$/, '$1：$3 已扣款 $2，账本里没有'],
  [/^(\S+): (-?\d+) captured for order (\d+), failed here$/, '$1：订单 $3 已扣款 $2，账本记为失败'],
  [/^(\S+): (-?\d+) captured for order (\d+), (-?\d+) in the ledger$/, '$1：订单 $3 已扣款 $2，账本记的是 $4'],
  [/^(\S+): (-?\d+) refunded of order (\d+), (-?\d+) in the ledger$/, '$1：订单 $3 已退款 $2，账本记的是 $4'],
  [/^(\S+): its refund for order (\d+) is refused: (.*)$/, '$1：支付渠道拒绝为订单 $2 退款：$3'],
  [/^payments were captured by a provider that is not configured \(PAYMENT_URL\)$/, '有付款由未配置的支付渠道入账（PAYMENT_URL）'],
  [/^(-?\d+) captured and not refunded, (-?\d+) paid by orders$/, '已入账未退款 $1，订单已付 $2'],
];

/** What does not agree, in Chinese; null for what a later server may say. */
export function inChinese(drift) {
  const [pattern, words] = ZH.find(([known]) => known.test(drift)) ?? [];
  return pattern ? drift.replace(pattern, words) : null;
}
