// The lock theatre: a lesson stepped through, read, changed, printed.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { axe, staged, visitorOf } from './lab-support.mjs';
import { eventually, tooSmall } from './support.mjs';

export function theatre(stage) {
  const visit = visitorOf(stage);

  describe('the lock theatre', () => {
    it('is stepped through by the keyboard alone, and says every step', async () => {
      const page = await visit();
      await page.goto('/lab/lessons/b03');
      await staged(page);
      const say = () => page.textContent('#say');
      const at = () => page.textContent('#where');
      assert.equal(await at(), 'Step 1 of 9');
      await page.keyboard.press('ArrowRight');
      await page.keyboard.press('ArrowRight');
      await page.keyboard.press('ArrowRight');
      assert.equal(await at(), 'Step 4 of 9');
      assert.match(await say(), /Step 4 of 9\. Client B to Redis\. SET lock:phone locked NX PX 200\. Reply: OK\. B takes the lock\..* Two hold the lock: Client A and Client B\./);
      assert.ok(await page.locator('#holders.overlap').isVisible());
      assert.match(await page.textContent('.code .line.runs'), /"SET", name/);
      assert.equal(await page.textContent('#file'), 'crates/locks/src/set_px_no_owner.rs:4');
      assert.match(await page.textContent('#keys'), /lock:phone.*locked.*Client B.*200 ms/);
      assert.equal(new URL(page.url()).hash, '#4');
      await page.keyboard.press('PageDown');
      assert.equal(await at(), 'Step 7 of 9');
      await page.keyboard.press('ArrowLeft');
      await page.locator('#verdict').getByText('Broken. B’s lock was deleted by A.').waitFor();
      await page.keyboard.press('End');
      await page.locator('#verdict').getByText('It holds.').waitFor();
      await page.keyboard.press('Home');
      assert.equal(await at(), 'Step 1 of 9');
      await page.leave();
    });

    it('is a diagram that grows: actors in columns and colours, the violation in words, the lease as a bar that shrinks', async () => {
      const page = await visit();
      await page.goto('/lab/lessons/b03');
      await staged(page);
      const rows = page.locator('.diagram .row');
      assert.equal(await rows.count(), 9);
      assert.equal(await page.locator('.diagram .row:not(.later)').count(), 1, 'what is still to come is not there yet');
      const colours = await page.locator('.cast .actor i').evaluateAll((signs) => signs.map((sign) => getComputedStyle(sign).backgroundColor));
      assert.equal(new Set(colours.slice(0, 2)).size, 2, 'two clients, two colours');
      for (let n = 0; n < 3; n++) await page.keyboard.press('ArrowRight');
      assert.equal(await page.locator('.diagram .row:not(.later)').count(), 4);
      assert.match(await rows.nth(3).locator('.violation').textContent(), /Two hold the lock: Client A and Client B/);
      assert.match(await rows.nth(3).locator('.meaning').textContent(), /free: Client B has it/);
      assert.equal(await page.locator('.diagram .violation').count(), 1, 'at the moment when it happens');
      assert.equal(await rows.nth(6).locator('.meaning').textContent(), '(reply lost: OK)', 'nobody was told that the lock is free');
      assert.equal(await page.textContent('#lease-words'), 'Client B’s lease: 200 ms left');
      await page.keyboard.press('ArrowLeft');
      assert.ok(await page.isVisible('#staged'), 'what was arranged says so');
      assert.ok(await page.isHidden('#lease'), 'nobody has it');
      const [stageBottom, controls] = await page.evaluate(() => [document.querySelector('.row.now').getBoundingClientRect().bottom, document.querySelector('.controls').getBoundingClientRect()].map((one) => one.bottom ?? one));
      assert.ok(stageBottom < controls && controls <= 900, 'the step and the controls are both in sight');
      await page.leave();
    });

    it('leads from the moment of the violation to the marked line, and says how often it was repeated', async () => {
      const page = await visit({}, { play: { repeats: 2 } });
      await page.goto('/lab/lessons/b03#4');
      await staged(page);
      await page.getByText('played again, 2 times').waitFor();
      await page.getByRole('button', { name: 'Which line?' }).click();
      await page.locator('#marks .marked.flaw .line.marked', { hasText: 'SELECT stock' }).waitFor();
      await page.keyboard.press('End');
      await page.locator('#marks .marked.cure').waitFor(); // the act of the cure shows the cure
      assert.match(await page.locator('#prices tr').first().textContent(), /breaks.*3 to Redis/);
      await page.leave();
    });

    it('the marked lines of every act are one click away, also where nothing goes wrong', async () => {
      const page = await visit();
      await page.goto('/lab/lessons/b03#7');
      await staged(page);
      await page.locator('#marks .marked.cure').waitFor({ state: 'attached' });
      assert.ok(await page.locator('#holders.overlap').count() === 0, 'only one holds the lock');
      await page.getByRole('button', { name: 'Which line?' }).click();
      await eventually(() => page.locator('#marks .marked.cure .line.marked').evaluate((line) => { const { top } = line.getBoundingClientRect(); return top > 0 && top < innerHeight; }), 'the line is in sight');
      assert.equal(await page.evaluate(() => document.activeElement.id), 'h-marks');
      await page.leave();
    });

    it('ends with what the locks of each act cost, measured where somebody asks for it', async () => {
      const page = await visit();
      await page.goto('/lab/lessons/b03');
      await staged(page);
      const headings = await page.locator('#after h2:visible').allTextContents();
      assert.ok(headings.indexOf('The price, counted in this play') < headings.indexOf('The line'), `${headings}: the price, and then the line`);
      await page.getByRole('button', { name: 'Measure these locks' }).click();
      await page.locator('#prices tr').first().getByText('SET NX PX, plain DEL: 84 µs, n = 500').waitFor();
      await page.getByText('Median of 500 rounds, the locks in turns.').waitFor();
      await page.leave();
    });

    it('where a server is missing, it says what installs it and offers the recorded play', async () => {
      const page = await visit({}, { lesson: { available: { ok: false, why: 'no ZooKeeper runs here; apt install zookeeper', recorded: true } }, play: { recorded: true } });
      await page.goto('/lab/lessons/b03');
      await page.getByText('apt install zookeeper').waitFor();
      await page.getByRole('button', { name: 'Play the recording' }).click();
      await staged(page);
      assert.ok(await page.getByText('This is a recording').isVisible());
      await page.leave();
    });

    it('is readable from the last row and on a phone, named for axe, and printed whole', async () => {
      const page = await visit({ width: 1920, height: 1080, reducedMotion: 'reduce' });
      await page.goto('/lab/lessons/b03#4');
      await staged(page);
      assert.deepEqual(await tooSmall(page, '#theatre *'), []);
      await page.emulateMedia({ media: 'print' });
      // Paper has another width, at which the stage is laid anew.
      const styled = (what, property) => page.locator(what).first().evaluate((element, name) => getComputedStyle(element)[name], property);
      await eventually(async () => await styled('.diagram .row.later', 'visibility') === 'visible', 'all steps are printed');
      await eventually(async () => await styled('.lease-left', 'printColorAdjust') === 'exact', 'the bar is printed');
      await page.emulateMedia({ media: 'screen' });
      await page.setViewportSize({ width: 390, height: 780 });
      for (const y of [0, 300]) {
        await page.evaluate((to) => scrollTo(0, to), y);
        await eventually(() => page.locator('.controls').evaluate((one) => { const { top, bottom } = one.getBoundingClientRect(); return top > 0 && bottom <= innerHeight + 1; }), `the controls are in sight on a phone, ${y} px down`);
      }
      await page.evaluate(axe);
      const { violations } = await page.evaluate(() => globalThis.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'best-practice'], resultTypes: ['violations'] }));
      assert.deepEqual(violations.map(({ id, nodes }) => `${id}: ${nodes[0].html}`), []);
      await page.leave();
    });

    it('plays by itself until the end, at the speed that was chosen, and pauses', async () => {
      const page = await visit();
      await page.clock.install();
      await page.goto('/lab/lessons/b03');
      await staged(page);
      await page.selectOption('#speed', '4');
      await page.locator('body').press(' ');
      await page.getByRole('button', { name: 'Pause' }).waitFor();
      for (let step = 2; step <= 9; step++) {
        await page.clock.runFor(3000);
        await eventually(async () => Number((await page.textContent('#where')).match(/\d+/)[0]) >= step, `step ${step}`);
      }
      await page.getByRole('button', { name: 'Play', exact: true }).waitFor();
      await page.leave();
    });

    it('is also a table, with a link to each step', async () => {
      const page = await visit();
      await page.goto('/lab/lessons/b03');
      await staged(page);
      await page.getByText('All steps as a table').click();
      assert.equal(await page.locator('#rows tr').count(), 9);
      assert.match(await page.locator('#rows tr').nth(3).textContent(), /Client A and Client B two at once/);
      const link = page.getByRole('link', { name: 'Go to step 5' });
      assert.equal(new URL(await link.evaluate(({ href }) => href)).hash, '#5', 'a link that can be copied');
      await link.click();
      await eventually(async () => await page.textContent('#where') === 'Step 5 of 9', 'step 5');
      await page.leave();
    });

    it('plays again with one thing changed, and a link keeps both', async () => {
      const page = await visit();
      await page.goto('/lab/lessons/b03');
      await staged(page);
      await page.getByLabel('Lease of the lock, ms').fill('500');
      await page.getByLabel('Unique token').check();
      await page.getByRole('button', { name: 'Play again' }).click();
      await eventually(async () => /7f3a-a/.test(await page.textContent('#keys')), 'the new play');
      assert.deepEqual(page.asked.findLast(({ path }) => path.endsWith('/play')).body, { options: { lease_ms: 500, token: true } });
      await page.reload();
      await staged(page);
      assert.equal(await page.inputValue('#o-lease_ms'), '500');
      await page.leave();
    });

    it('the server’s refusal to play is said, with a way to try again', async () => {
      let times = 0;
      const page = await visit({ expected: ['status of 429'] }, { refuse: (_, path) => (path.endsWith('/play') && times++ === 0 ? { status: 429, code: 'rate_limited', headers: { 'retry-after': '2' } } : null) });
      await page.goto('/lab/lessons/b03');
      await page.getByText('Try again in 2 seconds').waitFor();
      await page.getByRole('button', { name: 'Try again' }).click();
      await staged(page);
      await page.goto('/lab/lessons/nonsense');
      await page.getByText('There is no such lesson').waitFor();
      await page.leave();
    });

    it('moves nothing for who wants less motion', async () => {
      const page = await visit({ reducedMotion: 'reduce' });
      await page.goto('/lab/lessons/b03#4');
      await staged(page);
      await page.keyboard.press('ArrowRight');
      assert.equal(await page.evaluate(() => document.getAnimations().length), 0);
      await page.leave();
    });
  });

  describe('the server’s own lessons', () => {
    it('every lesson is played and stepped to its end, and every act shows its marked line', async () => {
      const page = await stage.visit();
      const { lessons } = await (await page.request.get('/api/v1/lab/lessons')).json();
      for (const { id, available } of lessons) {
        await page.goto(`/lab/lessons/${id}`);
        if (!available.ok && !available.recorded) continue;
        if (!available.ok) await page.getByRole('button', { name: 'Play the recording' }).click();
        await page.waitForSelector('#theatre:not([hidden])', { timeout: 90_000 });
        const all = await page.locator('#rows tr').count();
        let played = 0, over = 0, before = null;
        for (let n = 1; n <= all; n++) {
          assert.equal(await page.textContent('#where'), `Step ${n} of ${all}`, id);
          assert.doesNotMatch(await page.locator('.now-box').innerText(), /undefined|NaN|\[object|\{\w+\}/, `${id}, step ${n}`);
          played += await page.isVisible('#staged');
          const said = await page.textContent('#explain'), step = await page.locator('#rows tr').nth(n - 1).evaluate(({ cells: [, who, sent] }) => ({ who: who.textContent, verb: sent.textContent.trim().split(/\s/)[0] }));
          assert.ok(['b01', 'b02'].includes(id) || before?.said !== said || before.who !== step.who || before.verb === step.verb, `${id}, step ${n}: the words of the step before`);
          before = { ...step, said };
          if (/The lease .*is over/.test(await page.textContent('#explain')) && ['b03', 'b04'].includes(id)) over += await page.isHidden('#lease');
          await page.keyboard.press('ArrowRight');
        }
        assert.ok(over > 0 || !['b03', 'b04'].includes(id), `${id}: a lease that runs out is seen to`);
        const broken = page.locator('.acts li:has(.act em.bad)'), marks = page.locator('.diagram .violation');
        assert.equal(await broken.locator('.quiet').count(), await broken.count(), `${id}: every act that breaks leads to the moment`);
        assert.equal(await marks.count(), await page.locator('.acts .quiet').count(), `${id}: and it is marked in the diagram`);
        assert.ok((await marks.allTextContents()).every((words) => /^✕ ..../.test(words)), `${id}: in words`);
        assert.equal(played, await page.locator('#rows .staged-mark').count(), `${id}: what is staged says so at its step and in the table`);
        await page.locator('#verdict').waitFor();
        if (id === 'b11') { // what Bob does after the orphan has kept him out is tidying up
          const orphan = page.locator('.acts li', { has: page.locator('.quiet') }).last();
          await orphan.locator('.act').click();
          await orphan.locator('.quiet').click();
          assert.match(await page.textContent('#explain'), /Bob lists the queue/);
          await page.keyboard.press('ArrowRight');
          assert.match(await page.textContent('#explain'), /Bob gives up/);
        }
        for (const act of await page.locator('.acts .act').all()) {
          await act.click();
          const kind = (await act.getAttribute('class')).includes('cure') && !(await act.getAttribute('class')).includes('flaw') ? 'cure' : 'flaw';
          await page.locator(`#marks .marked.${kind} .line.marked`).first().waitFor({ state: 'attached' });
        }
      }
      await page.goto('/lab/lessons/b03');
      await page.locator('.acts .quiet').first().click({ timeout: 60_000 });
      await page.locator('#holders.overlap').waitFor();
      await page.leave();
    });
  });
}
