// SPDX-License-Identifier: Apache-2.0
//! Renders conversations for DeepSeek V3.2 and V4, which ship code in place of a chat template.
//!
//! The texts are those of DeepSeek's own encoders, with which the models were trained: `encoding_dsv32.py` in the repository of DeepSeek V3.2,
//! and the package deepseek-recipe (MIT licence, in `deepseek.LICENSE`). `make templates` compares the results. A conversation that the
//! encoders refuse for a missing thought, or for arguments that are no object, is rendered.

use std::borrow::Cow;
use std::collections::HashMap;

use super::{RenderError, Setting};
use crate::json::{self, DumpStyle, Value};

/// The encoding of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// That of DeepSeek V3.2.
    V32,
    /// That of DeepSeek V4.
    V4,
}

const BOS: &str = "<｜begin▁of▁sentence｜>";
const EOS: &str = "<｜end▁of▁sentence｜>";
const USER: &str = "<｜User｜>";
const ASSISTANT: &str = "<｜Assistant｜>";
const THINK: &str = "<think>";
const THINK_END: &str = "</think>";

/// The text before the definitions of tools for V3.2.
const V32_TOOLS: &str = "\n\n## Tools\n\
You have access to a set of tools you can use to answer the user's question.\n\
You can invoke functions by writing a \"<｜DSML｜function_calls>\" block like the following as part of your reply to the user:\n\
<｜DSML｜function_calls>\n\
<｜DSML｜invoke name=\"$FUNCTION_NAME\">\n\
<｜DSML｜parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</｜DSML｜parameter>\n\
...\n\
</｜DSML｜invoke>\n\
<｜DSML｜invoke name=\"$FUNCTION_NAME2\">\n\
...\n\
</｜DSML｜invoke>\n\
</｜DSML｜function_calls>\n\
String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should use JSON format. \
The \"string\" attribute should be set to \"true\" for string type parameters and \"false\" for other types (numbers, booleans, arrays, objects).\n\
If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. Here is an example:\n\
<｜DSML｜function_calls>\n\
...\n\
</｜DSML｜function_calls>\n\
<function_results>\n\
...\n\
</function_results>\n\
<think>...thinking about results</think>\n\
Here are the functions available in JSONSchema format:\n\
<functions>\n";

const V32_TOOLS_END: &str = "\n</functions>\n";

/// The text before the definitions of tools for V4.
const V4_TOOLS: &str = "\n\n## Tools\n\n\
You have access to a set of tools to help answer the user's question. \
You can invoke tools by writing a \"<｜DSML｜tool_calls>\" block like the following:\n\n\
<｜DSML｜tool_calls>\n\
<｜DSML｜invoke name=\"$TOOL_NAME\">\n\
<｜DSML｜parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</｜DSML｜parameter>\n\
...\n\
</｜DSML｜invoke>\n\
<｜DSML｜invoke name=\"$TOOL_NAME2\">\n\
...\n\
</｜DSML｜invoke>\n\
</｜DSML｜tool_calls>\n\n\
String parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, booleans, arrays, objects), \
pass the value in JSON format and set `string=\"false\"`.\n\n\
If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> \
BEFORE any tool calls or final response.\n\n\
Otherwise, output directly after </think> with tool calls or final response.\n\n\
### Available Tool Schemas\n\n";

const V4_TOOLS_END: &str =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";

/// The start of a prompt of V4 that thinks, by effort.
const V4_HIGH_EFFORT: &str = "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n\
You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, \
rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n\
Explicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, \
and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n";

const V4_MAX_EFFORT: &str = "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n\
You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: \
exhaustively decompose the problem into its most fundamental components, trace every causal chain to its root, \
and resolve the underlying cause rather than any surface symptom.\n\
Do not stop reasoning until you have independently verified the solution from multiple angles and are certain that \
no assumption remains unchecked and no error remains undiscovered.\n\n";

