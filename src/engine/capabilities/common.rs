// SPDX-License-Identifier: Apache-2.0
//! Combines the capabilities of a router's engines into those that hold for all of them.

use std::fmt::Debug;

use super::{Capabilities, PluginState};

/// Combines the capabilities of the engines. A capability in which they differ is unknown, and a note reports it. `None` without engines.
pub(crate) fn combine(engines: Vec<(String, Capabilities)>) -> Option<Capabilities> {
    let mut found = combined(engines)?;
    // a router may drop the fields that ask for ids, and no probe finds out
    found.chat.reports_ids = false;
    Some(found)
}

fn combined(engines: Vec<(String, Capabilities)>) -> Option<Capabilities> {
    let (_, first) = engines.first()?;
    if engines.len() == 1 {
        return engines.into_iter().next().map(|(_, found)| found);
    }
    let mut all = Answers { engines: &engines, notes: Vec::new() };
    let any = |of: fn(&Capabilities) -> bool| engines.iter().any(|(_, found)| of(found));
    let every = |of: fn(&Capabilities) -> bool| engines.iter().all(|(_, found)| of(found));
    let differ = all.notes.len();
    let preferred = all.agreed("the preferred sampling parameters", |found| found.preferred.clone());
    let other_defaults = all.notes.len() > differ;
    let chat = all.agreed("what their chat endpoints do", |found| Some(found.chat.clone()));
    let images = all.agreed("how they process pictures", |found| Some(found.images.clone()));
    let vocab_size = all.agreed("the size of the vocabulary", |found| found.vocab_size);
    all.agreed("speculative decoding", |found| Some(found.speculative.clone().unwrap_or_else(|| "none".to_owned())));
    let mut found = Capabilities {
        model: all
            .agreed("the served name", |found| Some(found.model.clone()))
            .unwrap_or_else(|| Capabilities::default().model),
        model_path: all.agreed("the model's path", |found| found.model_path.clone()),
        tokenizer_path: all.agreed("the tokenizer's path", |found| found.tokenizer_path.clone()),
        product: all.agreed("the product", |found| found.product),
        generates: all.agreed("whether they generate", |found| found.generates),
        context_length: all.least("the context length", |found| found.context_length),
        truncates: any(|found| found.truncates),
        vocab_size,
        vocab_source: vocab_size.and_then(|_| engines.iter().filter_map(|(_, found)| found.vocab_source).max()),
        streaming: all.agreed("the form of their streams", |found| found.streaming),
        flat: every(|found| found.flat),
        echoes_prompt: every(|found| found.echoes_prompt),
        plugin: all.plugin(),
        sampling_mask: all.least("the limit of the sampling mask", |found| found.sampling_mask),
        routed_experts: all.agreed("whether they return routed experts", |found| found.routed_experts),
        hierarchical_cache: any(|found| found.hierarchical_cache),
        // the survey asks the router
        dropped: Vec::new(),
        experts: all.agreed("the experts of the model", |found| found.experts),
        // the kind that has the most effect: tokens are reserved for any kind, and some kinds refuse logprobs
        speculative: engines
            .iter()
            .max_by_key(|(_, found)| (found.refuses_logprobs, found.speculative.is_some()))
            .and_then(|(_, found)| found.speculative.clone()),
        refuses_logprobs: any(|found| found.refuses_logprobs),
        disaggregated: any(|found| found.disaggregated),
        chat: chat.unwrap_or_default(),
        images: images.unwrap_or_default(),
        overlap_schedule: all.agreed("the overlap schedule", |found| found.overlap_schedule),
        skip_tokenizer_init: any(|found| found.skip_tokenizer_init),
        weight_version: all.agreed("weight_version", |found| found.weight_version.clone()),
        probed: every(|found| found.probed),
        gives_logprobs: all.agreed("whether they give logprobs", |found| found.gives_logprobs),
        original_logprobs: all.agreed("the temperature of logprobs", |found| found.original_logprobs),
        bf16: any(|found| found.bf16),
        preferred,
        version: all.agreed("the version", |found| found.version.clone()),
        notes: Vec::new(),
    };
    if other_defaults {
        // without a temperature in the request, the engines use different ones
        found.original_logprobs = None;
    }
    found.notes = all.notes;
    for (url, engine) in &engines {
        for note in &engine.notes {
            if !found.notes.contains(note) && !first.notes.contains(note) {
                found.notes.push(format!("{url}: {note}"));
            }
        }
    }
    found.notes.extend(first.notes.iter().cloned());
    Some(found)
}

