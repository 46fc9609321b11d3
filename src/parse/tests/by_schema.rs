// SPDX-License-Identifier: Apache-2.0
//! Values that are texts are read by the types of the parameters.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::json;

use super::super::ParameterTypes;
use super::property::cut;
use super::*;
use crate::json::Value;

/// Sampled calls, and their reading: that of SGLang 0.5.23, or our decision.
const TABLE: &str = include_str!("../../../tests/fixtures/tool_arguments.json");

/// The grammar of a format that reads values by the schemas of these tools. The types pass through their text, as those of recorded turns.
fn with_tools(format: Format, tools: &serde_json::Value) -> Grammar {
    let tools = Value::parse(tools.to_string().as_bytes()).unwrap();
    let types = ParameterTypes::new(format, tools.as_array().unwrap()).to_string();
    Grammar { parameters: Some(Arc::new(types.parse().unwrap())), ..grammar(format) }
}

/// A tool `f` with these parameters.
fn tool(properties: &serde_json::Value) -> serde_json::Value {
    let r = json!({"type": "object", "properties": {"x": {"type": "integer"}}});
    let loops = json!({"anyOf": [{"$ref": "#/$defs/Loop"}, {"$ref": "#/$defs/Loop"}]});
    let parameters = json!({"type": "object", "properties": properties, "$defs": {
        "R": r, "Loop": loops, "Record<string>": {"type": "integer"}, "a/b~c": {"type": "integer"},
        "Choice": {"anyOf": [{"type": "string"}, {"type": "integer"}]}
    }});
    json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
}

/// A call of `f` with a parameter `a`.
fn text(format: Format, value: &str) -> String {
    match format {
        Format::Glm => format!("<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>"),
        Format::MiniMaxM2 => format!(
            "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">{value}</parameter>\n</invoke>\n</minimax:tool_call>"
        ),
        _ => format!("<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>"),
    }
}

#[test]
fn calls_of_the_table_are_read_whole_and_streamed() {
    let table: serde_json::Value = serde_json::from_str(TABLE).unwrap();
    for row in table["rows"].as_array().unwrap() {
        let format: Format = row["parser"].as_str().unwrap().parse().unwrap();
        let calls = row["calls"].as_array().unwrap().iter();
        let calls = calls.map(|parts| call(parts[0].as_str().unwrap(), parts[1].as_str().unwrap())).collect();
        let content = row["content"].as_str().unwrap().to_owned();
        let expected = Message { reasoning: None, content, calls };
        assert_message(&with_tools(format, &table["tools"]), row["sampled"].as_str().unwrap(), &expected);
    }
}

