// English of the lab's pages, on top of ../../strings/en.js and by the same rules. What a strategy
// or a lesson says of itself comes from the server; here is only what stands around it.

export default {
  'lab.foot': 'The lab works on stocks of its own. It cannot touch a real sale.',
  'lab.rooms': 'Rooms of the lab',
  'lab.room.lab': 'Race strategies',
  'lab.room.why': 'Why it oversells',
  'lab.room.lesson': 'Lock theatre',
  'lab.room.locks': 'Locks compared',
  'lab.room.ids': 'Order numbers',
  'lab.off': 'The lab is switched off on this server. Its operator can switch it on with LAB=on.',
  'lab.off_title': 'The lab is switched off',
  'lab.busy': ({ n }) => (n === 1 ? 'The server has a lot to do. Try again in a second.' : `The server has a lot to do. Try again in ${n} seconds.`),
  'error.stopped': 'Stopped before it was over.',
  'lab.again': 'Try again',

  'lab.unavailable': 'Not here: {why}',

  'lab.value.on': 'on',
  'lab.value.off': 'off',
  'lab.option_all': 'all chosen',
  'error.arena_not_found': 'This stock of the lab is closed already. Run it again.',
  'error.too_many_arenas': 'Too many stocks of the lab are open at the moment. They close by themselves after a while: wait a little and try again.',
  'error.too_many_storms': 'As many storms are going on as the lab allows. Wait a little and try again.',
  'error.storm_running': 'A storm is already going on there.',
  'error.strategy_unavailable': 'This cannot run here: {detail}',
  'error.local_only': 'A server is judged only for a browser on the machine where this lab runs. Elsewhere run: flash-sale judge URL',
  'error.judgement_running': 'Your server is being judged already, perhaps from another page. Wait until that is over.',
  'error.judgement_not_found': 'This judgement is over and forgotten. Run it again.',

  'lab.options': 'Break things on purpose',
  'lab.option_for': 'For: {names}',
  'lab.option_other': '{name}',
  'lab.option.lease_ms': 'Lease of the lock, ms',
  'lab.option.pause_ms': 'Holder pauses, ms',

  'lab.mark.flaw': 'Flaw:',
  'lab.mark.cure': 'Cure:',
  'lab.mark.more': 'More lines',

  'lab.source_of': 'Source: {title}',
};