impl Encoding {
    /// Whether the texts contain `text`, or the variables.
    pub(super) fn mentions(self, text: &str) -> bool {
        let (tools, variables) = match self {
            Self::V32 => (V32_TOOLS, &["thinking"][..]),
            Self::V4 => (V4_TOOLS, &["thinking", "reasoning_effort"][..]),
        };
        variables.contains(&text) || tools.contains(text)
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// [`RenderError::Refused`].
    pub(super) fn render(self, messages: &[Value], setting: Setting<'_>) -> Result<String, RenderError> {
        // as SGLang for V3.2, and DeepSeek's encoder of V4
        let between_parts = if self == Self::V32 { " " } else { "\n\n" };
        let messages =
            messages.iter().map(|message| Message::new(message, between_parts)).collect::<Result<Vec<_>, _>>()?;
        let variable = |name: &str| setting.extra.iter().rev().find(|(variable, _)| variable == name);
        let thinks = variable("thinking").is_some_and(|(_, value)| *value == Value::Bool(true));
        let effort = variable("reasoning_effort").and_then(|(_, value)| value.as_str());
        let mut text = BOS.to_owned();
        match self {
            Self::V32 => V32 { messages: &messages, thinks, generation_prompt: setting.generation_prompt }
                .render(setting.tools, &mut text)?,
            Self::V4 => V4 { messages: &messages, thinks, effort, setting }.render(&mut text),
        }
        Ok(text)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    System,
    User,
    Assistant,
    Tool,
}

/// A message of a conversation.
struct Message<'a> {
    role: Role,
    content: Cow<'a, str>,
    reasoning: &'a str,
    calls: &'a [Value],
    /// The id of the call that it answers.
    call_id: Option<&'a str>,
}

impl<'a> Message<'a> {
    fn new(value: &'a Value, between_parts: &str) -> Result<Self, RenderError> {
        let role = match value.get_str("role").unwrap_or_default() {
            "system" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "tool" => Role::Tool,
            role => return Err(refused(&format!("the model has no role {role:?}"))),
        };
        let content = match value.get("content") {
            Some(Value::String(text)) => Cow::Borrowed(text.as_str()),
            Some(Value::Array(parts)) => {
                let parts: Vec<&str> = parts.iter().filter_map(|part| part.get_str("text")).collect();
                Cow::Owned(parts.join(between_parts))
            }
            _ => Cow::Borrowed(""),
        };
        Ok(Self {
            role,
            content,
            reasoning: value.get_str("reasoning_content").unwrap_or_default(),
            calls: value.get("tool_calls").and_then(Value::as_array).unwrap_or_default(),
            call_id: value.get_str("tool_call_id"),
        })
    }
}

fn refused(why: &str) -> RenderError {
    RenderError::Refused(why.to_owned())
}

/// How an encoding writes calls.
struct CallStyle {
    numbers: DumpStyle,
    /// What a call without parameters has in their place.
    no_parameters: &'static str,
}

const V32_CALLS: CallStyle = CallStyle { numbers: DumpStyle::Unicode, no_parameters: "\n" };
const V4_CALLS: CallStyle = CallStyle { numbers: DumpStyle::Serde, no_parameters: "" };

/// Appends a call.
fn push_call(call: &Value, style: &CallStyle, text: &mut String) {
    let function = call.get("function").unwrap_or(call);
    text.push_str("<｜DSML｜invoke name=\"");
    text.push_str(function.get_str("name").unwrap_or_default());
    text.push_str("\">\n");
    let mut parameter = |name: &str, value: &Value| {
        let (is_string, value) = match value {
            Value::String(text) => ("true", Cow::Borrowed(text.as_str())),
            value => ("false", Cow::Owned(json::dumps(value, style.numbers))),
        };
        let parts =
            ["<｜DSML｜parameter name=\"", name, "\" string=\"", is_string, "\">", &value, "</｜DSML｜parameter>\n"];
        text.extend(parts);
    };
    let arguments = function.get("arguments");
    let parsed = arguments.and_then(Value::as_str).and_then(|raw| Value::parse(raw.as_bytes()).ok());
    match parsed.as_ref().filter(|value| matches!(value, Value::Object(_))).or(arguments) {
        Some(Value::Object(members)) if !members.is_empty() => {
            members.iter().for_each(|(name, value)| parameter(name, value));
        }
        // as the encoder of V4 writes arguments that are not an object
        Some(Value::String(raw)) if !raw.trim().is_empty() => parameter("arguments", &Value::String(raw.clone())),
        _ => text.push_str(style.no_parameters),
    }
    text.push_str("</｜DSML｜invoke>\n");
}

/// A conversation in the encoding of V3.2. A user message ends with the start of the assistant's, and so does the last result of a turn's calls.
struct V32<'a> {
    messages: &'a [Message<'a>],
    thinks: bool,
    generation_prompt: bool,
}

