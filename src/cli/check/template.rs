// SPDX-License-Identifier: Apache-2.0
//! Reports how the chat template renders tools and a final assistant message.

use super::{Report, Verdict};
use crate::tokenizer::{FinalAssistantMessage, Renderer, ToolDisplay};

/// Reports in which conversations the template renders tools. Tools that it ignores are missing from the prompt without an error.
pub(super) fn tools(renderer: &Renderer, report: &mut Report) {
    const REMEDY: &str = "describe tools in a system message, or give --tokenizer a folder whose template shows them";
    let (verdict, text) = match renderer.check_tools() {
        ToolDisplay::Always => (Verdict::Ok, "shown to the model by the chat template".to_owned()),
        ToolDisplay::WithSystemMessage => (
            Verdict::Warn,
            "the chat template shows tools only in conversations with a system message: send one".to_owned(),
        ),
        ToolDisplay::WithoutSystemMessage => {
            (Verdict::Warn, format!("the chat template ignores tools in conversations with a system message: {REMEDY}"))
        }
        ToolDisplay::Never => (
            Verdict::Warn,
            format!(
                "the chat template ignores tools: the model does not see them, nor through SGLang's endpoint; {REMEDY}"
            ),
        ),
        ToolDisplay::Refused => (Verdict::Warn, format!("the chat template rejects tools: {REMEDY}")),
    };
    report.line(verdict, "tools", text);
}

/// Reports how a final assistant message is rendered without `continue_final_message`.
pub(super) fn final_assistant_message(renderer: &Renderer, report: &mut Report) {
    let (verdict, text) = match renderer.check_final_assistant_message() {
        FinalAssistantMessage::BeginsTurn => (Verdict::Ok, "is an assistant turn, and the reply is another"),
        FinalAssistantMessage::Continues => (Verdict::Ok, "is continued by the reply"),
        FinalAssistantMessage::NoTurn => (
            Verdict::Warn,
            "is an assistant turn, after which the chat template begins no other: the reply follows its end",
        ),
        FinalAssistantMessage::Omitted => (Verdict::Warn, "is left out by the chat template"),
        FinalAssistantMessage::Refused => (Verdict::Warn, "is rejected by the chat template"),
    };
    let text = format!(
        "a final assistant message {text}; SGLang 0.5.23's own endpoint makes it a user message; continue_final_message continues it"
    );
    report.line(verdict, "chat", text);
}
