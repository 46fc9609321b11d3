// SPDX-License-Identifier: Apache-2.0
// The marks by which chat templates tell messages and their parts apart, and where they are in a text.

/**
 * Marks that begin a message: the role that the mark names, or the end of the role's name after it. Only one token of the vocabulary is
 * such a mark: a text that looks like one is text to the model, too. One that `isInner` may follow the mark of a list, of the same role.
 */
const BEGINS = new Map([
  // ChatML and Phi 4, Gemma, MiniMax, Llama 3 and 4, Kimi, gpt-oss
  ["<|im_start|>", { until: /\n|<\|im_sep\|>/ }], ["<start_of_turn>", { until: /\n/ }], ["]~b]", { until: /\n/ }],
  ["<|start_header_id|>", { until: /<\|end_header_id\|>/ }], ["<|header_start|>", { until: /<\|header_end\|>/ }],
  ["<|im_system|>", { until: /<\|im_middle\|>/ }], ["<|im_user|>", { until: /<\|im_middle\|>/ }], ["<|im_assistant|>", { until: /<\|im_middle\|>/ }],
  ["<|start|>", { until: /<\|message\|>/ }],
  // GLM, Phi, DeepSeek, Mistral
  ["<|system|>", { role: "system" }], ["<|user|>", { role: "user" }], ["<|assistant|>", { role: "assistant" }], ["<|observation|>", { role: "observation" }],
  ["<｜User｜>", { role: "user" }], ["<｜Assistant｜>", { role: "assistant" }],
  ["[SYSTEM_PROMPT]", { role: "system" }], ["[AVAILABLE_TOOLS]", { role: "tool definitions" }], ["[INST]", { role: "user" }], ["[/INST]", { role: "assistant" }],
  ["[TOOL_RESULTS]", { role: "tool" }], ["<｜tool▁outputs▁begin｜>", { role: "tool" }], ["<｜tool▁output▁begin｜>", { role: "tool", isInner: true }],
]);

/** Marks that end a message, also tokens. */
const ENDS = new Set([
  "<|im_end|>", "<end_of_turn>", "[e~[", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|eom|>", "<|end|>", "<|return|>", "<|call|>", "<｜end▁of▁sentence｜>",
  "</s>", "<|endoftext|>", "<|end_of_text|>", "[/SYSTEM_PROMPT]", "[/AVAILABLE_TOOLS]",
]);

/** Marks that end the message of a tool. The text after them is the assistant's. */
const RESULT_ENDS = ["[/TOOL_RESULTS]", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁end｜>"];

/** Marks of the beginning of a prompt. */
const STARTS = new Set(["<|begin_of_text|>", "<bos>", "<s>", "[gMASK]", "<sop>", "<｜begin▁of▁sentence｜>", "]~!b["]);

/** Whether a text has marks of the beginning of a prompt only. */
export function isStart(text) {
  let rest = text;
  for (const mark of STARTS) rest = rest.replaceAll(mark, "");
  return rest.trim() === "";
}

/** Parts of messages. `by` says whose messages have them. A part without an end mark extends to the end of its message. */
const PARTS = [
  { name: "reasoning", by: "assistant", from: "<think>", to: "</think>" }, { name: "reasoning", by: "assistant", from: "[THINK]", to: "[/THINK]" },
  { name: "tool call", by: "assistant", from: "<tool_call>", to: "</tool_call>" },
  { name: "tool call", by: "assistant", from: "<minimax:tool_call>", to: "</minimax:tool_call>" },
  { name: "tool calls", by: "assistant", from: "<|tool_calls_section_begin|>", to: "<|tool_calls_section_end|>" },
  { name: "tool calls", by: "assistant", from: "<｜tool▁calls▁begin｜>", to: "<｜tool▁calls▁end｜>" },
  { name: "tool calls", by: "assistant", from: "<｜DSML｜function_calls>", to: "</｜DSML｜function_calls>" },
  { name: "tool calls", by: "assistant", from: "<｜DSML｜tool_calls>", to: "</｜DSML｜tool_calls>" },
  { name: "tool calls", by: "assistant", from: "[TOOL_CALLS]", to: null }, { name: "tool call", by: "assistant", from: "<|python_tag|>", to: null },
  { name: "tool result", by: "user", from: "<tool_response>", to: "</tool_response>" },
  { name: "tool definitions", by: "system", from: "<tools>", to: "</tools>" }, { name: "tool definitions", by: "system", from: "<|tool|>", to: "<|/tool|>" },
];

/** The maximum number of characters from a mark to the end of the role that follows it. */
const ROLE = 160;

/** The role that follows a mark in `text` and the end of the heading, as `{role, end}`; null if it has no end yet, or none near the mark. */
export function roleAfter(text, from, until) {
  const found = until.exec(text.slice(from, from + ROLE));
  return found && { role: found.input.slice(0, found.index).trim() || "no name", end: from + found.index + found[0].length };
}

const escaped = (text) => text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");

/**
 * All marks of a text in their order: `{index, mark, kind, ...}`, where `kind` is "begins", "ends", "opens" or "closes". `next` is the
 * role of the text after an end; null if that is outside of a message. `thinking` are the texts of the tokens that begin and end thinking, if
 * they are known.
 */
export function marks(text, thinking) {
  const parts = thinking ? [...PARTS, { name: "reasoning", by: "assistant", from: thinking[0], to: thinking[1] }] : PARTS;
  const known = new Map([...BEGINS].map(([mark, more]) => [mark, { kind: "begins", ...more }]));
  for (const mark of ENDS) known.set(mark, { kind: "ends", next: null });
  for (const mark of RESULT_ENDS) known.set(mark, { kind: "ends", next: "assistant" });
  for (const part of parts) {
    known.set(part.from, { kind: "opens", part });
    if (part.to) known.set(part.to, { kind: "closes" });
  }
  // of two marks at one place the longer one
  const pattern = new RegExp([...known.keys()].sort((a, b) => b.length - a.length).map(escaped).join("|"), "gu");
  return Array.from(text.matchAll(pattern), ({ 0: mark, index }) => ({ index, mark, ...known.get(mark) }));
}
