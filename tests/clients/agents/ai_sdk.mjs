// Vercel's AI SDK with its OpenAI-compatible provider: generateText and streamText alternately.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { base, check, fahrenheit, key, model, system, users, weather } from "./scenario.mjs";

const provider = createOpenAICompatible({ name: "tokentap", baseURL: base, apiKey: key });
const tools = {
  weather: tool({ description: "Weather of a city", inputSchema: z.object({ city: z.string() }), execute: weather }),
  fahrenheit: tool({ description: "Converts", inputSchema: z.object({ celsius: z.number() }), execute: fahrenheit }),
};
const messages = [];
for (const [turn, user] of users.entries()) {
  messages.push({ role: "user", content: user });
  const request = { model: provider(model), system, messages, tools, stopWhen: stepCountIs(8) };
  if (turn === 1) {
    const result = streamText(request);
    check(turn, await result.text);
    messages.push(...(await result.response).messages);
  } else {
    const result = await generateText(request);
    check(turn, result.text);
    messages.push(...result.response.messages);
  }
}
