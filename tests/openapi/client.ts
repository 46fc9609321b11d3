// SPDX-License-Identifier: Apache-2.0
// Calls a `tokentap demo` with the client that @hey-api/openapi-ts generated: `client.js DATA CONTROL TOKEN`.

import { createClient } from "./tokentap-client/client";
import * as api from "./tokentap-client";

declare const process: { argv: string[]; exitCode: number };
const [dataUrl, controlUrl, token] = process.argv.slice(2);
const data = createClient({ baseUrl: dataUrl });
const control = createClient({ baseUrl: controlUrl, auth: token });

function check(condition: unknown, about: unknown): asserts condition {
  if (!condition) throw new Error(JSON.stringify(about));
}

async function run(): Promise<void> {
  const reply = await api.generate({
    client: data,
    headers: { "X-Session-Id": "typescript" },
    body: { text: "The lamp", sampling_params: { max_new_tokens: 4 } },
  });
  check(reply.data && !Array.isArray(reply.data), reply.error);
  const entropies: Array<number | null> = reply.data.meta_info.output_token_entropy ?? [];
  check(entropies.length === 4 && entropies.every((entropy) => entropy !== null && entropy > 0), reply.data);
  check(reply.data.meta_info.entropy_info?.estimator === "estimate", reply.data);

  const listed = await api.listSessions({ client: control, query: { where: "session=typescript" } });
  check(listed.data?.sessions.map((session) => session.session).join() === "typescript", listed);
  await api.setReward({ client: control, path: { id: "typescript" }, body: { reward: 0.5 } });
  const paths = await api.getTrajectories({ client: control, path: { id: "typescript" } });
  check(paths.data?.trajectories[0].reward === 0.5, paths);
  check(paths.data.trajectories[0].entropy.slice(-4).join() === entropies.join(), paths.data);

  const samples = await api.exportSamples({ client: control, body: { format: "strands", sessions: ["typescript"] } });
  check(samples.data?.samples.length === 1, samples);
  await api.freezeSession({ client: control, path: { id: "typescript" } });
  const lines = await api.finishedPaths({ client: control, parseAs: "text" });
  const sessions = lines.data?.trim().split("\n").map((line) => JSON.parse(line).session);
  check(sessions?.includes("typescript"), lines);
  const rows = await api.measureEntropy({ client: control, body: { logits: [[1, 1]] } });
  check(rows.data && "entropy" in rows.data && Math.abs(rows.data.entropy[0]! - Math.LN2) < 1e-12, rows);

  const missing = await api.getSession({ client: control, path: { id: "none" } });
  check(missing.response?.status === 404 && missing.error?.error.code === "no_such_session", missing);
  const denied = await api.listSessions({ client: createClient({ baseUrl: controlUrl }) });
  check(denied.response?.status === 401 && denied.error?.error.code === "denied", denied);
  const refused = await api.generate({ client: data, body: { text: "a", entropy_options: { top_k: 0 } } });
  const cause = refused.error?.error;
  check(typeof cause === "object" && cause.message.includes("top_k"), refused);
  console.log("clients: the one in TypeScript generates, lists, rewards, exports, measures and reads errors");
}

run().catch((error: unknown) => {
  console.error(error);
  process.exitCode = 1;
});
