// 实验室页面的简体中文，规则与 ../../strings/zh.js 相同。策略与课程自己的文字来自服务器，这里只有它们周围的话。

export default {
  'lab.foot': '实验室只用自己的库存，碰不到真正的秒杀。',
  'lab.rooms': '实验室的各个房间',
  'lab.room.lab': '策略比赛',
  'lab.room.why': '为什么会超卖',
  'lab.room.lesson': '锁的剧场',
  'lab.room.locks': '锁的对比',
  'lab.room.ids': '订单号',
  'lab.off': '这台服务器没有开放实验室。运行它的人可以用 LAB=on 打开。',
  'lab.off_title': '实验室没有开放',
  'lab.busy': '服务器正忙，请 {n} 秒后再试。',
  'error.stopped': '还没结束就停下了。',
  'lab.again': '再试一次',

  'lab.unavailable': '这里不可用：{why}',

  'lab.value.on': '开',
  'lab.value.off': '关',
  'lab.option_all': '所有已选策略',
  'error.arena_not_found': '实验室里的这份库存已经关闭，请重新运行。',
  'error.too_many_arenas': '实验室里同时打开的库存太多了。它们过一会儿会自动关闭：请稍等再试。',
  'error.too_many_storms': '实验室里同时进行的压测已达上限。请稍等再试。',
  'error.storm_running': '那里已有一轮压测在进行。',
  'error.strategy_unavailable': '在这里不能运行：{detail}',
  'error.local_only': '只有在运行实验室的那台机器上打开浏览器，才能裁决服务器。在别处请运行：flash-sale judge URL',
  'error.judgement_running': '你的服务器正在接受裁决（可能来自另一个页面）。请等它结束。',
  'error.judgement_not_found': '这次裁决已经结束并清除，请重新运行。',

  'lab.options': '故意弄坏它',
  'lab.option_for': '适用于：{names}',
  'lab.option_other': '{name}',
  'lab.option.lease_ms': '锁的租期，毫秒',
  'lab.option.pause_ms': '持有者停顿，毫秒',

  'lab.mark.flaw': '缺陷：',
  'lab.mark.cure': '解法：',
  'lab.mark.more': '更多行',

  'lab.source_of': '源码：{title}',
};