#[test]
fn value_is_read_by_the_type_of_its_parameter() {
    let string = json!({"type": "string"});
    let optional = json!({"anyOf": [{"type": "string"}, {"type": "null"}]});
    let integer = json!({"type": "integer"});
    let number = json!({"type": "number"});
    let boolean = json!({"type": "boolean"});
    let object = json!({"type": "object"});
    // the schema, the value, its reading in `qwen_xml` and `minimax_m2`, and that in `glm`
    let table = [
        (&string, "    return x", r#""    return x""#, r#""    return x""#),
        (
            &string,
            "{\n  \"name\": \"demo\"\n}\n",
            r#""{\n  \"name\": \"demo\"\n}\n""#,
            r#""{\n  \"name\": \"demo\"\n}\n""#,
        ),
        (&string, "1.10", r#""1.10""#, r#""1.10""#),
        (&string, "\"x\"", r#""\"x\"""#, r#""\"x\"""#),
        (&string, "", r#""""#, r#""""#),
        (&string, "\n\n", r#""\n\n""#, r#""\n\n""#),
        (&string, "&lt;b&gt; \\n", r#""&lt;b&gt; \\n""#, r#""&lt;b&gt; \\n""#),
        (&string, "<think>a</think>\n<b>", r#""<think>a</think>\n<b>""#, r#""<think>a</think>\n<b>""#),
        (&string, "<think>", r#""<think>""#, r#""<think>""#),
        (&string, "ü", r#""\u00fc""#, r#""\u00fc""#),
        (&string, "null", "null", r#""null""#),
        (&string, "nul", r#""nul""#, r#""nul""#),
        (&string, "null\n", r#""null\n""#, r#""null\n""#),
        (&string, "null and", r#""null and""#, r#""null and""#),
        (&optional, "null", "null", "null"),
        (&optional, "NULL", "null", "null"),
        (&optional, "5", r#""5""#, r#""5""#),
        (&integer, "7", "7", "7"),
        (&integer, " -007 ", "-7", r#"" -007 ""#),
        (&integer, "1_000", "1000", r#""1_000""#),
        (&integer, "1.10", r#""1.10""#, "1.1"),
        (&integer, "9007199254740993", "9007199254740993", "9007199254740993"),
        (&integer, "seven", r#""seven""#, r#""seven""#),
        (&integer, "", r#""""#, r#""""#),
        (&integer, "null", "null", "null"),
        (&number, "3", "3", "3"),
        (&number, "3.0", "3.0", "3.0"),
        (&number, "1e3", "1000.0", "1000.0"),
        (&number, "-.5", "-0.5", "-0.5"),
        (&number, "1_0.5_0", "10.5", r#""1_0.5_0""#),
        (&number, "_1", r#""_1""#, r#""_1""#),
        (&number, "inf", r#""inf""#, r#""inf""#),
        (&number, "-Infinity", r#""-Infinity""#, r#""-Infinity""#),
        (&number, "nan", r#""nan""#, r#""nan""#),
        (&number, "NaN", r#""NaN""#, r#""NaN""#),
        (&number, "1e999", r#""1e999""#, r#""1e999""#),
        (&number, "+-1", r#""+-1""#, r#""+-1""#),
        (&boolean, "true", "true", "true"),
        (&boolean, "True", "true", "true"),
        (&boolean, "FALSE", "false", r#""FALSE""#),
        (&boolean, "yes", r#""yes""#, r#""yes""#),
        (&object, "{\"a\": 1}", r#"{"a": 1}"#, r#"{"a": 1}"#),
        (&object, "{\"a\": [NaN]}", r#""{\"a\": [NaN]}""#, r#""{\"a\": [NaN]}""#),
        (&object, "{'a': 1e999}", r#""{'a': 1e999}""#, r#""{'a': 1e999}""#),
        (&object, "{'a': True}", r#"{"a": true}"#, r#"{"a": true}"#),
        (&object, "[1, 2] and", r#""[1, 2] and""#, r#""[1, 2] and""#),
        (&object, "\n{\n}\n", "{}", "{}"),
    ];
    for (schema, value, qwen_xml, glm) in table {
        for (format, expected) in [(Format::QwenXml, qwen_xml), (Format::MiniMaxM2, qwen_xml), (Format::Glm, glm)] {
            let grammar = with_tools(format, &tool(&json!({ "a": schema })));
            let expected = call("f", &format!("{{\"a\": {expected}}}"));
            let message = Message { calls: vec![expected], ..Message::default() };
            assert_message(&grammar, &text(format, value), &message);
        }
    }
}

#[test]
fn type_of_a_parameter_follows_from_its_schema() {
    let table = [
        (json!({}), "5", r#""5""#, "5"),
        (json!(true), "5", r#""5""#, "5"),
        (json!({"enum": ["1", "2"]}), "1", r#""1""#, r#""1""#),
        (json!({"enum": [1, 2]}), "1", "1", "1"),
        (json!({"enum": [1, "1"]}), "1", r#""1""#, r#""1""#),
        (json!({"const": true}), "True", "true", "true"),
        (json!({"type": ["integer", "null"]}), "5", "5", "5"),
        (json!({"type": ["string", "null"]}), "null", "null", "null"),
        (json!({"type": ["null"]}), "5", r#""5""#, r#""5""#),
        (json!({"type": "varchar(20)"}), "5", r#""5""#, r#""5""#),
        (json!({"type": "INT32"}), "5", "5", "5"),
        (json!({"type": "internal"}), "x", r#""x""#, r#""x""#),
        (json!({"type": "list[str]"}), "['x']", r#"["x"]"#, r#"["x"]"#),
        (json!({"anyOf": [{"type": "string"}, {"type": "integer"}]}), "5", r#""5""#, r#""5""#),
        (json!({"oneOf": [{"type": "integer"}, {"type": "array"}]}), "5", "5", "5"),
        (json!({"$ref": "#/$defs/R"}), "{\"x\": 1}", r#"{"x": 1}"#, r#"{"x": 1}"#),
        (json!({"allOf": [{"$ref": "#/$defs/R"}]}), "{\"x\": 1}", r#"{"x": 1}"#, r#"{"x": 1}"#),
        (json!({"anyOf": [{"$ref": "#/$defs/R"}, {"type": "null"}]}), "{\"x\": 1}", r#"{"x": 1}"#, r#"{"x": 1}"#),
        (json!({"$ref": "#/$defs/Record%3Cstring%3E"}), "5", "5", "5"),
        (json!({"$ref": "#/$defs/Record<string>"}), "5", "5", "5"),
        (json!({"$ref": "#/$defs/a~1b~0c"}), "5", "5", "5"),
        (json!({"$ref": "#/$defs/Choice/anyOf/1"}), "5", "5", "5"),
        (json!({"$ref": "#/$defs/Choice/anyOf/01"}), "5", r#""5""#, "5"),
        (json!({"$ref": "#/$defs/Choice/anyOf/+1"}), "5", r#""5""#, "5"),
        (json!({"$ref": "#Point"}), "{}", r#""{}""#, "{}"),
        (json!({"$ref": "#"}), "{}", "{}", "{}"),
        (json!({"$ref": "#/$defs/Missing"}), "5", r#""5""#, "5"),
        (json!({"$ref": "#/$defs/Loop"}), "5", r#""5""#, "5"),
        (json!({"$ref": "#/properties/a"}), "5", r#""5""#, "5"),
        (json!({"properties": {"x": {}}}), "{\"x\": 1}", r#"{"x": 1}"#, r#"{"x": 1}"#),
        (json!({"items": {}}), "[1]", "[1]", "[1]"),
    ];
    for (schema, value, qwen_xml, glm) in table {
        for (format, expected) in [(Format::QwenXml, qwen_xml), (Format::MiniMaxM2, qwen_xml), (Format::Glm, glm)] {
            let message = with_tools(format, &tool(&json!({ "a": schema }))).parse(&text(format, value));
            assert_eq!(message.calls, [call("f", &format!("{{\"a\": {expected}}}"))], "{format} {schema}");
        }
    }
    // the parameters of alternatives, of an unknown tool, and without a schema
    let alternatives = json!([{"function": {"name": "f", "parameters":
        {"anyOf": [{"properties": {"b": {}}}, {"allOf": [{"properties": {"a": {"type": "integer"}}}]}]}}}]);
    for (tools, expected) in
        [(alternatives, "5"), (json!([{"function": {"name": "f"}}]), r#""5""#), (json!([]), r#""5""#)]
    {
        let message = with_tools(Format::QwenXml, &tools).parse(&text(Format::QwenXml, "5"));
        assert_eq!(message.calls, [call("f", &format!("{{\"a\": {expected}}}"))], "{tools}");
    }
}

#[test]
fn stored_types_omit_the_defaults_of_the_format() {
    let tools = tool(&json!({
        "s": {"type": "string"}, "i": {"type": "integer"}, "a\tb": {"type": "integer"}, "u": {}, "o": {"type": ["string", "null"]}
    }));
    let types = |format| with_tools(format, &tools).parameters.unwrap().to_string();
    assert_eq!(types(Format::QwenXml), "f\tii\n");
    assert_eq!(types(Format::Glm), "f\too\tts\n");
    // a type of a later version
    assert_eq!("f\tzx\tii\n".parse::<ParameterTypes>().unwrap().to_string(), "f\tii\n");
}

#[test]
fn string_is_emitted_character_by_character() {
    for format in [Format::QwenXml, Format::Glm, Format::MiniMaxM2] {
        let grammar = with_tools(format, &tool(&json!({"a": {"type": "string"}})));
        let (mut parser, mut events) = (grammar.stream(), Vec::new());
        let whole = text(format, "{\"b\": [1");
        let (begun, _) = whole.split_once("[1").unwrap();
        characters(begun).for_each(|piece| parser.push(piece, &mut events));
        let message: Message = events.into_iter().collect();
        assert_eq!(message.calls[0].arguments, r#"{"a": "{\"b\": "#, "{format}");
    }
}

fn schema() -> impl Strategy<Value = serde_json::Value> {
    const TYPES: &[&str] = &["string", "integer", "number", "boolean", "object", "array", "null", "any"];
    prop_oneof![
        3 => select(TYPES).prop_map(|name| json!({ "type": name })),
        1 => Just(json!({"type": ["string", "null"]})),
        1 => Just(json!({})),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn values_do_not_depend_on_the_cuts(
        format in select(&[Format::QwenXml, Format::Glm, Format::MiniMaxM2][..]),
        schema in schema(),
        value in prop::collection::vec(select(&["\n", "\n", " ", "nul", "null", "l", "5", ".", "true", "{", "}", "\"a\"", "'", ":", "<", "</parameter", "<parameter=b>", "</arg_value", "<parameter name=\"b\">", "</invoke>", "</minimax:tool_call>", "<think>", "</think>", "ü", "</function>", "</tool_call>"][..]), 0..8),
        at in prop::collection::vec(any::<Index>(), 0..20),
    ) {
        let grammar = with_tools(format, &tool(&json!({"a": schema})));
        let text = text(format, &value.concat());
        let whole = grammar.parse(&text);
        prop_assert_eq!(&parse_pieces(&grammar, cut(&text, &at)), &whole);
        prop_assert_eq!(&parse_pieces(&grammar, characters(&text)), &whole);
    }

    #[test]
    fn string_keeps_its_text(format in select(&[Format::QwenXml, Format::Glm, Format::MiniMaxM2][..]), value in "[a-z{}\\[\\]0-9\" \n\\\\<>/]{0,20}") {
        prop_assume!(!value.eq_ignore_ascii_case("null"));
        let grammar = with_tools(format, &tool(&json!({"a": {"type": "string"}})));
        let message = parse_pieces(&grammar, characters(&text(format, &value)));
        prop_assert_eq!(&message.calls[0].arguments, &super::super::loads::loads(&json!({"a": value}).to_string()).unwrap().dumps());
    }
}
