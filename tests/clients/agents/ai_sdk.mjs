// SPDX-License-Identifier: Apache-2.0
// Vercel's AI SDK with the provider of the API CLIENT_API: generateText and streamText alternately.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { base, check, fahrenheit, key, model, system, users, weather } from "./scenario.mjs";

const providers = {
  chat: () => createOpenAICompatible({ name: "tokentap", baseURL: base, apiKey: key }),
  messages: () => createAnthropic({ baseURL: base, apiKey: key }),
  responses: () => createOpenAI({ baseURL: base, apiKey: key }),
};
const provider = providers[process.env.CLIENT_API]();
const tools = {
  weather: tool({ description: "Weather of a city", inputSchema: z.object({ city: z.string() }), execute: weather }),
  fahrenheit: tool({ description: "Converts", inputSchema: z.object({ celsius: z.number() }), execute: fahrenheit }),
};
// the model is unknown to the provider, and the server stores no responses
const providerOptions = { openai: { store: false, forceReasoning: true, include: ["reasoning.encrypted_content"] } };
// ai 7 has the messages of all steps in responseMessages, and only those of the last step in response; ai 6 has all in response
const newMessages = async (result) => (await result.responseMessages) ?? (await result.response).messages;
const messages = [];
for (const [turn, user] of users.entries()) {
  messages.push({ role: "user", content: user });
  const request = { model: provider(model), system, messages, tools, providerOptions, stopWhen: stepCountIs(8), maxRetries: 0 };
  if (turn === 1) {
    const result = streamText(request);
    check(turn, await result.text);
    messages.push(...(await newMessages(result)));
  } else {
    const result = await generateText(request);
    check(turn, result.text);
    messages.push(...(await newMessages(result)));
  }
}
