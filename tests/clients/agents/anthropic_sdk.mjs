// SPDX-License-Identifier: Apache-2.0
// The Anthropic SDK for JavaScript, non-streaming and streaming alternately.
import Anthropic from "@anthropic-ai/sdk";
import { check, fahrenheit, key, model, root, system, users, weather } from "./scenario.mjs";

const client = new Anthropic({ baseURL: root, apiKey: key, maxRetries: 0 });
const functions = { weather, fahrenheit };
const describe = (name, properties) => ({
  name,
  input_schema: { type: "object", properties, required: Object.keys(properties) },
});
const tools = [describe("weather", { city: { type: "string" } }), describe("fahrenheit", { celsius: { type: "integer" } })];
const messages = [];
for (const [turn, user] of users.entries()) {
  messages.push({ role: "user", content: user });
  for (let call = 0; ; call += 1) {
    const request = { model, system, messages, tools, max_tokens: 4096 };
    const message = call % 2 ? await client.messages.stream(request).finalMessage() : await client.messages.create(request);
    messages.push({ role: "assistant", content: message.content });
    const uses = message.content.filter(({ type }) => type === "tool_use");
    if (!uses.length) {
      check(turn, message.content.map((block) => block.text ?? "").join(""));
      break;
    }
    const results = uses.map(({ id, name, input }) => ({
      type: "tool_result",
      tool_use_id: id,
      content: functions[name](input),
    }));
    messages.push({ role: "user", content: results });
  }
}