impl V32<'_> {
    fn render(&self, tools: Option<&[Value]>, text: &mut String) -> Result<(), RenderError> {
        let last_user = self.messages.iter().rposition(|message| message.role == Role::User);
        if self.messages.first().is_none_or(|first| first.role != Role::System) {
            push_v32_tools(tools, text);
        }
        let mut is_leading = true;
        // the last message that is no result, and the number of its calls
        let (mut turn, mut calls) = (0, 0);
        for (at, message) in self.messages.iter().enumerate() {
            is_leading &= message.role == Role::System;
            if message.role != Role::Tool {
                (turn, calls) = (at, message.calls.len());
            }
            // without a user message, all messages are after it
            let is_after_user = last_user.is_none_or(|user| at > user);
            match message.role {
                Role::System => {
                    if !is_leading {
                        return Err(refused("system messages are only at the beginning"));
                    }
                    text.push_str(&message.content);
                    push_v32_tools(tools.filter(|_| at == 0), text);
                }
                Role::User => {
                    text.extend([USER, &message.content]);
                    self.push_reply_start(at, ASSISTANT, last_user == Some(at), text);
                }
                Role::Assistant => {
                    if self.thinks && is_after_user {
                        text.extend([message.reasoning, THINK_END]);
                    }
                    text.push_str(&message.content);
                    if !message.calls.is_empty() {
                        text.push_str("\n\n<｜DSML｜function_calls>\n");
                        message.calls.iter().for_each(|call| push_call(call, &V32_CALLS, text));
                        text.push_str("</｜DSML｜function_calls>");
                    }
                    text.push_str(EOS);
                }
                Role::Tool => {
                    let index = at - turn;
                    if calls < index || calls == 0 {
                        return Err(refused("a result has no call"));
                    }
                    if index == 1 {
                        text.push_str("\n\n<function_results>");
                    }
                    text.extend(["\n<result>", &message.content, "</result>"]);
                    if index == calls {
                        text.push_str("\n</function_results>");
                        self.push_reply_start(at, "\n\n", is_after_user, text);
                    }
                }
            }
        }
        Ok(())
    }

    /// Appends the start of the reply to the message at `at`, unless it is the last one and no reply begins.
    fn push_reply_start(&self, at: usize, separator: &str, is_last_user: bool, text: &mut String) {
        if at + 1 < self.messages.len() || self.generation_prompt {
            text.extend([separator, if self.thinks && is_last_user { THINK } else { THINK_END }]);
        }
    }
}

fn push_v32_tools(tools: Option<&[Value]>, text: &mut String) {
    let Some(tools) = tools.filter(|tools| !tools.is_empty()) else { return };
    text.push_str(V32_TOOLS);
    let tools = tools.iter().map(|tool| json::dumps(tool.get("function").unwrap_or(tool), DumpStyle::Unicode));
    text.push_str(&tools.collect::<Vec<_>>().join("\n"));
    text.push_str(V32_TOOLS_END);
}

