// What is running: looked for once a second, followed a few times a second, and only while somebody looks.

import { get } from "./api.js";

/** Milliseconds between looks at what there is, and at what is followed. */
const [LOOK, FOLLOW] = [1500, 350];

/** Runs `look` again and again while the page is seen; each time begins when the last is over. What fails is tried again. */
export function watch(look) {
  setInterval(async () => {
    if (looking || document.visibilityState !== "visible") return;
    looking = true;
    await look().catch(() => {});
    looking = false;
  }, LOOK);
}

let looking = false;

/** Follows a running sequence: `onTokens` is told what is new, and the end. */
export class Follower {
  constructor({ rid, index }, trajectory, onTokens) {
    Object.assign(this, { rid, index, trajectory, onTokens });
    this.stopped = false;
    this.#go();
  }

  stop() {
    this.stopped = true;
  }

  async #go() {
    while (!this.stopped) {
      const started = performance.now();
      const since = this.trajectory.loaded;
      const path = `/v1/requests/${encodeURIComponent(this.rid)}/entropy?since=${since}&index=${this.index}`;
      // what cannot be asked for any more has ended
      const said = await get(path).catch(() => ({ entropy: [], finished: true }));
      if (this.stopped) return;
      if (said.entropy.length) this.trajectory.append(said.token_ids, said.entropy.map((value) => value ?? NaN));
      await this.onTokens(said.entropy.length, said.finished);
      if (said.finished) return;
      await new Promise((resolve) => setTimeout(resolve, Math.max(50, FOLLOW - (performance.now() - started))));
    }
  }
}
