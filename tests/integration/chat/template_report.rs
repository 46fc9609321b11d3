// SPDX-License-Identifier: Apache-2.0
//! What `tokentap check` reports about the chat template.

use tokentap::demo::EngineOptions;

use super::super::support::binary::output;
use super::super::support::demo::Demo;
use super::TOKENIZER;

const IGNORED: &str = "warn  tools        the chat template ignores tools: the model does not see them";
const BEGINS_TURN: &str = "ok    chat         a final assistant message is an assistant turn, and the reply is another; \
                           SGLang 0.5.23's own endpoint makes it a user message";

/// ChatML. `MESSAGE` is before each message, `END` after it.
const CHATML: &str = "TOOLS{% for m in messages %}MESSAGE<|im_start|>{{ m.role }}\n{{ m.content }}END{% endfor %}\
                      {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
const END: &str = "<|im_end|>\n";

/// A template with this text before the conversation, before each message and after each message.
fn template(tools: &str, message: &str, end: &str) -> String {
    CHATML.replace("TOOLS", tools).replace("MESSAGE", message).replace("END", end)
}

#[tokio::test]
async fn check_reports_tools_and_final_assistant_messages_by_rendering() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    let upstream = format!("http://{}", demo.direct);
    let shown = "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}";
    // the name of a variable proves nothing: this template counts the tools
    let counted = "{% if tools %}{{ tools | length }} tools{% endif %}";
    let in_system = "{% if m.role == 'system' and tools %}{{ tools | tojson }}{% endif %}";
    let refusing = "{% if messages[-1].role == 'assistant' %}{{ raise_exception('no') }}{% endif %}";
    let generation_prompt_for_users = template("", "", END)
        .replace("add_generation_prompt", "add_generation_prompt and messages[-1].role != 'assistant'");
    let cases = [
        (template("", "", END), [IGNORED, BEGINS_TURN]),
        (template(shown, "", END), ["ok    tools        shown to the model", BEGINS_TURN]),
        (template(counted, "", END), [IGNORED, BEGINS_TURN]),
        (template("", in_system, END), ["warn  tools        the chat template shows tools only in", BEGINS_TURN]),
        (
            template("{% if messages[0].role != 'system' %}SHOWN{% endif %}".replace("SHOWN", shown).as_str(), "", END),
            ["warn  tools        the chat template ignores tools in conversations with a system message", BEGINS_TURN],
        ),
        (
            template("{% if tools %}{{ raise_exception('no') }}{% endif %}", "", END),
            ["warn  tools        the chat template rejects tools", BEGINS_TURN],
        ),
        (template(refusing, "", END), [IGNORED, "warn  chat         a final assistant message is rejected"]),
        (
            generation_prompt_for_users.clone(),
            [
                IGNORED,
                "warn  chat         a final assistant message is an assistant turn, after which the chat template begins no",
            ],
        ),
        (
            generation_prompt_for_users.replace("<|im_end|>\n", "{% if not loop.last %}<|im_end|>\n{% endif %}"),
            [IGNORED, "ok    chat         a final assistant message is continued by the reply"],
        ),
        (
            template("", "", END).replace("{{ m.content }}", "{{ m.content if not loop.last or m.role == 'user' }}"),
            [IGNORED, "warn  chat         a final assistant message is left out"],
        ),
    ];
    for (template, lines) in cases {
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(format!("{TOKENIZER}/tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
        let config = serde_json::json!({"chat_template": template, "eos_token": "<|im_end|>"});
        std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        let folder = folder.path().to_str().unwrap();
        let report = output(&["check", "--upstream", &upstream, "--tokenizer", folder]).await;
        let report = String::from_utf8(report.stdout).unwrap();
        for line in lines {
            assert!(report.contains(line), "{line:?} of {template} in\n{report}");
        }
    }
}
