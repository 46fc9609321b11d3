// SPDX-License-Identifier: Apache-2.0
// LangChain's createAgent with ChatOpenAI, and a checkpointer that keeps the thread; invoke() and stream().
import { MemorySaver } from "@langchain/langgraph";
import { ChatOpenAI } from "@langchain/openai";
import { createAgent, tool } from "langchain";
import { z } from "zod";
import { base, check, fahrenheit, key, model, system, users, weather } from "./scenario.mjs";

const tools = [
  tool(weather, { name: "weather", description: "Weather of a city", schema: z.object({ city: z.string() }) }),
  tool(fahrenheit, { name: "fahrenheit", description: "Converts", schema: z.object({ celsius: z.number() }) }),
];
const chat = new ChatOpenAI({ model, apiKey: key, configuration: { baseURL: base }, maxRetries: 0 });
const agent = createAgent({ model: chat, tools, systemPrompt: system, checkpointer: new MemorySaver() });
const thread = { configurable: { thread_id: "one" } };
for (const [turn, content] of users.entries()) {
  const input = { messages: [{ role: "user", content }] };
  let messages;
  if (turn === 1) {
    for await (const state of await agent.stream(input, { ...thread, streamMode: "values" })) messages = state.messages;
  } else {
    ({ messages } = await agent.invoke(input, thread));
  }
  check(turn, messages.at(-1).content);
}
