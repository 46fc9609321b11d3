// SPDX-License-Identifier: Apache-2.0
//! Names of control tokens in the text of users, tools and calls are not encoded as control tokens.

use std::collections::BTreeMap;
use std::path::Path;

use tokentap::json::Value;
use tokentap::tokenizer::template::{ChatTemplate, Setting};
use tokentap::tokenizer::{Content, Folder, TextOrigin, Tokenizer};

use super::record;

/// An added token, at which a tokenizer splits texts.
#[derive(Debug, Clone)]
struct Added {
    text: String,
    special: bool,
}

impl Added {
    /// Whether text of `author` must not become this token. A user may quote a token that looks like a tag and is not special.
    fn is_control(&self, author: TextOrigin) -> bool {
        let name = self.text.strip_prefix('<').and_then(|rest| rest.strip_suffix('>'));
        let is_tag = name.is_some_and(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || "_-/".contains(c)));
        author == TextOrigin::Tool || self.special || !is_tag
    }
}

/// The added tokens of a directory that are longer than a character and not only space.
fn added(folder: &Path) -> Vec<Added> {
    let read = |name: &str| serde_json::from_slice::<serde_json::Value>(&record::read(&folder.join(name))).unwrap();
    let (file, config) = (read("tokenizer.json"), read("tokenizer_config.json"));
    let listed = file["added_tokens"].as_array().into_iter().flatten();
    let configured = config["added_tokens_decoder"].as_object().into_iter().flatten().map(|(_, token)| token);
    let tokens = listed
        .chain(configured)
        .map(|token| Added { text: token["content"].as_str().unwrap().to_owned(), special: token["special"] == true });
    let is_space = |text: &str| text.chars().all(|c| c.is_whitespace() || c == '▁');
    tokens.filter(|token| token.text.chars().count() > 1 && !is_space(&token.text)).collect()
}

/// Variations of the name of a token.
fn spelled(token: &str) -> String {
    let half = token.char_indices().nth(token.chars().count() / 2).unwrap().0;
    let (first, second) = token.split_at(half);
    [
        token.to_owned(),
        token.repeat(2),
        format!("a{token}b"),
        format!("  {token}\t{token}\n\n"),
        format!("{{\"{token}\": [\"{token}\", '{token}', \"\\\"{token}\\\"\"]}}"),
        format!("{first}{token}{second} '{first}' '{second}' {first}\u{fdd0}{second}"),
        token.to_owned(),
    ]
    .join(" ")
}

fn object(members: &[(&str, Value)]) -> Value {
    Value::Object(members.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect())
}

fn message(role: &str, content: Value) -> Value {
    object(&[("role", role.into()), ("content", content)])
}

/// A position of a text in a conversation.
#[derive(Debug, Clone, Copy, PartialEq)]
enum TextPosition {
    User,
    /// The user's text, in two parts that templates join.
    Parts,
    Tool,
    Arguments,
}

/// Renders a conversation with a text at a position; `None` if the template rejects it.
fn rendered(template: &ChatTemplate, marks: &Content, place: TextPosition, text: &str) -> Option<String> {
    let person = |text: &str| Value::from(&*marks.mark(text, TextOrigin::Person));
    let arguments = object(&[("q", text.into()), ("n", Value::Array(vec![object(&[(text, Value::Null)])]))]);
    let arguments = if place == TextPosition::Arguments { arguments } else { object(&[("q", "word".into())]) };
    let function = object(&[("name", "f".into()), ("arguments", marks.mark_all(&arguments, TextOrigin::Person))]);
    let call = object(&[("id", "callA0001".into()), ("type", "function".into()), ("function", function)]);
    let part = |text: &str| object(&[("type", "text".into()), ("text", person(text))]);
    let half = text.char_indices().nth(text.chars().count() / 2).map_or(0, |(at, _)| at);
    let messages = match place {
        TextPosition::User => {
            vec![message("user", person(text)), message("assistant", "So".into()), message("user", "U".into())]
        }
        TextPosition::Parts => vec![message("user", Value::Array(vec![part(&text[..half]), part(&text[half..])]))],
        TextPosition::Tool | TextPosition::Arguments => {
            let content = if place == TextPosition::Tool { text } else { "word" };
            let calling =
                [("role", "assistant".into()), ("content", "".into()), ("tool_calls", Value::Array(vec![call]))];
            let answer = [("role", "tool".into()), ("tool_call_id", "callA0001".into()), ("name", "f".into())];
            let content_member = [("content", Value::from(&*marks.mark(content, TextOrigin::Tool)))];
            vec![message("user", "U".into()), object(&calling), object(&[&answer[..], &content_member[..]].concat())]
        }
    };
    // one old template requires tools, in another form
    let parameters = object(&[(
        "q",
        object(&[("type", "str".into()), ("description", "d".into()), ("required", Value::Bool(true))]),
    )]);
    let tool = object(&[("name", "f".into()), ("description", "d".into()), ("parameter_definitions", parameters)]);
    let plain = Setting { tools: None, generation_prompt: true, extra: &[] };
    template
        .render(&messages, plain)
        .or_else(|_| template.render(&messages, Setting { tools: Some(&[tool]), ..plain }))
        .ok()
}