/// A conversation in the encoding of V4. The results of calls are parts of a user message.
struct V4<'a> {
    messages: &'a [Message<'a>],
    thinks: bool,
    effort: Option<&'a str>,
    setting: Setting<'a>,
}

impl V4<'_> {
    fn render(&self, text: &mut String) {
        if self.thinks {
            text.push_str(match self.effort {
                Some("minimal" | "low") => "",
                Some("max") => V4_MAX_EFFORT,
                _ => V4_HIGH_EFFORT,
            });
        }
        let system = self.messages.iter().filter(|message| message.role == Role::System && !message.content.is_empty());
        text.push_str(&system.map(|message| &*message.content).collect::<Vec<_>>().join("\n\n"));
        let tools = self.setting.tools.filter(|tools| !tools.is_empty());
        if let Some(tools) = tools {
            text.push_str(V4_TOOLS);
            text.push_str(&tools.iter().map(v4_tool).collect::<Vec<_>>().join("\n"));
            text.push_str(V4_TOOLS_END);
        }
        let messages: Vec<&Message<'_>> = self.messages.iter().filter(|message| message.role != Role::System).collect();
        let mut calls: &[Value] = &[];
        for turn in messages.chunk_by(|a, b| (a.role == Role::Assistant) == (b.role == Role::Assistant)) {
            if turn[0].role == Role::Assistant {
                turn.iter().for_each(|message| self.push_reply(message, tools.is_some(), text));
                calls = turn.last().map_or(&[], |message| message.calls);
            } else {
                push_user_turn(turn, calls, text);
            }
        }
        if self.setting.generation_prompt {
            text.extend([ASSISTANT, if self.thinks { THINK } else { THINK_END }]);
        }
    }

    /// Appends an assistant message. Its thought is left out without tools.
    fn push_reply(&self, message: &Message<'_>, has_tools: bool, text: &mut String) {
        text.push_str(ASSISTANT);
        if self.thinks && has_tools {
            text.extend([THINK, message.reasoning]);
        }
        text.extend([THINK_END, &message.content]);
        if !message.calls.is_empty() {
            text.push_str("\n\n<｜DSML｜tool_calls>\n");
            message.calls.iter().for_each(|call| push_call(call, &V4_CALLS, text));
            text.push_str("</｜DSML｜tool_calls>");
        }
        text.push_str(EOS);
    }
}

/// Appends the messages between two replies. Results are in the order of the calls.
fn push_user_turn(messages: &[&Message<'_>], calls: &[Value], text: &mut String) {
    // reversed, so that the first of several calls with the same id is kept
    let places: HashMap<&str, usize> =
        calls.iter().enumerate().rev().filter_map(|(at, call)| Some((call.get_str("id")?, at))).collect();
    let place = |result: &&Message<'_>| result.call_id.and_then(|id| places.get(id));
    let mut parts = Vec::new();
    for group in messages.chunk_by(|a, b| a.role == b.role) {
        let mut group = group.to_vec();
        if group[0].role == Role::Tool {
            group.sort_by_key(place);
            parts.extend(group.iter().map(|result| format!("<tool_result>{}</tool_result>", result.content)));
        } else {
            let texts = group.iter().map(|message| &*message.content).filter(|text| !text.is_empty());
            parts.push(texts.collect::<Vec<_>>().join("\n\n"));
        }
    }
    text.push_str(USER);
    text.push_str(&parts.join("\n\n"));
}

/// The definition of a tool.
fn v4_tool(tool: &Value) -> String {
    let function = tool.get("function").unwrap_or(tool);
    let member = |name: &str| function.get(name).filter(|value| **value != Value::Null).cloned();
    let definition = Value::object([
        ("name", member("name").unwrap_or_default()),
        ("description", member("description").unwrap_or_else(|| "".into())),
        ("parameters", member("parameters").unwrap_or_else(|| Value::Object(Vec::new()))),
    ]);
    json::dumps(&definition, V4_CALLS.numbers)
}
