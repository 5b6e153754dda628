// Source → coloured words: [[kind, text]…] for each line. No DOM: code.js puts every text into a
// span as text, so nothing of a source can become markup. It knows as much of Rust, Lua and SQL as
// colouring needs, and every character comes out again.

const RUST = {
  keywords: new Set(('as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return '
    + 'self Self static struct super trait true type unsafe use where while yield').split(' ')),
  // Order matters: what starts a comment or a string swallows the rest of it.
  rules: [
    ['comment', /\/\/[^\n]*|\/\*[\s\S]*?(?:\*\/|$)/y],
    ['string', /[bc]?r(#*)"[\s\S]*?(?:"\1|$)|[bc]?"(?:\\[\s\S]|[^"\\])*(?:"|$)|b?'(?:\\(?:u\{[^}\n]*\}|x..|.)|[^'\\\n])'/y],
    ['life', /'[A-Za-z_]\w*/y],
    ['attr', /#!?\[[^\]\n]*\]/y],
    ['number', /0x[\da-fA-F_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:e[+-]?\d+)?(?:[iuf](?:8|16|32|64|128|size))?/y],
    ['macro', /[A-Za-z_]\w*!(?=[\s([{])/y],
    ['word', /[A-Za-z_]\w*/y],
  ],
};
const LUA = {
  keywords: new Set('and break do else elseif end false for function goto if in local nil not or repeat return then true until while'.split(' ')),
  rules: [
    ['comment', /--\[\[[\s\S]*?(?:\]\]|$)|--[^\n]*/y],
    ['string', /"(?:\\[\s\S]|[^"\\\n])*(?:"|$)|'(?:\\[\s\S]|[^'\\\n])*(?:'|$)/y],
    ['number', /\d+(?:\.\d+)?/y],
    ['word', /[A-Za-z_]\w*/y],
  ],
};
const SQL = {
  keywords: new Set(('select from where for update insert into values set returning delete create table primary key not null default references and or on conflict '
    + 'do nothing begin commit rollback lock with as in is if').split(' ').flatMap((word) => [word, word.toUpperCase()])),
  rules: [['comment', /--[^\n]*/y], ['string', /'(?:''|[^'])*(?:'|$)/y], ['number', /\d+/y], ['word', /[A-Za-z_]\w*/y]],
};
const BY_ENDING = { rs: RUST, lua: LUA, sql: SQL };

function wordKind(word, language, rest) {
  if (language.keywords.has(word)) return 'keyword';
  if (/^[A-Z][A-Z0-9_]+$/.test(word)) return 'constant';
  if (/^[A-Z]/.test(word)) return 'type';
  return /^(?:::<[^>\n]*>)?\(/.test(rest) ? 'call' : '';
}

/** The whole text as [[kind, text]…]; kind is empty for what has no colour. */
export function tokens(source, file = '.rs') {
  const language = BY_ENDING[file.split('.').pop()] ?? RUST;
  const found = [];
  const add = (kind, piece) => {
    const last = found.at(-1);
    if (last && last[0] === kind) last[1] += piece;
    else found.push([kind, piece]);
  };
  for (let at = 0; at < source.length;) {
    let kind = '', piece = source[at];
    for (const [name, rule] of language.rules) {
      rule.lastIndex = at;
      const match = rule.exec(source);
      if (!match) continue;
      [kind, piece] = [name, match[0]];
      if (name === 'word') kind = wordKind(piece, language, source.slice(at + piece.length, at + piece.length + 60));
      break;
    }
    add(kind, piece);
    at += piece.length;
  }
  return found;
}

/** The same by lines: [[[kind, text]…]…]. What spans lines is cut at their ends. */
export function lines(source, file) {
  const out = [[]];
  for (const [kind, piece] of tokens(source.replace(/\r\n?/g, '\n').replace(/\n$/, ''), file)) {
    piece.split('\n').forEach((part, index) => {
      if (index > 0) out.push([]);
      if (part) out.at(-1).push([kind, part]);
    });
  }
  return out;
}
