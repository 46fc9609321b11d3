// SPDX-License-Identifier: Apache-2.0
//! Chooses between a template and code for the prompts of a model, as SGLang does.

use super::Encoding;

/// What decides how SGLang writes the prompts of a model.
#[derive(Debug, Clone, Copy)]
pub(in crate::tokenizer) struct ModelFacts<'a> {
    /// The engine's `--tool-call-parser`.
    pub(in crate::tokenizer) parser: Option<&'a str>,
    /// The first of `architectures` in `config.json`; empty if it names none.
    pub(in crate::tokenizer) architecture: &'a str,
    /// `model_type` in `config.json`; empty if it names none.
    pub(in crate::tokenizer) model_type: &'a str,
    /// The model has a chat template.
    pub(in crate::tokenizer) has_template: bool,
}

/// What writes the prompts of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::tokenizer) enum PromptWriter {
    /// Its chat template.
    Template,
    /// Code that tokentap has, too.
    Encoding(Encoding),
    /// Code that tokentap does not have, for this model.
    Unsupported(&'static str),
}

impl PromptWriter {
    /// The writer that SGLang 0.5.23 chooses (`entrypoints/openai/chat_encoding.py`): the parser of tool calls precedes the architecture, and
    /// only DeepSeek V3 and V3.2 prefer a template. The type is that of the model where an architecture serves two versions.
    pub(in crate::tokenizer) fn choose(model: ModelFacts<'_>) -> Self {
        const V41: PromptWriter = PromptWriter::Unsupported("DeepSeek V4.1");
        const KIMI_K3: PromptWriter = PromptWriter::Unsupported("Kimi K3");
        match model.parser {
            Some("deepseekv41") => return V41,
            Some("deepseekv4") => return Self::Encoding(Encoding::V4),
            Some("deepseekv32") => return Self::Encoding(Encoding::V32),
            Some("kimi_k3") => return KIMI_K3,
            _ => {}
        }
        let is = |name: &str| model.architecture.contains(name);
        if is("DeepseekV41") || model.model_type == "deepseek_v41" {
            V41
        } else if is("DeepseekV4") {
            Self::Encoding(Encoding::V4)
        } else if is("KimiK3") {
            KIMI_K3
        } else if is("InklingForConditionalGeneration") {
            Self::Unsupported("Inkling")
        } else if is("DeepseekV3") && !model.has_template {
            Self::Encoding(Encoding::V32)
        } else {
            Self::Template
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writer_is_that_of_sglang() {
        let (v32, v4) = (PromptWriter::Encoding(Encoding::V32), PromptWriter::Encoding(Encoding::V4));
        let v41 = PromptWriter::Unsupported("DeepSeek V4.1");
        let template = PromptWriter::Template;
        // parser, architecture, model type; the writer without and with a template
        for (parser, architecture, model_type, without, with) in [
            (None, "DeepseekV3ForCausalLM", "deepseek_v3", v32, template),
            (None, "DeepseekV32ForCausalLM", "deepseek_v32", v32, template),
            (None, "DeepseekV4ForCausalLM", "deepseek_v4", v4, v4),
            (None, "DeepseekV41ForCausalLM", "deepseek_v41", v41, v41),
            (None, "DeepseekV4ForCausalLM", "deepseek_v41", v41, v41),
            (None, "Other", "deepseek_v4", template, template),
            (None, "LlamaForCausalLM", "llama", template, template),
            (None, "", "", template, template),
            (Some("deepseekv31"), "DeepseekV32ForCausalLM", "deepseek_v32", v32, template),
            (Some("deepseekv32"), "DeepseekV32ForCausalLM", "deepseek_v32", v32, v32),
            (Some("deepseekv32"), "", "", v32, v32),
            (Some("deepseekv32"), "DeepseekV4ForCausalLM", "deepseek_v4", v32, v32),
            (Some("deepseekv4"), "DeepseekV41ForCausalLM", "deepseek_v41", v4, v4),
            (Some("deepseekv41"), "DeepseekV4ForCausalLM", "deepseek_v4", v41, v41),
            (Some("kimi_k3"), "", "", PromptWriter::Unsupported("Kimi K3"), PromptWriter::Unsupported("Kimi K3")),
            (Some("hermes"), "LlamaForCausalLM", "llama", template, template),
        ] {
            let writer =
                |has_template| PromptWriter::choose(ModelFacts { parser, architecture, model_type, has_template });
            assert_eq!((writer(false), writer(true)), (without, with), "{parser:?} {architecture} {model_type}");
        }
    }
}