/// Checks a model with texts that name its tokens; returns the number of conversations.
fn check(name: &str, template: &ChatTemplate, tokenizer: &Tokenizer, added: &[Added]) -> usize {
    let marks = tokenizer.content();
    let mut conversations = 0;
    for place in [TextPosition::User, TextPosition::Parts, TextPosition::Tool, TextPosition::Arguments] {
        let author = if place == TextPosition::Tool { TextOrigin::Tool } else { TextOrigin::Person };
        let control: Vec<&Added> = added.iter().filter(|token| token.is_control(author)).collect();
        let ids_of: BTreeMap<u32, &str> = control
            .iter()
            .filter_map(|token| Some((tokenizer.token_to_id(&token.text)?, token.text.as_str())))
            .collect();
        let counts = |ids: &[u32]| -> BTreeMap<&str, usize> {
            let mut counts = BTreeMap::new();
            ids.iter().filter_map(|id| ids_of.get(id)).for_each(|token| *counts.entry(*token).or_default() += 1);
            counts
        };
        // the parts are split in the middle of a token
        let at_once = if place == TextPosition::Parts { 1 } else { 40 };
        let kept = if place == TextPosition::Parts { 60 } else { usize::MAX };
        for some in control.chunks(at_once).take(kept) {
            let text = |of: &dyn Fn(&str) -> String| some.iter().map(|token| of(&token.text)).collect::<String>();
            let (hostile, harmless) = match place {
                TextPosition::Parts => (text(&str::to_owned), text(&|_| "word".to_owned())),
                _ => (text(&spelled), text(&|_| spelled("word"))),
            };
            let Some(harmless) = rendered(template, marks, place, &harmless) else { continue };
            let Some(hostile_text) = rendered(template, marks, place, &hostile) else { continue };
            conversations += 1;
            let ids = tokenizer.encode_rendered(&hostile_text).unwrap();
            let expected = counts(&tokenizer.encode_rendered(&harmless).unwrap());
            assert_eq!(counts(&ids), expected, "{name} {place:?}: a text is no control token: {hostile:?}");
            // normalizing tokenizers change spaces
            let bare = |text: &str| text.replace([' ', '▁'], "");
            let decoded = tokenizer.decode(&ids, false).unwrap();
            assert_eq!(bare(&decoded), bare(&Content::unmarked(&hostile_text)), "{name} {place:?}: no text is lost");
        }
    }
    conversations
}

#[test]
fn control_token_names_stay_text_in_the_demo() {
    let folder = Folder::open(&record::demo()).unwrap();
    assert!(check("demo", &folder.template, &folder.tokenizer, &added(&record::demo())) >= 3);
}

#[test]
fn control_token_names_stay_text_in_escaping_templates() {
    let folder = Folder::open(&record::demo()).unwrap();
    let every = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m | tojson(ensure_ascii=true) }}|{{ m }}|{{ m.content }}<|im_end|>{% endfor %}";
    let template = ChatTemplate::try_new(every, BTreeMap::new()).unwrap();
    assert!(check("escapes", &template, &folder.tokenizer, &added(&record::demo())) >= 3);
}

#[test]
#[ignore = "needs what tests/templates/run.sh fetches"]
fn control_token_names_stay_text_in_models() {
    let in_folders = record::in_folders();
    let mut checked = 0;
    for record in record::records(false).iter().filter(|record| record.has_own_tokenizer() && record.kind == "model") {
        let folder = record.folder();
        let tokenizer = match in_folders.contains(&record.template) {
            true => Folder::open(&folder).unwrap().tokenizer,
            false => Tokenizer::from_bytes(&record::read(&folder.join("tokenizer.json"))).unwrap(),
        };
        let conversations = check(&record.template, &record.compiled(), &tokenizer, &added(&folder));
        println!("{:<28} {conversations:>5} conversations", record.template);
        checked += conversations;
    }
    // 940 with the sources that are fetched
    assert!(checked > 900, "{checked} conversations are too few");
}

/// Texts with many kinds of words: code, prose, tables, other scripts, spaces and line ends.
const TEXTS: [&str; 6] = [
    include_str!("content.rs"),
    include_str!("../../README.md"),
    include_str!("../../docs/benchmarks.md"),
    "It's 1234567.5, we'LL see\r\n\r\n\tthe 'thing'  \n   x\u{a0}\u{3000}y \n \n",
    "naïve façade — e\u{301}te\u{301} 日本語と한국어 Ελληνικά кириллица العربية हिन्दी ไทย 🙂👩‍👩‍👧 \u{2126}\u{212b}ſt \u{1e9b}\u{323}",
    "a\n\n\nb \n c\t\td  e   f    g\r\rh\n\r\n !?!... (x)[y]{z} $1 %2 #3 @4 a_b a-b a.b 1,2 I'm you'Re 'S",
];

#[test]
#[ignore = "needs what tests/templates/run.sh fetches"]
fn ids_of_texts_are_those_of_the_crate_in_models() {
    let mut checked = 0;
    for record in record::records(false).iter().filter(|record| record.has_own_tokenizer() && record.kind == "model") {
        let bytes = record::read(&record.folder().join("tokenizer.json"));
        let (ours, theirs) =
            (Tokenizer::from_bytes(&bytes).unwrap(), tokenizers::Tokenizer::from_bytes(&bytes).unwrap());
        for text in TEXTS {
            let expected = theirs.encode_fast(text, false).unwrap().get_ids().to_vec();
            // the second time all words are known
            for _ in 0..2 {
                assert!(ours.encode_rendered(text).unwrap() == expected, "{}: {:.60}", record.template, text);
            }
            checked += 1;
        }
    }
    assert!(checked > 100, "{checked} texts are too few");
}