/// The engines' capabilities, and notes about their differences.
struct Answers<'a> {
    engines: &'a [(String, Capabilities)],
    notes: Vec<String>,
}

impl Answers<'_> {
    /// The common value; `None` if the engines differ.
    fn agreed<T: PartialEq + Debug>(&mut self, name: &str, of: impl Fn(&Capabilities) -> Option<T>) -> Option<T> {
        let mut values: Vec<Option<T>> = self.engines.iter().map(|(_, found)| of(found)).collect();
        let first = values.swap_remove(0);
        if values.iter().all(|value| *value == first) {
            return first;
        }
        self.differ(name, |found| format!("{:?}", of(found)));
        None
    }

    /// The smallest value, which holds for all engines; `None` if it is unknown for one of them.
    fn least<T: Ord + Debug>(&mut self, name: &str, of: impl Fn(&Capabilities) -> Option<T>) -> Option<T> {
        let values: Vec<Option<T>> = self.engines.iter().map(|(_, found)| of(found)).collect();
        if values.iter().any(|value| *value != values[0]) {
            self.differ(name, |found| format!("{:?}", of(found)));
        }
        values.into_iter().min().flatten()
    }

    fn plugin(&mut self) -> PluginState {
        let plugins: Vec<&PluginState> = self.engines.iter().map(|(_, found)| &found.plugin).collect();
        if plugins.iter().all(|plugin| *plugin == plugins[0]) {
            return plugins[0].clone();
        }
        let state = |plugin: &PluginState| match plugin {
            PluginState::Absent => "has none".to_owned(),
            PluginState::Exact => "has it".to_owned(),
            PluginState::Unusable(reason) => format!("cannot use it: {reason}"),
        };
        let each = self.engines.iter().map(|(url, found)| format!("{url} {}", state(&found.plugin)));
        PluginState::Unusable(format!(
            "the engines of the router differ in it: {}",
            each.collect::<Vec<_>>().join(", ")
        ))
    }

    fn differ(&mut self, name: &str, shown: impl Fn(&Capabilities) -> String) {
        let plain =
            |text: String| text.strip_prefix("Some(").and_then(|text| text.strip_suffix(')')).map(str::to_owned);
        let each = self.engines.iter().map(|(url, found)| {
            let text = shown(found);
            format!(
                "{url} {}",
                plain(text.clone()).unwrap_or_else(|| if text == "None" { "unknown".to_owned() } else { text })
            )
        });
        let note = format!("the engines of the router differ in {name}: {}", each.collect::<Vec<_>>().join(", "));
        self.notes.push(note);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ChatFacts, Preferred, StreamMode, VocabSource};
    use super::*;

    fn common(engines: impl IntoIterator<Item = Capabilities>) -> Capabilities {
        combine(engines.into_iter().enumerate().map(|(at, found)| (format!("http://e{at}"), found)).collect()).unwrap()
    }

    #[test]
    fn chat_endpoint_behind_a_router_reports_no_ids() {
        let chat = ChatFacts { reports_ids: true, model_defaults: true, ..ChatFacts::default() };
        let found = common([Capabilities { chat: chat.clone(), ..Capabilities::default() }]);
        assert_eq!(found.chat, ChatFacts { reports_ids: false, ..chat });
    }

    #[test]
    fn differing_capabilities_are_unknown_and_noted() {
        let one = Capabilities {
            vocab_size: Some(100),
            streaming: Some(StreamMode::Incremental),
            context_length: Some(4096),
            flat: true,
            plugin: PluginState::Exact,
            original_logprobs: Some(false),
            ..Capabilities::default()
        };
        let two = Capabilities {
            streaming: Some(StreamMode::Cumulative),
            context_length: Some(2048),
            flat: false,
            plugin: PluginState::Absent,
            bf16: true,
            ..one.clone()
        };
        assert_eq!(common([one.clone(), one.clone()]), one, "engines that agree");
        let found = common([one, two]);
        assert_eq!((found.streaming, found.vocab_size, found.context_length), (None, Some(100), Some(2048)));
        assert!(!found.flat && found.bf16 && matches!(found.plugin, PluginState::Unusable(_)), "{found:?}");
        assert_eq!(found.original_logprobs, Some(false));
        let notes = found.notes.join("\n");
        assert!(
            notes.contains("differ in the form of their streams: http://e0 Incremental, http://e1 Cumulative"),
            "{notes}"
        );
        assert_eq!(found.notes.len(), 2, "{notes}");
    }

    #[test]
    fn no_engine_stands_for_the_others() {
        let one = Capabilities {
            model: "one".into(),
            vocab_size: Some(7),
            vocab_source: Some(VocabSource::Engine),
            speculative: Some("NGRAM".to_owned()),
            ..Capabilities::default()
        };
        let two = Capabilities {
            model: "two".into(),
            vocab_source: Some(VocabSource::ConfigFile),
            speculative: Some("EAGLE".to_owned()),
            refuses_logprobs: true,
            ..one.clone()
        };
        let found = common([one.clone(), two.clone()]);
        assert_eq!((&*found.model, found.vocab_source), ("unknown", Some(VocabSource::ConfigFile)));
        assert_eq!((found.speculative.as_deref(), found.refuses_logprobs), (Some("EAGLE"), true));
        let notes = found.notes.join("\n");
        for note in [
            "differ in the served name: http://e0 \"one\", http://e1 \"two\"",
            "differ in speculative decoding: http://e0 \"NGRAM\", http://e1 \"EAGLE\"",
        ] {
            assert!(notes.contains(note), "{note} in {notes}");
        }
        assert_eq!(common([one, Capabilities { vocab_size: Some(8), ..two }]).vocab_source, None);
    }

    #[test]
    fn reason_of_an_unusable_plugin_names_the_state_of_each_engine() {
        let with = |plugin| Capabilities { plugin, ..Capabilities::default() };
        let found = common([
            with(PluginState::Exact),
            with(PluginState::Unusable("no value".to_owned())),
            with(PluginState::Absent),
        ]);
        let PluginState::Unusable(reason) = found.plugin else { panic!("{:?}", found.plugin) };
        assert!(
            reason.ends_with("http://e0 has it, http://e1 cannot use it: no value, http://e2 has none"),
            "{reason}"
        );
    }

    #[test]
    fn differing_default_temperatures_leave_the_temperature_unknown() {
        let one = Capabilities {
            original_logprobs: Some(false),
            preferred: Some(Preferred::default()),
            ..Capabilities::default()
        };
        let preferred = Some(Preferred { temperature: Some(0.6), ..Preferred::default() });
        let found = common([one.clone(), Capabilities { preferred, ..one }]);
        assert_eq!((found.original_logprobs, found.preferred), (None, None));
    }

    #[test]
    fn capability_is_unknown_if_one_engine_does_not_report_it() {
        let known = Capabilities { context_length: Some(4096), vocab_size: Some(7), ..Capabilities::default() };
        let found = common([known, Capabilities::default()]);
        assert_eq!((found.context_length, found.vocab_size), (None, None));
        assert!(found.notes.iter().any(|note| note.ends_with("http://e0 7, http://e1 unknown")), "{:?}", found.notes);
    }
}
