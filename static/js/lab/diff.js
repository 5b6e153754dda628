// Which lines of two sources are not in the other: two neighbouring strategies differ by exactly
// one idea, and this shows it.

const LONGEST = 1500; // lines; beyond it the table of the search would be too large, and nothing is marked

/**
 * [Set of line numbers only in `a`, Set of line numbers only in `b`], from 0. Blank space at both
 * ends does not count.
 */
export function changed(a, b) {
  const left = a.map((line) => line.trim()), right = b.map((line) => line.trim());
  if (left.length > LONGEST || right.length > LONGEST) return [new Set(), new Set()];
  // The longest common subsequence, from the end: common[i][j] is its length in left[i..],
  // right[j..].
  const common = Array.from({ length: left.length + 1 }, () => new Uint16Array(right.length + 1));
  for (let i = left.length - 1; i >= 0; i--) {
    for (let j = right.length - 1; j >= 0; j--) {
      common[i][j] = left[i] === right[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
    }
  }
  const onlyLeft = new Set(), onlyRight = new Set();
  let i = 0, j = 0;
  while (i < left.length || j < right.length) {
    if (i < left.length && j < right.length && left[i] === right[j]) { i += 1; j += 1; }
    else if (j >= right.length || (i < left.length && common[i + 1][j] >= common[i][j + 1])) { if (left[i]) onlyLeft.add(i); i += 1; }
    else { if (right[j]) onlyRight.add(j); j += 1; }
  }
  return [onlyLeft, onlyRight];
}
