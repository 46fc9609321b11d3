// SPDX-License-Identifier: Apache-2.0
// Polls running sequences while the page is visible: the list once a second, a followed sequence a few times a second.

import { get } from "./api.js";

/** Milliseconds between polls of the list, and of a followed sequence. */
const [LOOK, FOLLOW] = [1500, 350];

/** Runs `look` repeatedly while the page is visible. Each run starts after the previous one has ended. Failed runs are retried. */
export function watch(look) {
  setInterval(async () => {
    if (looking || document.visibilityState !== "visible") return;
    looking = true;
    await look().catch(() => {});
    looking = false;
  }, LOOK);
}

let looking = false;

/** Follows a running sequence. Calls `onTokens` with the number of new tokens, and at the end. */
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
      // a sequence that no longer exists has ended
      const reply = await get(path).catch(() => ({ entropy: [], finished: true }));
      if (this.stopped) return;
      if (reply.entropy.length) this.trajectory.append(reply.token_ids, reply.entropy.map((value) => value ?? NaN));
      await this.onTokens(reply.entropy.length, reply.finished);
      if (reply.finished) return;
      await new Promise((resolve) => setTimeout(resolve, Math.max(50, FOLLOW - (performance.now() - started))));
    }
  }
}
