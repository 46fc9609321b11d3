// SPDX-License-Identifier: Apache-2.0
// The openai SDK for JavaScript, non-streaming and streaming alternately.
import OpenAI from "openai";
import { base, check, fahrenheit, key, model, system, users, weather } from "./scenario.mjs";

const client = new OpenAI({ baseURL: base, apiKey: key });
const functions = { weather, fahrenheit };
const describe = (name, properties) => ({
  type: "function",
  function: { name, parameters: { type: "object", properties, required: Object.keys(properties) } },
});
const tools = [describe("weather", { city: { type: "string" } }), describe("fahrenheit", { celsius: { type: "integer" } })];
const messages = [{ role: "system", content: system }];
for (const [turn, user] of users.entries()) {
  messages.push({ role: "user", content: user });
  for (;;) {
    const request = { model, messages, tools };
    const reply =
      messages.length % 2
        ? await client.chat.completions.create(request)
        : await client.chat.completions.stream(request).finalChatCompletion();
    const { message } = reply.choices[0];
    messages.push(message);
    if (!message.tool_calls?.length) {
      check(turn, message.content);
      break;
    }
    for (const call of message.tool_calls) {
      const content = functions[call.function.name](JSON.parse(call.function.arguments));
      messages.push({ role: "tool", tool_call_id: call.id, content });
    }
  }
}
